"""The client that people use: boto3, from one process or several, each with a queue of its own.

`python -m benchmarks.serving.boto --url URL --rounds N --processes P` prints messages a second, all processes together,
for whole cycles (send, receive, delete) one by one and in batches of 10. Most of the time is boto3's own; what is compared
is what a test suite would feel. Never here: prepared requests (`lean`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from typing import Any

SINGLE = 50
BATCHES = 20
BATCH = 10
BODY = "x" * 200


def cycles(url: str, rounds: int, name: str, start: Any) -> dict[str, float]:
    """Runs so many rounds after all processes are ready; when each kind began and ended, and its messages."""
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "sqs", endpoint_url=url, region_name="us-east-1", aws_access_key_id="bench", aws_secret_access_key="bench",
        config=Config(retries={"total_max_attempts": 2}),
    )  # fmt: skip
    queue = client.create_queue(QueueName=name)["QueueUrl"]
    entries = [{"Id": str(number), "MessageBody": BODY} for number in range(BATCH)]
    one_by_one(client, queue, 5)
    start.wait()
    began = time.monotonic()
    for _ in range(rounds):
        one_by_one(client, queue, SINGLE)
    between = time.monotonic()
    for _ in range(rounds * BATCHES):
        client.send_message_batch(QueueUrl=queue, Entries=entries)
        got = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=BATCH).get("Messages", [])
        gone = [{"Id": str(place), "ReceiptHandle": each["ReceiptHandle"]} for place, each in enumerate(got)]
        client.delete_message_batch(QueueUrl=queue, Entries=gone)
    return {"single_s": between - began, "batch_s": time.monotonic() - between}


def one_by_one(client: Any, queue: str, count: int) -> None:
    for _ in range(count):
        client.send_message(QueueUrl=queue, MessageBody=BODY)
        (got,) = client.receive_message(QueueUrl=queue)["Messages"]
        client.delete_message(QueueUrl=queue, ReceiptHandle=got["ReceiptHandle"])


def process(url: str, rounds: int, name: str, start: Any, answers: Any) -> None:
    answers.put(cycles(url, rounds, name, start))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(options.processes), context.Queue()
    stamp = time.time_ns()
    running = [
        context.Process(target=process, args=(options.url, options.rounds, f"boto-{stamp}-{number}", start, answers))
        for number in range(options.processes)
    ]
    for each in running:
        each.start()
    taken = [answers.get(timeout=300) for _ in running]
    for each in running:
        each.join()
    single = options.rounds * SINGLE * options.processes
    batched = options.rounds * BATCHES * BATCH * options.processes
    figures = {
        "cycle_per_s": single / max(each["single_s"] for each in taken),
        "cycle_batch_per_s": batched / max(each["batch_s"] for each in taken),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
