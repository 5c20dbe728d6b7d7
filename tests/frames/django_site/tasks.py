"""Tasks of each kind."""

from __future__ import annotations

import os
from typing import Any

from django.db import IntegrityError, transaction
from django.db.backends.signals import connection_created

import onefold
from tests.frames.django_site.models import Order, Parcel
from tests.frames.django_site.package import task


@task(key="{number}")
def ship(number: str, grams: int = 1) -> str:
    return f"{number}:{grams}"


@task(key="{number}", effect=os.environ.get("SITE_EFFECT", "transactional"), retry=onefold.Retry(attempts=1))
def book(number: str, fails: bool = False) -> int:
    """Writes rows by the ORM, with savepoints; enqueues another task; perhaps fails after that."""
    order = Order.objects.get(number=number)
    with transaction.atomic():
        parcel = Parcel.objects.create(order=order)
    try:
        with transaction.atomic():
            Order.objects.create(number=number)
    except IntegrityError:
        order.state = "booked"
    order.save()
    tell.enqueue(number)
    if fails:
        raise onefold.PermanentError("no parcel", todo="none")
    return int(parcel.pk)


@task(takes_context=True, queue_name="mail", key="{number}")
def tell(context: Any, number: str) -> list[Any]:
    return [context.attempt, context.run.key, context.task_result.status, Order.objects.count() > 0]


@task
async def later(what: dict[str, int]) -> dict[str, int]:
    return what


@task(on_unknown="hold")
def crashes() -> None:
    os._exit(3)


def happened(number: str) -> onefold.Done:
    return onefold.Done(f"found {number}")


@task(key="{number}", on_unknown=happened)
def crashes_and_asks(number: str) -> str:
    os._exit(3)


@task
def where() -> int:
    return os.getpid()


made: list[str] = []
connection_created.connect(lambda connection, **_: made.append(connection.alias), weak=False)


@task
def connects() -> int:
    Order.objects.count()
    return len(made)


@task(retry=onefold.Retry(attempts=3, base="0s"))
def breaks() -> None:
    raise ValueError("broken")
