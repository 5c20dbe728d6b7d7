"""Orders and their parcels."""

from __future__ import annotations

from django.db import models


class Order(models.Model):  # type: ignore[misc]  # Django ships no types
    number = models.CharField(max_length=200, unique=True)
    state = models.CharField(max_length=20, default="new")


class Parcel(models.Model):  # type: ignore[misc]
    order = models.ForeignKey(Order, on_delete=models.CASCADE)
