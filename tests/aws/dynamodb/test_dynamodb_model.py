"""Random histories of several workers on DynamoDB, answer by answer the same as in a dumber store.

Also when every other call's answer is lost and botocore makes the call again: nobody is to notice.

The histories and the model are those of the other stores (`tests/property/test_store_model.py`).
"""

from __future__ import annotations

import os

from hypothesis import settings

from onefold.engines.aws.dynamodb.backend import DynamoBackend
from onefold.engines.aws.dynamodb.items import Layout
from onefold.entropy import SeededEntropy
from tests.aws.dynamodb.tables import HastyClock, LocalClient, LocalSession
from tests.emulators import dynamodb_stub
from tests.property.test_store_model import Workers

SOAK = os.environ.get("ONEFOLD_SOAK") == "1"


class InBatches(Workers):
    batched, old_items, lost = True, True, 0.0
    layout: Layout = 1

    def open_store(self) -> None:
        chance = SeededEntropy(1)
        client = LocalClient(dynamodb_stub.Store(old_items=self.old_items), loses=lambda: chance.fraction() < self.lost)
        books = DynamoBackend(
            LocalSession(client), "books", HastyClock(), SeededEntropy(0), batched=self.batched, layout=self.layout
        )
        books.create()
        self.store = books.store


class InBatchesThatHoldNoOldItems(InBatches):
    old_items = False


class RecordByRecord(InBatches):
    batched = False


class WithLostAnswers(InBatches):
    lost = 0.5


class WithLostAnswersAndNoOldItems(InBatchesThatHoldNoOldItems):
    lost = 0.5


class WithLostAnswersRecordByRecord(RecordByRecord):
    lost = 0.5


class SpreadWithLostAnswers(WithLostAnswersAndNoOldItems):
    layout: Layout = 2


MACHINES = (
    InBatches, InBatchesThatHoldNoOldItems, RecordByRecord,
    WithLostAnswers, WithLostAnswersAndNoOldItems, WithLostAnswersRecordByRecord,
    SpreadWithLostAnswers,
)  # fmt: skip
for machine in MACHINES:
    machine.TestCase.settings = settings(max_examples=2_000 if SOAK else 60, stateful_step_count=25)

TestInBatches = InBatches.TestCase
TestInBatchesThatHoldNoOldItems = InBatchesThatHoldNoOldItems.TestCase
TestRecordByRecord = RecordByRecord.TestCase
TestWithLostAnswers = WithLostAnswers.TestCase
TestWithLostAnswersAndNoOldItems = WithLostAnswersAndNoOldItems.TestCase
TestWithLostAnswersRecordByRecord = WithLostAnswersRecordByRecord.TestCase
TestSpreadWithLostAnswers = SpreadWithLostAnswers.TestCase
