"""The outside of a measured process: starts tools in fresh processes, measures them, and ends what it started.

A `Tool` is a module that `benchmarks.probe` can drive. The trials: send one by one or in bulk, drain what
was sent, the latency and the idle processor time of a waiting worker, and what happens to the job of a killed worker.

Never here: a tool's own API, goals, tables. Invariant: every wait has a bound, and no process outlives its trial.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROCESS_S = 600
"""How long one measured process may take before the trial fails."""
DRAIN_S = 180
POLL_S = 0.005
Figures = dict[str, float]


class TrialFailed(Exception):
    """A measured process ended, or did not do its work in time. The message says which and what it printed."""


def no_server() -> AbstractContextManager[Mapping[str, str]]:
    return nullcontext({})


@dataclass(frozen=True)
class Tool:
    """How to run one tool.

    Args:
        name: for people.
        module: what `benchmarks.probe` drives.
        python: the interpreter of the tool's environment.
        server: starts what the tool needs for one trial, and gives the environment variables that say where it is.
        settings: environment variables of the tool's module.
    """

    name: str
    module: str
    python: str = sys.executable
    server: Callable[[], AbstractContextManager[Mapping[str, str]]] = no_server
    settings: Mapping[str, str] = field(default_factory=dict)


def end_cleanly_when_told() -> None:
    """Lets SIGTERM end the program as Ctrl-C does: what it started is ended and its files are removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def wait_until(met: Callable[[], bool], seconds: float, what: str) -> None:
    """Waits for a condition; raises TrialFailed naming it after `seconds`."""
    ends_at = time.monotonic() + seconds
    while not met():
        if time.monotonic() > ends_at:
            raise TrialFailed(f"{what}: not within {seconds:.0f} s")
        time.sleep(POLL_S)


def run(command: Sequence[str], environment: Mapping[str, str] | None = None, seconds: float = PROCESS_S) -> str:
    """Runs a process to its end and returns what it printed; raises TrialFailed when it failed or took too long."""
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=process_environment(environment or {}), capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TrialFailed(f"{' '.join(command[1:4])}: not done within {seconds:.0f} s") from None
    if ended.returncode != 0:
        last_line, said = (
            (ended.stderr.strip().splitlines() or ["no word"])[-1],
            ended.stderr.strip()[-2_000:],
        )
        raise TrialFailed(f"{' '.join(command[1:4])}: exit code {ended.returncode}: {last_line}\n{said}")
    return ended.stdout


def run_figures(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Figures:
    """Runs a process and reads the figures in its last line."""
    figures: Figures = json.loads(run(command, environment).strip().splitlines()[-1])
    return figures


def elapsed_ms(command: Sequence[str]) -> float:
    """Runs a process and returns the milliseconds from its start to its exit."""
    started = time.monotonic()
    run(command)
    return (time.monotonic() - started) * 1e3


def process_environment(added: Mapping[str, str]) -> dict[str, str]:
    """The environment of a measured process. Every program has its byte code, as an installed package has."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "PYTHONWARNINGS": "ignore",
        **added,
    }


class Trial:
    """A tool's files and worker processes during one measurement; use as a context, which ends them all."""

    def __init__(self, tool: Tool, directory: Path, job: str, every: int, server: Mapping[str, str]) -> None:
        self.tool = tool
        self.reports = directory / "reports"
        self.reports.mkdir()
        (directory / "place").mkdir()
        self.log = directory / "workers.log"
        self.environment = {
            **tool.settings, **server, "BENCH_PLACE": str(directory / "place"), "BENCH_REPORTS": str(self.reports),
            "BENCH_EVERY": str(every),
        }  # fmt: skip
        self.job = job
        self.workers: list[subprocess.Popen[bytes]] = []

    def send(self, count: int, *options: str) -> Figures:
        command = [
            self.tool.python,
            "-m",
            "benchmarks.probe",
            self.tool.module,
            "send",
            "--count",
            str(count),
            *options,
        ]
        answer = run(command, self.environment).strip()
        return json.loads(answer.splitlines()[-1]) if answer else {}

    def start_worker(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            worker = subprocess.Popen(
                [self.tool.python, "-m", "benchmarks.probe", self.tool.module, "worker"], cwd=ROOT, stdout=log, stderr=log,
                env=process_environment({**self.environment, "BENCH_JOB": self.job}), start_new_session=True,
            )  # fmt: skip
        self.workers.append(worker)
        return worker

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """SIGKILL to the worker and every process it started."""
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def wait_for(self, met: Callable[[], bool], seconds: float, what: str) -> None:
        try:
            wait_until(lambda: met() or self.all_ended(), seconds, f"{self.tool.name}: {what}")
        except TrialFailed as error:
            raise TrialFailed(f"{error}; its workers printed: {self.printed()}") from None
        if not met():
            raise TrialFailed(f"{self.tool.name}: its workers ended by themselves and printed: {self.printed()}")

    def all_ended(self) -> bool:
        return all(worker.poll() is not None for worker in self.workers)

    def printed(self) -> str:
        return self.log.read_text(errors="replace").strip()[-2_000:] or "nothing"

    def shares(self) -> list[Figures]:
        """What the worker processes have reported so far, one per process."""
        return [json.loads(path.read_text()) for path in self.reports.glob("*.json")]

    def close(self) -> None:
        for worker in self.workers:
            self.kill(worker)


@contextmanager
def trial(tool: Tool, work: Path, job: str, every: int) -> Iterator[Trial]:
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=work, ignore_cleanup_errors=True))
        server = stack.enter_context(tool.server())
        opened = Trial(tool, Path(directory), job, every, server)
        stack.callback(opened.close)
        yield opened


def send(tool: Tool, work: Path, count: int, bulk: bool = False) -> Figures:
    """Sends `count` jobs from one process: `per_s`, `us` each."""
    with trial(tool, work, "noop", count) as opened:
        return opened.send(count, *(["--bulk"] if bulk else []))


def drain(tool: Tool, work: Path, count: int, workers: int = 1) -> Figures:
    """Sends `count` jobs, then lets `workers` processes run them: `per_s`, `us` each, `rss_mb` of one worker.

    Timed from the first job's start to the last report; the tail of less than 1 % of the jobs that no process has
    reported yet is left out on both sides of the division.
    """
    every = max(1, count // (100 * workers))
    with trial(tool, work, "noop", every) as opened:
        sent = opened.send(count, "--bulk")
        for _ in range(workers):
            opened.start_worker()
        enough = count - every * workers + 1
        opened.wait_for(lambda: sum(share["done"] for share in opened.shares()) >= enough, DRAIN_S, f"{count} jobs")
        rss_mb = memory_mb(opened.workers[0].pid)
        shares = opened.shares()
    done = sum(share["done"] for share in shares)
    seconds = max(share["last_at"] for share in shares) - min(share["first_at"] for share in shares)
    return {
        "per_s": done / seconds,
        "us": seconds / done * 1e6,
        "rss_mb": rss_mb,
        "sent_per_s": sent["per_s"],
    }


def stream(tool: Tool, work: Path, count: int, workers: int = 1) -> Figures:
    """One process sends `count` jobs one by one while `workers` processes run them: `per_s`, and `sent_per_s` of the sender.

    Timed from the first send to the last job's start, or to the last send's return where that is later. The workers
    first run some jobs that do not count, so that their start is not measured.
    """
    every = max(1, count // (100 * workers))
    warm = every * workers
    with trial(tool, work, "noop", every) as opened:
        for _ in range(workers):
            opened.start_worker()

        def done() -> int:
            return int(sum(share["done"] for share in opened.shares()))

        # Until each worker has reported: a worker that has not come yet would be started beside what is measured.
        sent = 0
        while len(opened.shares()) < workers:
            opened.send(warm, "--first", str(sent))
            sent += warm
            opened.wait_for(lambda least=sent - every * workers: done() > least, 60, "the first jobs")  # type: ignore[misc]
        figures = opened.send(count, "--first", str(sent))
        enough = sent + count - every * workers + 1
        opened.wait_for(lambda: done() >= enough, DRAIN_S, f"{count} jobs")
        last_at = max(*(share["last_at"] for share in opened.shares()), figures["ended_at"])
    seconds = last_at - figures["started_at"]
    return {"per_s": count / seconds, "us": seconds / count * 1e6, "sent_per_s": figures["per_s"]}


def latency(tool: Tool, work: Path, per_s: int = 100, seconds: int = 5, idle_s: float = 3.0) -> Figures:
    """Sends at a steady rate to a waiting worker: `p50_ms`, `p99_ms` from send to start, `idle_percent` of one core.

    The worker first runs ten jobs that do not count, so that its start is not measured; then it idles.
    """
    count = per_s * seconds
    with trial(tool, work, "stamped", 10) as opened:
        worker = opened.start_worker()
        opened.send(10)

        def measured() -> list[float]:
            return [ms for path in opened.reports.glob("*.json") for ms in json.loads(path.read_text())]

        opened.wait_for(lambda: len(measured()) >= 10, 60, "the first ten jobs")
        time.sleep(1.0)
        before = processor_s(worker.pid)
        time.sleep(idle_s)
        idle = (processor_s(worker.pid) - before) / idle_s
        opened.send(count, "--first", "10", "--per-s", str(per_s))
        opened.wait_for(lambda: len(measured()) >= 10 + count, 60, f"{count} jobs at {per_s} a second")
        ms = sorted(measured()[10 : 10 + count])
    return {"p50_ms": ms[len(ms) // 2], "p99_ms": ms[int(len(ms) * 0.99)], "idle_percent": idle * 100}


def recovery(tool: Tool, work: Path, bound_s: float = 20.0, standby: bool = False, later_s: float = 0.0) -> Figures:
    """Kills a worker with -9 in the middle of its job: `again_s` until the job began again, absent when it did not.

    A second worker is running already (`standby`) or is started at the kill, as a supervisor would.

    Args:
        later_s: by how much later the worker is killed: what the second one does, it does at intervals.
    """
    with trial(tool, work, "stuck", 1) as opened:
        worker = opened.start_worker()
        opened.send(1)
        opened.wait_for((opened.reports / "began.json").exists, 60, "the job to begin")
        if standby:
            opened.start_worker()
            time.sleep(2.0)
        time.sleep(0.5 + later_s)
        killed_at = time.monotonic()
        opened.kill(worker)
        if not standby:
            opened.start_worker()
        again = opened.reports / "again.json"
        try:
            opened.wait_for(again.exists, bound_s, "the job to begin again")
        except TrialFailed:
            return {}
        return {"again_s": json.loads(again.read_text()) - killed_at}


def session_pids(leader: int) -> list[int]:
    """Returns the live processes of a session: a worker and everything it started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader:
                found.append(int(entry.name))
    return found


def processor_s(leader: int) -> float:
    """Returns the processor time that a worker and its processes have used so far."""
    ticks = 0
    for pid in session_pids(leader):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb(leader: int) -> float:
    """Returns the resident memory of a worker and its processes, shared pages counted once in each."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in session_pids(leader))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
