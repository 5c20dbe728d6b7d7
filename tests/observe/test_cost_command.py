"""`onefold cost`: what a person reads and a program gets, from declarations alone; no AWS call is made."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import cast

import pytest

from onefold.cli.main import run
from onefold.observe import cost

SHOP = """
from onefold import App
from onefold.aws import Function
app = App("shop")
orders = app.queue("orders", function=Function(memory_mb=1024, batch=5))
mails = app.queue("mails", fifo=True, function=None)
@app.job(orders, key="{id}")
def book(order: dict) -> str:
    return "booked"
@app.job(mails, key="{id}", group="{id}")
def mail(order: dict) -> str:
    return "sent"
handler = app.lambda_handler()
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("ONEFOLD_APP", raising=False)
    sys.modules.pop("shop", None)
    yield
    sys.modules.pop("shop", None)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run(["cost", "shop:app", *words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_person_sees_paths_assumptions_and_the_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", "shop:app", "--messages", "1M"]) == 0
    out = capsys.readouterr().out
    assert "orders   Lambda, 1024 MB, x86_64; of 1,000 messages:" in out
    assert "mails.fifo   workers; of 1,000 messages:" in out
    assert [path in out for path in ("first delivery", "duplicate", "failure + retry")] == [True] * 3
    assert "Assumed: 1.0% duplicates" in out
    assert "Prices: us-east-1, 2026-06." in out
    assert "Not counted: free tier" in out


def test_what_the_app_uses_beside_messages_is_said_not_to_be_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    services = ("EventBridge", "Step Functions")
    assert not any(name in one for one in cast(list[str], answer(capsys)["not_counted"]) for name in services)
    more = """
app.schedule("rate(1 hour)", name="hourly", queue=orders)(lambda tick: None)
app.bus("shop").rule("placed", {"source": ["shop"]}, to=orders)
app.map(orders, key="{id}", name="enrich", source="s3://files/in.csv")(lambda item: None)
"""
    (tmp_path / "shop.py").write_text(SHOP + more, encoding="utf-8")
    sys.modules.pop("shop", None)
    assert cast(list[str], answer(capsys, "--later")["not_counted"])[:4] == [
        "EventBridge Scheduler (1 schedule)",
        "EventBridge Scheduler for messages that are due late",
        "Step Functions and its children's invocations and records (1 map run)",
        "EventBridge (1 rule and 0 archives)",
    ]


def test_the_bill_is_the_sum_of_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    bill = answer(capsys, "--messages", "250k", "--duplicates", "2%", "--failures", "0.5%", "--prefix", "demo-")
    queues = bill["queues"]
    assert isinstance(queues, list)
    assert [one["queue"] for one in queues] == ["demo-mails.fifo", "demo-orders"]
    assert [one["messages"] for one in queues] == [250_000, 250_000]
    orders = queues[1]
    assert [path["part"] for path in orders["paths"]] == pytest.approx([0.975, 0.02, 0.005])
    average = sum(path["part"] * path["usd_per_thousand_total"] for path in orders["paths"])
    assert orders["usd_per_thousand"] == pytest.approx(average)
    assert sum(orders["usd_month"].values()) == pytest.approx(average * 250)
    total = sum(sum(one["usd_month"].values()) + one["usd_polls"] for one in queues)
    assert bill["usd_month"] == pytest.approx(total + bill["usd_watch"])
    assert queues[0]["usd_polls"] == 0


def test_a_batch_is_never_larger_than_the_queues_own(capsys: pytest.CaptureFixture[str]) -> None:
    queues = answer(capsys, "--batch", "100")["queues"]
    assert isinstance(queues, list)
    mails, orders = (one["paths"][0]["per_thousand"] for one in queues)
    assert orders["invocations"] == pytest.approx(1_000 / 5)
    assert mails["calls"]["sqs:ReceiveMessage"] == pytest.approx(1_000 / 10)
    assert mails["invocations"] == 0


def test_other_prices_come_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    shutil.copy(str(files("onefold.observe").joinpath("prices.json")), own)
    table = json.loads(own.read_text(encoding="utf-8"))
    table["regions"]["eu-west-1"] = table["regions"].pop("us-east-1")
    own.write_text(json.dumps(table), encoding="utf-8")
    assert answer(capsys, "--prices", str(own), "--region", "eu-west-1")["region"] == "eu-west-1"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--messages", "many"), 2, "write for example 1M"),
        (("--messages", "0"), 1, "messages of 0 is out of range"),
        (("--duplicates", "1"), 2, "write for example 1%"),
        (("--duplicates", "150%"), 1, "out of range"),
        (("--region", "eu-west-1"), 1, "--prices FILE"),
        (("--prices", "gone.json"), 1, "gone.json cannot be read"),
        (("--send-batch", "11"), 1, "out of range"),
    ],
)
def test_what_cannot_be_is_refused(
    words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cost", "shop:app", *words]) == code
    assert said in capsys.readouterr().err


def test_records_elsewhere_cost_nothing_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    queues = answer(capsys, "--records", "redis://localhost/0")["queues"]
    assert isinstance(queues, list)
    assert all("DynamoDB" not in one["usd_month"] for one in queues)
    assert "servers: workers, Redis, PostgreSQL" in cost.NOT_COUNTED
