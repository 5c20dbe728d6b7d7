"""What is done after an order was stored."""

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task

from shop.models import Order, Parcel


@task(key="{number}", effect="transactional")
def book_parcel(number: str) -> int:
    """Book a parcel: its row commits together with the record that the task is done."""
    order = Order.objects.get(number=number)
    return Parcel.objects.create(order=order).pk
