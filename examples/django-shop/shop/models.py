"""Orders, and the parcels that were booked for them."""

from django.db import models


class Order(models.Model):
    """An order; its number comes from the customer's basket."""

    number = models.CharField(max_length=20, unique=True)
    weight_grams = models.PositiveIntegerField()


class Parcel(models.Model):
    """A parcel. Only the task prevents a second one from being booked for an order."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)
