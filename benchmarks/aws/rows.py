"""The rows of the AWS part: a Lambda handler's batch beside Powertools', cold imports, a worker on SQS.

The goals are the issue's. Never here: what is timed (`batch`, `cold`, `worker`). Invariant: subject and reference talk to
servers of the same kind, started for each measurement, with the same latency on every answer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import trials
from benchmarks.rows import Bench, Goal, Pair, Planned, above, ratio_at_most
from benchmarks.serving import servers
from benchmarks.trials import Figures
from onefold.testing.wire_faults import wire_faults
from tests.emulators import dynamodb_stub
from tests.emulators import servers as emulators

LATENCY_MS = 5
POWERTOOLS = "Powertools for AWS Lambda"
COLD_STARTS = 10
_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def program(module: str, **options: str | int) -> Figures:
    command = [sys.executable, "-m", f"benchmarks.aws.{module}"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return trials.run_figures(command, trials.process_environment(_ENVIRONMENT))


@contextmanager
def stub() -> Iterator[str]:
    """DynamoDB as AWS documents it: a batch statement that fails its condition returns the item that is there."""
    with dynamodb_stub.process(latency_ms=LATENCY_MS) as url:
        yield url


@contextmanager
def ministack() -> Iterator[str]:
    """An emulator that returns no items with the errors of a batch, behind a wire with the same latency.

    The tests' own: the version among the peers answers a batch of updates with several SETs with errors.
    """
    with emulators.ministack() as running, wire_faults(running, latency_ms=LATENCY_MS) as wire:
        yield wire.url


def batch(bench: Bench, subject: str, dynamodb: str, history: str = "off") -> Figures:
    with (
        TemporaryDirectory(dir=bench.work) as place,
        servers.onefold(Path(place)) as sqs,
        {"stub": stub, "ministack": ministack}[dynamodb]() as url,
    ):
        return program(
            "batch", subject=subject, dynamodb=url, sqs=sqs.url, history=history, batches=3 if bench.quick else 20
        )


def cold(bench: Bench, subject: str) -> Figures:
    starts = [program("cold", subject=subject) for _ in range(1 if bench.quick else COLD_STARTS)]
    return {figure: median(start[figure] for start in starts) for figure in starts[0]}


def worker(bench: Bench) -> Figures:
    with (
        TemporaryDirectory(dir=bench.work) as place,
        servers.onefold(Path(place)) as sqs,
        wire_faults(sqs.url, latency_ms=LATENCY_MS) as wire,
        stub() as dynamodb,
    ):
        # Also in a quick run: of fewer, the first job of each thread (alone, until its time is known) would be most.
        return program("worker", sqs=wire.url, dynamodb=dynamodb, count=2_000)


def at_most(limit: float) -> Goal:
    return Goal(f"at most {limit:g}", "figure", lambda figure: figure <= limit)


def pairs() -> list[Pair]:
    """Everything about AWS."""
    return [
        Pair(
            partial(batch, subject="onefold", dynamodb="stub"),
            (
                Planned("Lambda, 10 new records: calls", "calls", "first_calls", ratio_at_most(1 / 8), POWERTOOLS),
                Planned("Lambda, 10 new records: time", "ms", "first_ms", ratio_at_most(1 / 6), POWERTOOLS),
                Planned("Lambda, 10 duplicates: calls", "calls", "duplicate_calls", ratio_at_most(1 / 8), POWERTOOLS),
                Planned("Lambda, 10 duplicates: time", "ms", "duplicate_ms", ratio_at_most(1 / 6), POWERTOOLS),
            ),
            {POWERTOOLS: partial(batch, subject="powertools", dynamodb="stub")},
        ),
        Pair(
            partial(batch, subject="onefold", dynamodb="stub", history="brief"),
            (
                Planned("Lambda with history, 10 new records: calls", "calls", "first_calls"),
                Planned("Lambda with history, 10 duplicates: calls", "calls", "duplicate_calls",
                        note="history=\"brief\", the default: that they were duplicates is kept for `onefold why`."),
            ),
        ),
        Pair(
            partial(batch, subject="onefold", dynamodb="ministack"),
            (
                Planned("Lambda on ministack, 10 new records: calls", "calls", "first_calls", at_most(3), POWERTOOLS),
                Planned("Lambda on ministack, 10 duplicates: calls", "calls", "duplicate_calls", at_most(2), POWERTOOLS),
            ),
            {POWERTOOLS: partial(batch, subject="powertools", dynamodb="ministack")},
        ),
        Pair(
            partial(cold, subject="onefold"),
            (
                Planned("Lambda: cold import of the guard", "ms", "import_ms", ratio_at_most(0.5), POWERTOOLS,
                        note="boto3 not counted on either side."),
                Planned("Lambda: size of the packages", "MB", "megabytes", None, POWERTOOLS,
                        note="Without boto3 and without compiled caches."),
            ),
            {POWERTOOLS: partial(cold, subject="powertools")},
        ),
        Pair(
            worker,
            (
                Planned("worker on SQS: jobs", "jobs/s", "jobs_per_s"),
                Planned("worker on SQS: messages a receive that found some", "messages", "per_receive",
                        above(8, "messages")),
                Planned("worker on SQS: calls for 10 jobs", "calls", "calls_per_10", at_most(5),
                        note="Receive, claim, settle and delete of ten messages are one call each."),
            ),
        ),
    ]  # fmt: skip
