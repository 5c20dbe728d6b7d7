"""The rows of the local SQS: what is asked of which server, what stands beside it, and the goal. The goals are the issue's.

Never here: clients (`lean`, `boto`, `waiting`), starting servers (`servers`). Invariant: a row in memory stands beside the
fastest other server in memory of the same run, and so does a durable row: the others have nothing durable to compare.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import trials
from benchmarks.rows import Bench, Goal, Pair, Planned, below, ratio_at_least
from benchmarks.serving import servers
from benchmarks.serving.servers import Running
from benchmarks.trials import Figures

Serve = Callable[[Path], AbstractContextManager[Running]]

KINDS = (
    ("send", "send_per_s"),
    ("receive", "receive_per_s"),
    ("delete", "delete_per_s"),
    ("send, batches of 10", "send_batch_per_s"),
    ("receive, batches of 10", "receive_batch_per_s"),
    ("delete, batches of 10", "delete_batch_per_s"),
)
MANY = 16
"""Connections of the client that has many requests under way."""
BACKLOGS = (1_000, 1_000_000)
STARTS = 5
INVOCATIONS = 1_000


def client(module: str, url: str, **options: float | str) -> Figures:
    command = [sys.executable, "-m", f"benchmarks.serving.{module}", "--url", url]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return trials.run_figures(command)


def lean(bench: Bench, serve: Serve, rounds: int, connections: int, share: float = 1) -> Figures:
    rounds = min(rounds, 2) if bench.quick else rounds
    with TemporaryDirectory(dir=bench.work) as directory, serve(Path(directory)) as running:
        return client("lean", running.url, rounds=rounds, connections=connections, share=share)


def boto(bench: Bench, serve: Serve, rounds: int, processes: int) -> Figures:
    with TemporaryDirectory(dir=bench.work) as directory, serve(Path(directory)) as running:
        return client("boto", running.url, rounds=1 if bench.quick else rounds, processes=processes)


def durable(work: Path) -> AbstractContextManager[Running]:
    return servers.onefold(work, file=work / "sqs.db")


def pairs() -> list[Pair]:
    """Everything about the local SQS and its mappings."""
    return [*speed(), *with_boto3(), *flat(), *waiting(), *starting(), *mapping()]


MINISTACK, MOTO = "ministack, in memory", "moto, in memory"


def speed() -> list[Pair]:
    made = []
    for connections in (1, MANY):
        at_once = "one connection" if connections == 1 else f"{connections} connections"
        for kept, serve, goal in (
            ("in memory", servers.onefold, ratio_at_least(3)),
            ("durable", durable, ratio_at_least(1)),
        ):
            about = f"SQS {kept}, {at_once}"
            planned = [Planned(f"{about}: {kind}", "messages/s", figure, goal, MINISTACK) for kind, figure in KINDS]
            beside = {MINISTACK: partial(lean, serve=servers.ministack, rounds=4, connections=connections)}
            if connections == 1 and goal.words.endswith("3"):
                planned.append(Planned(f"{about}: send, beside moto", "messages/s", "send_per_s", goal, MOTO))
                beside[MOTO] = partial(lean, serve=servers.moto, rounds=1, connections=1, share=0.2)
            made.append(Pair(partial(lean, serve=serve, rounds=10, connections=connections), tuple(planned), beside))
    return made


def with_boto3() -> list[Pair]:
    return [
        Pair(
            partial(boto, serve=serve, rounds=4, processes=processes),
            tuple(
                Planned(f"boto3, {processes} process{'es' * (processes > 1)}, {kept}: {kind}", "messages/s", figure,
                        ratio_at_least(1), MINISTACK)
                for kind, figure in (("cycle", "cycle_per_s"), ("cycle of batches", "cycle_batch_per_s"))
            ),
            {MINISTACK: partial(boto, serve=servers.ministack, rounds=4, processes=processes)},
        )
        for processes in (1, 4)
        for kept, serve in (("in memory", servers.onefold), ("durable", durable))
    ]  # fmt: skip


def flat() -> list[Pair]:
    """Rates at two backlogs. Receives take the oldest, so every round replaces some of the backlog."""

    def loaded(bench: Bench) -> Figures:
        small, large = (with_backlog(bench, bench.count(backlog)) for backlog in BACKLOGS)
        return {figure: large[figure] / small[figure] for figure in ("send_per_s", "receive_per_s", "delete_per_s")}

    return [
        Pair(
            loaded,
            tuple(
                Planned(f"{kind}: rate at 1,000,000 messages over that at 1,000", "x", figure,
                        Goal("at least 0.9", "figure", lambda figure: figure >= 0.9))
                for kind, figure in KINDS[:3]
            ),
        )
    ]  # fmt: skip


def with_backlog(bench: Bench, backlog: int) -> Figures:
    made = bench.prepared / f"served-{backlog}"
    if not made.exists():
        made.mkdir()
        with servers.onefold(made, file=made / "sqs.db") as running:
            client("load", running.url, queue="backlog", count=backlog)
    with servers.onefold(made, file=made / "sqs.db") as running:
        return client("lean", running.url, queue="backlog", rounds=4)


def waiting() -> list[Pair]:
    def measure(bench: Bench) -> Figures:
        with TemporaryDirectory(dir=bench.work) as directory, servers.onefold(Path(directory)) as running:
            return client("waiting", running.url, pid=running.pid)

    note = (
        "2,000 receivers, each a long poll on a connection of its own; the server's resident memory over their number."
    )
    return [
        Pair(
            measure,
            (
                Planned("long poll: wake-up, p50", "ms", "wake_p50_ms", below(10, "ms")),
                Planned("long poll: wake-up, p99", "ms", "wake_p99_ms", below(10, "ms")),
                Planned("long poll: memory of a waiting receiver", "kB", "receiver_kb", note=note),
            ),
        )
    ]


def starting() -> list[Pair]:
    def first_answer(bench: Bench, serve: Serve) -> Figures:
        taken = []
        for _ in range(1 if bench.quick else STARTS):
            with TemporaryDirectory(dir=bench.work) as directory, serve(Path(directory)) as running:
                taken.append(running.first_answer_ms)
        return {"ms": median(taken)}

    return [
        Pair(
            partial(first_answer, serve=durable),
            (Planned("onefold serve: start to first answer", "ms", "ms", below(300, "ms"), MINISTACK),),
            {MINISTACK: partial(first_answer, serve=servers.ministack)},
        )
    ]


def mapping() -> list[Pair]:
    def measure(bench: Bench) -> Figures:
        options = ["--function", "noop=benchmarks.serving.handler:noop"]
        with TemporaryDirectory(dir=bench.work) as place, servers.onefold(Path(place), options=options) as running:
            return client("mapped", running.url, count=bench.count(INVOCATIONS))

    return [
        Pair(
            measure,
            (
                Planned(
                    "mapping: a warm invocation", "ms", "invocation_ms", below(2, "ms"),
                    note="A FIFO queue with one message group and batch size 1, so invocations follow one another: receive, "
                    "invoke, answer, delete. The handler does nothing; the time is all overhead.",
                ),
                Planned("mapping: messages in batches of 10", "messages/s", "batch_per_s"),
            ),
        )
    ]  # fmt: skip
