"""The processes of a demo: started, killed, replaced, and ended.

`DemoProcesses` runs any `onefold` commands and kills them on the demo's request. `Fire` runs workers that are killed at
random moments. The moments are drawn from the seed as shares of the work done, so that a slow machine sees as many
kills as a fast one; which worker is hit is drawn too. Workers end in two ways: by SIGKILL, and now and then by SIGTERM,
after which a worker drains. A kill counts only if the worker had messages in flight. The engine's history shows that
(`owner-dead`, with the number of messages that were released), because the process that sends the signal cannot know. A
kill that hit an idle worker is repeated.

Here: processes and signals. Never here: what workers do, or judging. Invariant: a killed process is replaced at once,
and every process that was started here has ended when `close` returns, whatever happened before.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from onefold.contracts.ledger import Row
from onefold.errors import OnefoldError

if TYPE_CHECKING:
    from onefold.outside import Clock, Entropy

FIRST_SHARE, LAST_SHARE = 0.03, 0.92
"""Kills happen between these shares of the work: work is in flight by then, and enough is left after the last kill."""
STOPS_PER_KILL = 0.25
"""How many workers are stopped with SIGTERM for each one that is killed."""
AT_WORK_MS = 100
"""A worker that has been ready for this long has received a message, if there was any."""
LEAVE_S_MAX = 10
"""How many seconds a draining worker may take; the partner needs at most 1.5 for a request."""
EVIDENCE_MS_MAX = 5_000
"""A kill without a row `owner-dead` for this long counts as a miss; other workers notice a death within a second."""


class WorkerFailed(OnefoldError):
    """A worker ended unexpectedly. The message has its output."""

    code = "worker-failed"


class WorkerProcess:
    """One worker process.

    Attributes:
        owner: its id in the engine once it has reported that it is ready; None before.
        ready_at_ms: when that report was read (monotonic).
    """

    def __init__(self, command: Sequence[str], log: BinaryIO) -> None:
        self.owner: str | None = None
        self.ready_at_ms = 0
        self.stopping = False
        self._said = b""
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter and onefold's own module
            command,
            stdin=subprocess.PIPE,  # ends with this process, and so does the worker
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # only this process handles Ctrl-C
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def listen(self, now_ms: int) -> None:
        """Note that the worker is ready, if it has reported that since the last call; `now_ms` is monotonic."""
        assert self._process.stdout is not None
        if self.owner is None and (said := self._process.stdout.read()):
            self._said += said
            if b"\n" in self._said:  # a line can arrive in pieces
                self.owner, self.ready_at_ms = self._said.split()[1].decode(), now_ms

    def ended(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Let it drain."""
        self.stopping = True
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and wait for its end."""
        self._process.kill()
        self._process.wait()
        self.close()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; returns whether it ended in time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class KillPlan:
    """When to kill and when to stop, as shares of the work from 0 to 1, each drawn from an equal part of the way.

    Args:
        kills: how many kills. entropy: the source of the random numbers.
    """

    def __init__(self, kills: int, entropy: Entropy) -> None:
        self.kills = _spread(kills, entropy)
        self.stops = _spread(round(kills * STOPS_PER_KILL), entropy)

    def due(self, share: float) -> tuple[int, int]:
        """How many kills and stops have become due by this share of the work; each is reported once."""
        return _take(self.kills, share), _take(self.stops, share)


def _spread(count: int, entropy: Entropy) -> list[float]:
    length = LAST_SHARE - FIRST_SHARE
    return [FIRST_SHARE + length * (index + entropy.fraction()) / count for index in range(count)]


def _take(shares: list[float], share: float) -> int:
    due = sum(one <= share for one in shares)
    del shares[:due]
    return due


class Fire:
    """A number of workers that are killed and replaced.

    Args:
        command: starts one worker. count: how many run at any time.
        plan: when to kill and stop. entropy: draws which worker is hit.
        log: file for the workers' standard error.
    """

    def __init__(
        self, command: Sequence[str], count: int, *, plan: KillPlan, clock: Clock, entropy: Entropy, log: Path
    ) -> None:
        self._command = list(command)
        self._plan = plan
        self._clock = clock
        self._entropy = entropy
        self._log_path = log
        self._log = log.open("ab")
        self._crew: list[WorkerProcess] = []
        self._leaving: list[WorkerProcess] = []
        self._unproved: dict[str, int] = {}  # owner -> when it was killed (wall time)
        self.kills_due = 0
        """How many due kills have not hit a worker with work in progress yet."""
        self._stops_due = 0
        self.hits: dict[str, int] = {}
        """Owner -> how many messages it had in flight when it was killed, 1 or more."""
        self.misses = 0
        """How many kills hit a worker without work in flight."""
        self.stops = 0
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        self._crew.append(WorkerProcess(self._command, self._log))

    # -- killing and replacing ---------------------------------------------------------------------------------------

    def step(self, share: float, busy: Callable[[], Collection[str]] | None = None) -> None:
        """Kill and stop the workers that are due at this share of the work; replace those that have ended.

        Args:
            busy: returns the owner ids of workers with work in progress, the only ones that are killed; called when a
                kill is due. None: any worker can be killed.

        Raises:
            WorkerFailed: a worker ended without having been asked to.
        """
        for worker in (*self._crew, *self._leaving):
            worker.listen(self._clock.monotonic_ms())
            code = worker.ended()
            if code == -signal.SIGKILL and worker in self._crew:  # killed by somebody else, which is welcome
                self._kill(worker)
            elif code is not None:
                self._check_end(worker, code)
        kills, stops = self._plan.due(share)
        self.kills_due += kills
        self._stops_due += stops
        if self.kills_due and (hit := self._choose(None if busy is None else busy())) is not None:
            self.kills_due -= 1
            self._kill(hit)
        if self._stops_due and (chosen := self._choose(None)) is not None:
            self._stops_due -= 1
            self._stop(chosen)

    def takes_more_work(self, *, idle: bool) -> bool:
        """Whether more may be sent: no kill is due, or a due kill needs work to hit and a worker can receive it.

        Args:
            idle: whether the workers have next to nothing left to do.
        """
        if self._unproved:
            return False
        return not self.kills_due or (idle and bool(self._at_work(None)))

    def _choose(self, busy: Collection[str] | None) -> WorkerProcess | None:
        """A randomly chosen worker that is at work; None if there is none."""
        begun = self._at_work(busy)
        return begun[int(self._entropy.fraction() * len(begun))] if begun else None

    def _at_work(self, busy: Collection[str] | None) -> list[WorkerProcess]:
        since_ms = self._clock.monotonic_ms() - AT_WORK_MS
        return [
            worker
            for worker in self._crew
            if worker.owner is not None and worker.ready_at_ms <= since_ms and (busy is None or worker.owner in busy)
        ]

    def _kill(self, worker: WorkerProcess) -> None:
        killed_at_ms = self._clock.now_ms()
        worker.kill()
        if worker.owner is not None:
            self._unproved[worker.owner] = killed_at_ms
        self._crew.remove(worker)
        self._start()

    def _stop(self, worker: WorkerProcess) -> None:
        worker.stop()
        self.stops += 1
        self._crew.remove(worker)
        self._leaving.append(worker)
        self._start()

    def _check_end(self, worker: WorkerProcess, code: int) -> None:
        if code != 0 or not worker.stopping:
            raise WorkerFailed(
                f"A worker ended with code {code}, and had not been killed.",
                meaning=self._last_words(),
                todo="Run the demo again with --keep DIR and see workers.log there.",
            )
        self._leaving.remove(worker)
        worker.close()

    def _last_words(self) -> str:
        lines = self._log_path.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])

    # -- evidence ----------------------------------------------------------------------------------------------------

    def ready(self) -> list[str]:
        """The owner ids of the running workers that have reported that they are ready."""
        return [worker.owner for worker in self._crew if worker.owner is not None]

    @property
    def kills(self) -> int:
        """How many kills are proved to have hit a worker with work in flight."""
        return len(self.hits)

    def unproved_since_ms(self) -> int | None:
        """Wall time of the first kill whose effect is not known yet; None if there is none."""
        return min(self._unproved.values(), default=None)

    def hear(self, rows: Iterable[Row]) -> None:
        """Learn from rows of the engine's history which killed workers had messages in flight, and how many."""
        for row in rows:
            owner = str(row.detail.get("owner"))
            if row.event == "owner-dead" and owner in self._unproved:
                del self._unproved[owner]
                messages = row.detail.get("messages")
                if isinstance(messages, int) and messages > 0:
                    self.hits[owner] = messages
                else:
                    self._miss()
        for owner, killed_at_ms in tuple(self._unproved.items()):
            if self._clock.now_ms() - killed_at_ms > EVIDENCE_MS_MAX:
                del self._unproved[owner]
                self._miss()

    def _miss(self) -> None:
        self.misses += 1
        self.kills_due += 1

    # -- ending ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Stop all workers with SIGTERM and wait for them; one that is not ready yet is left to `close`.

        Raises:
            WorkerFailed: a worker ended in another way, or not in time.
        """
        for worker in tuple(self._crew):
            worker.listen(self._clock.monotonic_ms())
            if worker.owner is not None:
                worker.stop()
                self._crew.remove(worker)
                self._leaving.append(worker)
        for worker in tuple(self._leaving):
            if not worker.wait(LEAVE_S_MAX):
                raise WorkerFailed(f"A draining worker was still there after {LEAVE_S_MAX} s.")
            self._check_end(worker, worker.ended() or 0)

    def close(self) -> None:
        """Kill the remaining processes."""
        for worker in (*self._crew, *self._leaving):
            worker.kill()
        self._crew, self._leaving = [], []
        self._log.close()


_END_S = 20


class DemoProcesses:
    """A fixed set of `onefold` processes.

    Args:
        commands: arguments of `onefold`, one list for each process.
        variables: environment variables that are added to this process's. log: file that their output is appended to.

    Attributes:
        kills: how many processes were killed, by command, for example `worker`.
    """

    def __init__(self, commands: Sequence[Sequence[str]], variables: Mapping[str, str], log: Path) -> None:
        self._variables = {**os.environ, **variables}
        self._log = log.open("ab")
        self._commands = commands
        self._processes = [self._start(command) for command in commands]
        self.kills: Counter[str] = Counter()

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - onefold's own program
            [sys.executable, "-m", "onefold", *command],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=self._variables, start_new_session=True,
        )  # fmt: skip

    def kill(self, number: int) -> None:
        """Kill a process with SIGKILL, by its number, and replace it."""
        self._processes[number].kill()
        self._processes[number].wait()
        self.check()

    def check(self) -> None:
        """Replace killed processes, and check that no other has ended.

        Raises:
            OnefoldError: a process has ended; its output is in the log.
        """
        for number, (process, command) in enumerate(zip(self._processes, self._commands, strict=True)):
            if process.poll() == -signal.SIGKILL:
                self.kills[command[0]] += 1
                self._processes[number] = self._start(command)
            elif process.returncode is not None:
                raise OnefoldError(
                    f"A {command[0]} ended unexpectedly with exit code {process.returncode}.",
                    todo="Run the demo again with --keep DIR, and read crew.log there.",
                )

    def close(self) -> None:
        """End all processes, with SIGTERM and, if that is not enough, by killing them."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()
