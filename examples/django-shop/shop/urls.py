"""Where the views are."""

from django.urls import path

from shop import views

urlpatterns = [path("orders", views.place), path("tasks/<task>", views.state)]
