"""A shop's background tasks: mail stays with Celery, charging has moved. SHOP_FOLDER says where messages and records are."""

import os
from pathlib import Path

from celery import Celery

import onefold

FOLDER = Path(os.environ.get("SHOP_FOLDER", "shop-data"))
(FOLDER / "celery").mkdir(parents=True, exist_ok=True)

celery = Celery("shop", broker="filesystem://")
celery.conf.broker_transport_options = {
    name: str(FOLDER / "celery") for name in ("data_folder_in", "data_folder_out", "control_folder")
}
celery.conf.worker_hijack_root_logger = False

jobs = onefold.App("shop", url=f"sqlite:///{FOLDER}/jobs.db")


def note(line: str) -> None:
    """Stands for the world outside: the bank and the mail server."""
    with (FOLDER / "effects.txt").open("a") as effects:
        effects.write(f"{line}\n")


@jobs.job(jobs.queue("charges"), key="{order}", on_unknown="hold")
def charge(payment: dict[str, int | str]) -> str:
    """Charge a card: once for an order, however often it is sent or delivered."""
    note(f"charged {payment['order']}")
    confirm.delay(payment["order"])
    return f"receipt-{payment['order']}"


@celery.task(name="shop.charge")
def charge_of_before(order: str, pence: int) -> None:
    """The old task: passes on what is under way and what old processes send. Delete it once its queue is empty."""
    charge.send({"order": order, "pence": pence})


@celery.task(name="shop.confirm")
def confirm(order: str) -> None:
    """Send a mail: this task has not moved."""
    note(f"mailed {order}")
