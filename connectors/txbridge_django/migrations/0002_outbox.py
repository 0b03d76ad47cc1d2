"""Migration that creates the tables of the outbox."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates both tables. If txbridge_sqlalchemy has created them already, run `migrate --fake-initial`."""

    # Of these tables it is the first one, so `--fake-initial` looks for them.
    initial = True
    dependencies = (("txbridge_django", "0001_initial"),)
    operations = (
        migrations.CreateModel(
            name="OutboxEntry",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("topic", models.CharField(max_length=249)),
                ("key", models.BinaryField(null=True)),
                ("value", models.BinaryField(null=True)),
                ("headers", models.TextField(null=True)),
                ("partition", models.IntegerField(null=True)),
                ("timestamp", models.BigIntegerField(null=True)),
                ("deliver_at", models.BigIntegerField(null=True)),
                ("created_at", models.BigIntegerField()),
            ],
            options={
                "db_table": "txbridge_outbox",
                "verbose_name": "outbox entry",
                "verbose_name_plural": "outbox entries",
                "indexes": [
                    models.Index(
                        condition=models.Q(("deliver_at__isnull", False)),
                        fields=["deliver_at", "id"],
                        name="txbridge_outbox_due",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="OutboxRelay",
            fields=[
                ("id", models.IntegerField(primary_key=True, serialize=False)),
                ("identity", models.CharField(max_length=16)),
                ("owner", models.CharField(max_length=32, null=True)),
                ("batch", models.BigIntegerField()),
                ("topic_id", models.CharField(max_length=32, null=True)),
                ("partition", models.IntegerField(null=True)),
                ("position", models.BigIntegerField(null=True)),
            ],
            options={"db_table": "txbridge_outbox_relay"},
        ),
    )
