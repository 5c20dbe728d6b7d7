"""Milliseconds that importing a Lambda's guard takes in a fresh process, boto3 and what it imports not counted.

`python -m benchmarks.aws.cold --subject onefold` prints one JSON line. Counted for both is every module that a first batch
on SQS and DynamoDB needs, compiled caches present, whether it is imported before that batch or by it:

    onefold     all of them, and declaring an app with a job, its key and its handler, which executes code of theirs. What
                opening an engine would import is named, because opening itself makes a client.
    Powertools  batch processor and idempotency with its DynamoDB layer, which import all they need; making the processor and
                the configuration. Making the layer, decorating and the first record import nothing more; they do not count.

Beyond these, a first batch of either loads what boto3's HTTP client needs; tests/aws/test_cold_import.py watches both.
Each has what a function's package holds of it: typing_extensions is a dependency of Powertools, not of onefold, whose
msgspec does without. The sizes are those of the same packages without compiled caches.
Never here: clients. Invariant: nothing of either is imported before the clock starts.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import time
from pathlib import Path

PACKAGES = {
    "onefold": ("onefold", "msgspec"),
    "powertools": ("aws_lambda_powertools", "jmespath", "typing_extensions"),
}


def onefold_ms() -> float:
    begun = time.perf_counter()
    import onefold.engines.aws.dynamodb.backend  # what opening an engine and its log would import
    import onefold.engines.aws.session
    import onefold.engines.aws.sqs
    import onefold.engines.composite
    import onefold.engines.urls
    import onefold.runtime.runtime

    app = onefold.App("bench")

    @app.job(app.queue("orders"), key="{order_id}")
    def book(order: dict[str, str]) -> str:
        return order["order_id"]

    app.lambda_handler()
    return (time.perf_counter() - begun) * 1e3


def powertools_ms() -> float:
    begun = time.perf_counter()
    from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
    from aws_lambda_powertools.utilities.idempotency import (
        DynamoDBPersistenceLayer,
        IdempotencyConfig,
        idempotent_function,
    )

    assert process_partial_response
    assert DynamoDBPersistenceLayer
    BatchProcessor(event_type=EventType.SQS)
    config = IdempotencyConfig(event_key_jmespath="order_id")

    def book(order: dict[str, str]) -> str:
        return order["order_id"]

    assert idempotent_function
    assert config
    assert book
    return (time.perf_counter() - begun) * 1e3


def megabytes(names: tuple[str, ...]) -> float:
    total = 0
    for name in names:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        place = Path(spec.origin)
        files = place.parent.rglob("*") if place.name == "__init__.py" else [place]
        total += sum(file.stat().st_size for file in files if file.is_file() and "__pycache__" not in file.parts)
    return total / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", choices=tuple(PACKAGES), required=True)
    subject = parser.parse_args().subject
    import boto3.dynamodb.conditions
    import boto3.dynamodb.types  # noqa: F401 - Powertools imports these beside boto3 itself

    if "typing_extensions" not in PACKAGES[subject]:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # importing it fails, as in the function
    gc.collect()  # what the imports of boto3 left to the collector is boto3's too
    took_ms = onefold_ms() if subject == "onefold" else powertools_ms()
    print(json.dumps({"import_ms": took_ms, "megabytes": megabytes(PACKAGES[subject])}))


if __name__ == "__main__":
    main()
