"""What a guard alone asks of DynamoDB: the actions that docs/iam.md names, and what the absence of each looks like."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

import onefold
from onefold.engines.aws.dynamodb.schema import definition
from tests.emulators.dynamodb_stub import Stub, error_body

pytestmark = pytest.mark.filterwarnings("ignore:The table .* does not remove old items")  # a new one of the stub
_NUMBERS = itertools.count(1)
_PAGE = Path(__file__).parents[3] / "docs" / "iam.md"
_PARTIQL = {"BatchExecuteStatement": "PartiQLInsert"}  # the call, and the action of its statements here


class Bank:
    """A guarded function on a table whose role lacks some actions."""

    def __init__(self, stub: Stub, *denied: str) -> None:
        self.asked: set[str] = set()
        self.denied = set(denied)
        self.ends: Callable[[], str] = lambda: "paid"
        self.calls = 0
        stub.interfere = self._interfere
        table = f"guard-{next(_NUMBERS)}"
        boto3.client("dynamodb", region_name="eu-west-1", endpoint_url=stub.url).create_table(**definition(table))
        self.asked.clear()
        self.store = onefold.store(f"dynamodb://eu-west-1/{table}?dynamodb={stub.url}")

        @onefold.once(key="{invoice}", store=self.store, name="charge", on_running="raise")
        def charge(invoice: str) -> str:
            self.calls += 1
            return self.ends()

        self.charge = charge

    def _interfere(
        self, operation: str, request: dict[str, Any], carry_out: Callable[[], tuple[int, bytes]]
    ) -> tuple[int, bytes]:
        action = _PARTIQL.get(operation, operation)
        if action in self.denied:
            said = f"User: role is not authorized to perform: dynamodb:{action}"
            return 400, error_body("AccessDeniedException", said)
        self.asked.add(f"dynamodb:{action}")
        return (200, b'{"Items": [], "Count": 0}') if operation == "Query" else carry_out()

    def fails(self, error: BaseException) -> None:
        def ends() -> str:
            raise error

        self.ends = ends

    def pays(self) -> None:
        self.ends = lambda: "paid"


def minimal() -> set[str]:
    """The actions of the policy on the page."""
    (policy,) = re.findall(r"```json title=\"a guard alone\"\n(.+?)```", _PAGE.read_text(), re.DOTALL)
    return set(re.findall(r"dynamodb:[A-Z]\w+", policy))


def test_a_guard_asks_for_no_more_than_the_page_names(stub: Stub) -> None:
    bank = Bank(stub)
    assert [bank.charge("a") for _ in range(2)] == ["paid"] * 2
    bank.fails(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        bank.charge("b")
    bank.pays()
    assert bank.charge("b") == "paid"
    bank.fails(SystemExit())
    with pytest.raises(SystemExit):
        bank.charge("c")
    bank.pays()
    assert bank.charge("c") == "paid"
    assert bank.asked <= minimal()
    assert minimal() - bank.asked <= {"dynamodb:BatchGetItem", "dynamodb:PartiQLUpdate", "dynamodb:Query"}


@pytest.mark.parametrize("action", ["PartiQLInsert", "PutItem"])
def test_a_call_without_the_permission_to_claim_names_it_and_is_not_made(stub: Stub, action: str) -> None:
    bank = Bank(stub, action)
    made = 0
    if action == "PutItem":  # the first claim of a process goes with a note, in a batch
        assert bank.charge("first") == "paid"
        made = 1
    for _ in range(2):
        with pytest.raises(onefold.errors.UsageError, match=f"Add the action dynamodb:{action}"):
            bank.charge("a")
    assert bank.calls == made


def test_without_the_permission_for_history_calls_go_on_and_a_death_is_not_passed_over(
    stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    bank = Bank(stub, "BatchWriteItem")
    assert bank.charge("a") == "paid"
    bank.fails(ValueError("no"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            bank.charge("b")
    (warned,) = [one.getMessage() for one in caplog.records if one.name == "onefold"]
    assert warned.startswith("The history of charge is not kept: AWS does not allow dynamodb:BatchWriteItem on ")
    assert "Add the action dynamodb:BatchWriteItem" in warned
    bank.pays()
    assert bank.charge("b") == "paid"
    bank.fails(SystemExit())
    with pytest.raises(SystemExit):
        bank.charge("c")
    bank.pays()
    made = bank.calls
    with pytest.raises(onefold.errors.UsageError, match="Add the action dynamodb:BatchWriteItem"):
        bank.charge("c")
    assert bank.calls == made, "what may have happened is not made again unseen"
