from django.urls import path

from shop import views

urlpatterns = [path("orders/<str:number>", views.place), path("readyz", views.readyz)]
