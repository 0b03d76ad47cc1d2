from django.db import models


class Order(models.Model):
    number = models.CharField(max_length=40, unique=True)

    def __str__(self):
        return self.number
