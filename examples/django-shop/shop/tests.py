"""How tasks are tested: `TestCase` rolls back what was enqueued; `TransactionTestCase` may run a worker."""

from django.core.management import call_command
from django.test import TestCase, TransactionTestCase

try:
    from django.tasks.exceptions import TaskResultDoesNotExist
except ImportError:  # Django 5.2
    from django_tasks.exceptions import TaskResultDoesNotExist

from shop.models import Order, Parcel
from shop.tasks import book_parcel


class PlaceTest(TestCase):
    """What a view enqueues."""

    def test_an_order_has_a_task_that_is_not_visible_before_the_commit(self) -> None:
        """The test's own transaction is never committed."""
        answer = self.client.post("/orders", {"number": "o-1", "grams": 5}, content_type="application/json")
        with self.assertRaises(TaskResultDoesNotExist):
            book_parcel.get_result(answer.json()["task"])


class BookTest(TransactionTestCase):
    """What a task does."""

    def test_a_parcel_is_booked_once(self) -> None:
        """Enqueued twice, done once."""
        Order.objects.create(number="o-1", weight_grams=5)
        results = [book_parcel.enqueue("o-1") for _ in range(2)]
        call_command("onefold_worker", "--until-empty", verbosity=0)
        for result in results:
            result.refresh()
            self.assertEqual(result.status, "SUCCESSFUL")
        self.assertEqual(Parcel.objects.count(), 1)
