"""Powertools for AWS Lambda: what its idempotency costs around a plain function, on a dictionary for a store.

Prints `first_us` and `duplicate_us` for one call: `python -m benchmarks.peers.powertools_memory --count 5000`. The store is
the smallest that its contract allows, so that what is measured is the library and not a database.
"""

from __future__ import annotations

import argparse
import json
import time

from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer, DataRecord

from benchmarks import probe


class InMemory(BasePersistenceLayer):
    def __init__(self) -> None:
        super().__init__()
        self.records: dict[str, DataRecord] = {}

    def _get_record(self, idempotency_key: str) -> DataRecord:
        try:
            return self.records[idempotency_key]
        except KeyError:
            raise IdempotencyItemNotFoundError from None

    def _put_record(self, data_record: DataRecord) -> None:
        found = self.records.get(data_record.idempotency_key)
        if found is not None and not found.is_expired:
            raise IdempotencyItemAlreadyExistsError(old_data_record=found)
        self.records[data_record.idempotency_key] = data_record

    def _update_record(self, data_record: DataRecord) -> None:
        self.records[data_record.idempotency_key] = data_record

    def _delete_record(self, data_record: DataRecord) -> None:
        self.records.pop(data_record.idempotency_key, None)


@idempotent_function(
    data_keyword_argument="order",
    persistence_store=InMemory(),
    config=IdempotencyConfig(event_key_jmespath="order_id"),
)
def guarded(order: dict[str, str]) -> str:
    return order["order_id"]


def us_a_call(orders: list[dict[str, str]]) -> float:
    started = time.perf_counter()
    for order in orders:
        guarded(order=order)
    return (time.perf_counter() - started) / len(orders) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=5_000)
    options = parser.parse_args()
    orders = [json.loads(probe.body(number)) for number in range(options.count)]
    print(json.dumps({"first_us": us_a_call(orders), "duplicate_us": us_a_call(orders)}))


if __name__ == "__main__":
    main()
