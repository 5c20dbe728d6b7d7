"""A batch of 10 SQS records, delivered twice, by a Lambda handler of onefold or of Powertools: calls and time.

`python -m benchmarks.aws.batch --subject onefold --dynamodb URL --sqs URL` prints the medians as one JSON line. Every
request that botocore puts on the wire is counted, whatever the service. The handler of both does nothing but answer, so
the time is the guard's and the network's.
Never here: the server. Invariant: both guard every record by its order id, answer a partial batch response, and fail when
one record was not done.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from botocore.httpsession import URLLib3Session

from benchmarks.trials import Figures

RECORDS = 10
REGION = "eu-west-1"
ACCOUNT_ARN = f"arn:aws:sqs:{REGION}:000000000000"
Handler = Callable[[dict[str, Any], Any], dict[str, Any]]


class Context:
    """What Lambda hands to a handler beside the event."""

    function_name = "orders"
    memory_limit_in_mb = 128
    invoked_function_arn = f"arn:aws:lambda:{REGION}:000000000000:function:orders"
    aws_request_id = "00000000-0000-0000-0000-000000000000"

    def get_remaining_time_in_millis(self) -> int:
        return 30_000


def event(batch: int) -> dict[str, Any]:
    """Ten records of a batch, as SQS's mapping sends them; the body as a producer without onefold writes it."""
    records = []
    for number in range(RECORDS):
        order = f"o-{batch}-{number}"
        records.append(
            {
                "messageId": f"{batch:08d}-0000-4000-8000-{number:012d}",
                "receiptHandle": f"receipt-{batch}-{number}",
                "body": json.dumps({"order_id": order, "parcel": "12 kg"}),
                "attributes": {
                    "ApproximateReceiveCount": "1",
                    "SentTimestamp": "1795245763661",
                    "SenderId": "AIDAEXAMPLE",
                    "ApproximateFirstReceiveTimestamp": "1795245763903",
                },
                "messageAttributes": {},
                "md5OfBody": "00000000000000000000000000000000",
                "eventSource": "aws:sqs",
                "eventSourceARN": f"{ACCOUNT_ARN}:orders",
                "awsRegion": REGION,
            }
        )
    return {"Records": records}


def onefold_handler(dynamodb: str, sqs: str, history: str) -> Handler:
    from onefold import App

    url = f"aws://{REGION}?table=bench&create=yes&sqs={sqs}&dynamodb={dynamodb}"
    app = App("bench", url=url, history=history)  # type: ignore[arg-type]  # checked by the app
    orders = app.queue("orders", visibility="5m")

    @app.job(orders, key="{order_id}", timeout="20s")
    def book(order: dict[str, Any]) -> str:
        return f"label-{order['order_id']}"

    return app.lambda_handler()


def powertools_handler(dynamodb: str, *_: str) -> Handler:
    import boto3
    from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
    from aws_lambda_powertools.utilities.idempotency import (
        DynamoDBPersistenceLayer,
        IdempotencyConfig,
        idempotent_function,
    )

    client = boto3.client("dynamodb", endpoint_url=dynamodb, region_name=REGION)
    client.create_table(
        TableName="powertools",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    layer = DynamoDBPersistenceLayer(table_name="powertools", boto3_client=client)
    config = IdempotencyConfig(event_key_jmespath="order_id")
    processor = BatchProcessor(event_type=EventType.SQS)

    @idempotent_function(data_keyword_argument="order", persistence_store=layer, config=config)
    def book(order: dict[str, Any]) -> str:
        return f"label-{order['order_id']}"

    def record_handler(record: Any) -> str:
        return book(order=json.loads(record.body))

    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        config.register_lambda_context(context)
        answer = process_partial_response(event, record_handler, processor, context)
        return dict(answer)

    return handler


class Calls:
    """Counts the requests of this process from now on."""

    def __init__(self) -> None:
        self.count = 0
        real = URLLib3Session.send

        def send(session: URLLib3Session, request: Any) -> Any:
            self.count += 1
            return real(session, request)

        URLLib3Session.send = send


def measured(handler: Handler, calls: Calls, batch: int) -> tuple[float, int]:
    """Milliseconds and calls of one invocation."""
    before, begun = calls.count, time.perf_counter()
    answer = handler(event(batch), Context())
    took_ms = (time.perf_counter() - begun) * 1e3
    if answer != {"batchItemFailures": []}:
        raise SystemExit(f"not all records were done: {answer}")
    return took_ms, calls.count - before


def figures(subject: str, dynamodb: str, sqs: str, history: str, batches: int) -> Figures:
    handler = {"onefold": onefold_handler, "powertools": powertools_handler}[subject](dynamodb, sqs, history)
    calls = Calls()
    measured(handler, calls, 0)  # clients, connections
    first, again = [], []
    for batch in range(1, batches + 1):
        first.append(measured(handler, calls, batch))
        again.append(measured(handler, calls, batch))
    return {
        "first_ms": median(ms for ms, _ in first),
        "first_calls": max(calls for _, calls in first),
        "duplicate_ms": median(ms for ms, _ in again),
        "duplicate_calls": max(calls for _, calls in again),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", choices=("onefold", "powertools"), required=True)
    parser.add_argument("--dynamodb", required=True)
    parser.add_argument("--sqs", required=True)
    parser.add_argument("--history", choices=("off", "brief", "full"), default="off")
    parser.add_argument("--batches", type=int, default=20)
    options = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_DEFAULT_REGION": REGION}
    print(json.dumps(figures(options.subject, options.dynamodb, options.sqs, options.history, options.batches)))


if __name__ == "__main__":
    main()
