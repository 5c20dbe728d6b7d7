"""Installs other queues beside onefold and runs the same jobs on each: `python -m benchmarks.peers` (`make bench-peers`).

Rounds go through all tools in turn, so that a slow minute of the machine falls on all of them; figures are medians over
the rounds. Never here: a tool's own API (each has a module beside this one). Invariant: a tool that fails is shown with
its failure and stops no other.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import report, trials
from benchmarks.peers import environment
from benchmarks.peers.environment import say
from benchmarks.tools import CELERY, DBOS, HUEY, ONEFOLD, ONEFOLD_REPEATABLE, TASKIQ, TASKIQ_SYNCED
from benchmarks.trials import ROOT, Figures, Tool, TrialFailed, end_cleanly_when_told

RECOVERY_ROUNDS = 3
"""Not more, and none after a first "no": a tool that does not run the job again takes the whole 20 s each time."""


SENDS = 10_000


@dataclass
class Peer:
    """A tool, how many jobs it is given (a few seconds' worth), and what was measured, a value per round."""

    tool: Tool
    survives: str
    jobs: int
    bulk: bool = False
    figures: dict[str, list[float]] = field(default_factory=dict)
    problem: str = ""

    def measure(self, work: Path, round_number: int, quick: bool) -> None:
        jobs = self.jobs // 20 if quick else self.jobs
        self.keep(trials.send(self.tool, work, min(jobs, SENDS)), per_s="sent_per_s")
        if self.bulk:
            self.keep(trials.send(self.tool, work, jobs, bulk=True), per_s="bulk_per_s")
        self.keep(trials.drain(self.tool, work, jobs), per_s="per_s", rss_mb="rss_mb")
        waiting = trials.latency(self.tool, work, seconds=1 if quick else 5)
        self.keep(waiting, p50_ms="p50_ms", p99_ms="p99_ms", idle_percent="idle_percent")
        if round_number == 0 or (round_number < RECOVERY_ROUNDS and "again_s" in self.figures):
            self.keep(trials.recovery(self.tool, work), again_s="again_s")

    def keep(self, measured: Figures, **names: str) -> None:
        for name, kept_as in names.items():
            if name in measured:
                self.figures.setdefault(kept_as, []).append(measured[name])

    def result(self) -> report.PeerFigures:
        return report.PeerFigures(self.tool.name, self.survives, self.figures, self.problem)


def peers() -> list[Peer]:
    return [
        Peer(ONEFOLD, "power cut", 20_000, bulk=True),
        Peer(ONEFOLD_REPEATABLE, "power cut", 50_000, bulk=True),
        Peer(HUEY, "power cut", 6_000),
        Peer(TASKIQ, "neither", 10_000, bulk=True),
        Peer(TASKIQ_SYNCED, "power cut", 10_000, bulk=True),
        Peer(CELERY, "neither", 3_000),
        Peer(DBOS, "power cut", 1_500),
    ]


def measure(chosen: list[Peer], rounds: int, quick: bool, work: Path) -> None:
    for round_number in range(rounds):
        for peer in chosen:
            if peer.problem:
                continue
            say(f"round {round_number + 1} of {rounds}: {peer.tool.name} ({peer.survives})")
            try:
                peer.measure(work, round_number, quick)
            except TrialFailed as error:
                peer.problem = str(error).partition("\n")[0][:200]
                say(str(error))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--date", help="YYYY-MM-DD, printed on the page; without it the page is not written")
    parser.add_argument("--only", help="only tools whose name contains this; the page is not written")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round with few jobs; the page is not written")
    parser.add_argument("--install", action="store_true", help="install what is needed and measure nothing")
    options = parser.parse_args()
    end_cleanly_when_told()
    environment.install()
    if options.install:
        return
    chosen = [peer for peer in peers() if (options.only or "").lower() in peer.tool.name.lower()]
    rounds = 1 if options.quick else options.rounds
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="bench-") as directory:
        work = Path(directory)
        machine = report.this_machine(options.date or "undated", work)
        measure(chosen, rounds, options.quick, work)
        machine = machine.at_the_end(work)
    results = [peer.result() for peer in chosen]
    print(machine.sentence())
    print(report.table_of_peers(results))
    if options.date and not options.only and not options.quick:
        report.write("peers", machine, results)


if __name__ == "__main__":
    main()
