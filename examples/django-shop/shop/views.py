"""Orders over HTTP."""

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

try:
    from django.tasks.exceptions import TaskResultDoesNotExist
except ImportError:  # Django 5.2
    from django_tasks.exceptions import TaskResultDoesNotExist

from shop.models import Order
from shop.tasks import book_parcel


@csrf_exempt
def place(request: HttpRequest) -> JsonResponse:
    """Store an order and enqueue its task: both, or neither."""
    order = json.loads(request.body)
    with transaction.atomic():
        Order.objects.create(number=order["number"], weight_grams=order["grams"])
        result = book_parcel.enqueue(order["number"])
        if order["grams"] > 30_000:
            raise ValueError("the courier takes 30 kg at most")  # the task goes with the order
    return JsonResponse({"task": result.id}, status=202)


def state(_request: HttpRequest, task: str) -> JsonResponse:
    """The state of a task."""
    try:
        return JsonResponse({"state": book_parcel.get_result(task).status})
    except TaskResultDoesNotExist:
        return JsonResponse({"state": "unknown"}, status=404)
