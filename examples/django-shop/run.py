"""The example from end to end: two orders, one that fails, a worker, and the result."""

import contextlib
import io
import os
import sys
import tempfile

import django
from django.core.management import call_command
from django.test import Client


def main() -> None:
    """Run it in a database of its own."""
    folder = tempfile.TemporaryDirectory(prefix="django-shop-")
    os.environ |= {"SHOP_DATABASE": f"{folder.name}/db.sqlite3", "DJANGO_SETTINGS_MODULE": "settings"}
    django.setup()
    call_command("migrate", verbosity=0)

    from shop.models import Order, Parcel

    client = Client(raise_request_exception=False)
    tasks = []
    for number, grams in (("o-1", 500), ("o-2", 900), ("o-3", 31_000)):
        answer = client.post("/orders", {"number": number, "grams": grams}, content_type="application/json")
        print(number, answer.status_code)
        tasks += [answer.json()["task"]] if answer.status_code == 202 else []
    print("before the worker:", [client.get(f"/tasks/{task}").json()["state"] for task in tasks])
    with contextlib.redirect_stdout(io.StringIO()):
        call_command("onefold_worker", "--until-empty", verbosity=0)
    print("after it:", [client.get(f"/tasks/{task}").json()["state"] for task in tasks])
    print("orders:", list(Order.objects.values_list("number", flat=True)), "parcels:", Parcel.objects.count())
    folder.cleanup()


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main()
