"""A worker on SQS and DynamoDB drains a queue: jobs a second, and the calls that this took.

`python -m benchmarks.aws.worker --sqs URL --dynamodb URL --count N` prints one JSON line. The handler does nothing.
Never here: the servers. Invariant: the queue is full before the clock starts, and every job is done once.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import Counter
from typing import Any

from botocore.httpsession import URLLib3Session

from benchmarks.trials import Figures
from onefold import App
from onefold.options import WorkerSettings
from onefold.runner.worker_setup import make_worker

REGION = "eu-west-1"
THREADS = 32


def drained(sqs: str, dynamodb: str, count: int) -> Figures:
    app = App("bench", url=f"aws://{REGION}?table=bench&create=yes&sqs={sqs}&dynamodb={dynamodb}")
    orders = app.queue("orders", visibility="5m")
    done: set[str] = set()

    @app.job(orders, key="{order_id}", timeout="20s", effect="repeatable")
    def book(order: dict[str, Any]) -> None:
        done.add(order["order_id"])
        if len(done) == count:
            finished.set()

    finished = threading.Event()
    book.send_many([{"order_id": f"o-{number}"} for number in range(count)])
    calls, received = counting()
    runtime = app.runtime()
    worker = make_worker(
        runtime, app.jobs, app.registry.job_of, settings=WorkerSettings(threads=THREADS, until_empty=True)
    )
    begun = time.perf_counter()
    running = threading.Thread(target=worker.run)
    running.start()
    if not finished.wait(600):
        raise SystemExit(f"only {len(done)} of {count} jobs were done")
    took_s = time.perf_counter() - begun
    running.join()
    app.close()
    useful = [number for number in received if number]
    return {
        "jobs_per_s": count / took_s,
        "per_receive": sum(useful) / len(useful),
        "calls_per_10": 10 * sum(calls.values()) / count,
    }


def counting() -> tuple[Counter[str], list[int]]:
    """Counts this process's requests by action, and notes how many messages each receive brought."""
    calls: Counter[str] = Counter()
    received: list[int] = []
    real = URLLib3Session.send

    def send(session: URLLib3Session, request: Any) -> Any:
        action = request.headers.get("X-Amz-Target", b"?")
        action = (action.decode() if isinstance(action, bytes) else action).rpartition(".")[2]
        answer = real(session, request)
        if action == "ReceiveMessage":
            found = len(json.loads(answer.content).get("Messages", ()))
            received.append(found)
            if not found:
                return answer  # looking at an empty queue is no call for a job
        calls[action] += 1
        return answer

    URLLib3Session.send = send
    return calls, received


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sqs", required=True)
    parser.add_argument("--dynamodb", required=True)
    parser.add_argument("--count", type=int, default=2_000)
    options = parser.parse_args()
    print(json.dumps(drained(options.sqs, options.dynamodb, options.count)))


if __name__ == "__main__":
    main()
