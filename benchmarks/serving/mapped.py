"""What an event source mapping costs: `python -m benchmarks.serving.mapped --url URL --count N`.

Sends N messages to a queue, then maps the function `noop` to it and waits until the queue is empty: first a FIFO queue
with one group and batches of 1, so that invocations follow one another, then a standard queue with batches of 10.
Never here: the handler (`handler`).
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import boto3


def emptied_s(sqs: Any, functions: Any, queue: str, arn: str, batch: int, count: int) -> float:
    """Seconds from half the messages until none is left, scaled to all: starting the container is not in it."""
    made = functions.create_event_source_mapping(EventSourceArn=arn, FunctionName="noop", BatchSize=batch)
    marks: dict[int, float] = {}
    while True:
        left = depth(sqs, queue)
        now = time.perf_counter()
        if left <= count // 2:
            marks.setdefault(left, now)
        if left == 0:
            break
        time.sleep(0.002)
    functions.delete_event_source_mapping(UUID=made["UUID"])
    half = max(marks)
    return (marks[0] - marks[half]) * count / half


def depth(sqs: Any, queue: str) -> int:
    wanted = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=wanted)["Attributes"]
    return sum(int(value) for value in found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--count", type=int, required=True)
    options = parser.parse_args()
    settings = {
        "endpoint_url": options.url, "region_name": "us-east-1",
        "aws_access_key_id": "bench", "aws_secret_access_key": "bench",
    }  # fmt: skip
    sqs, functions = boto3.client("sqs", **settings), boto3.client("lambda", **settings)
    figures = {}
    for fifo in (True, False):
        name = f"mapped-{time.time_ns()}" + ".fifo" * fifo
        attributes = {"FifoQueue": "true"} if fifo else {}
        queue = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for first in range(0, options.count, 10):
            entries = [
                {"Id": str(number), "MessageBody": "x" * 200}
                | ({"MessageGroupId": "one", "MessageDeduplicationId": str(first + number)} if fifo else {})
                for number in range(10)
            ]
            sqs.send_message_batch(QueueUrl=queue, Entries=entries)
        taken_s = emptied_s(sqs, functions, queue, arn, 1 if fifo else 10, options.count)
        if fifo:
            figures["invocation_ms"] = taken_s * 1e3 / options.count
        else:
            figures["batch_per_s"] = options.count / taken_s
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
