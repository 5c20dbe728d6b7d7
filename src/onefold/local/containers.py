"""One container: a process that has imported a function's handler and runs one invocation at a time.

The handler's process has a supervisor (`bootstrap.py`), which adopts whatever the handler starts and abandons. Every
invocation has one outcome: at the deadline, above its memory limit, after an injected fault, or after a violation of
the protocol, all of its processes are killed from outside, and the kill is reported only once they are gone.

Time is real here, even if queues use a clock that a test moves: a process runs on the machine's time.
Memory means what is resident in addition to the interpreter itself, and open files in memory. It is measured every 50
ms and at the end, because Lambda kills a function that uses too much, and less often between two invocations, when
Lambda's container is frozen and this one is not. Between two measurements the kernel bounds what can be allocated
(RLIMIT_DATA) at 256 MiB more, which leaves room for the stacks of 32 threads. Measured: 32 idle threads take 1.2 GB of
address space, 265 MiB of data and 0.5 MiB resident, so the first two cannot serve as the limit.
Never here: which container runs an invocation (`functions.py`). Invariant: at most one pending answer, resolved once.
"""

from __future__ import annotations

import asyncio
import math
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from onefold.local import bootstrap
from onefold.local.channel import CLOSED, Channel, Output
from onefold.local.outcomes import (
    Answered,
    Crashed,
    FunctionError,
    LogLine,
    Outcome,
    Stream,
    TimedOut,
    TooLarge,
    kind_of,
    message_of,
)
from onefold.local.settings import INIT_MS_MAX, FunctionSettings

if TYPE_CHECKING:
    from onefold.outside import Clock

Kill = Literal["before", "during", "after"]

BOOTSTRAP: Final = Path(bootstrap.__file__)
STACKS_MIB: Final = 256
_LOOK_MS = 50
_IDLE_LOOK_MS = 500  # until the first check after an invocation; doubled each time, up to
_IDLE_LOOK_MS_MAX = 8_000
_OWN_KIB = 12 * 1024  # assumed for an interpreter until it has reported its own
_STATUS_BYTES = 4_096
_GROUP_LOOKS = 5  # checks between two sums over the process's children, which read /proc
_MEMORY_FILES = ("/memfd:", "/dev/shm/")  # noqa: S108 - compared, not written
_SERVERS_OWN = frozenset({"ONEFOLD_ADMIN_TOKEN", "ONEFOLD_SECRET_KEY", "ONEFOLD_ACCESS_KEY"})
_ENDING_MS = 50  # how long an ending process may take from closing its descriptors to its end


class Container:
    """A process for one function.

    Args:
        settings: the function's settings, checked.
        loop: the event loop; every call is made on its thread.
        clock: the real clock.
        on_line: gets every line of the log.
        log_stream: the name of its log stream, as the handler sees it.

    Attributes:
        alive: it can take an invocation, or is running one.
        own_kib: memory of the interpreter itself, which does not count.
    """

    def __init__(
        self,
        settings: FunctionSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        on_line: Callable[[LogLine], None],
        log_stream: str,
    ) -> None:
        self.settings = settings
        self.alive = True
        self.own_kib = _OWN_KIB
        self._loop = loop
        self._clock = clock
        self._on_line = on_line
        self._request_id = ""
        self._pending: asyncio.Future[Outcome] | None = None
        self._deadline_ms = 0
        self._check_timer: asyncio.TimerHandle | None = None
        self._verdict: Outcome | None = None
        self._kill: Kill | None = None
        self._kill_in_ms = 0
        self._took_ms: float | None = None  # the last invocation's duration, once it is known
        self._init_ms: float | None = None
        self._peak_kib = 0
        self._check_count = 0
        self._pid = 0  # of the handler's process, once it has begun; then its descriptor, and its status file's
        self._pid_fd: int | None = None
        self._status_fd: int | None = None
        self._gone: asyncio.Future[None] = loop.create_future()
        self._start(log_stream)

    # -- life --------------------------------------------------------------------------------------------------------

    def _start(self, log_stream: str) -> None:
        """Start the process.

        Raises:
            OSError: the system cannot provide a process or descriptors.
        """
        ours, theirs = socket.socketpair()
        lifeline, ours_held = os.pipe()
        self._lifeline: int | None = ours_held
        try:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and program
                [sys.executable, "-P", str(BOOTSTRAP), str(theirs.fileno()), str(lifeline)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=self.settings.code_dir,
                env=environment(self.settings, log_stream),
                pass_fds=(theirs.fileno(), lifeline),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(ours_held)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        try:
            self._attach(process, ours)
        except BaseException:  # for example, no descriptors are left
            os.close(ours_held)
            process.wait()
            ours.close()
            raise

    def _attach(self, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self._process = process
        self._exit_fd = os.pidfd_open(process.pid)
        self._channel = Channel(self._loop, ours, self._framed, self._broken)
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr:
            self._outputs = [
                Output(self._loop, os.dup(process.stdout.fileno()), lambda text: self._log("stdout", text)),
                Output(self._loop, os.dup(process.stderr.fileno()), lambda text: self._log("stderr", text)),
            ]
        self._loop.add_reader(self._exit_fd, self._exited)

    async def init(self, request_id: str, *, reports: bool = True) -> Outcome | None:
        """Import the handler; None if it can be invoked, otherwise the failure; the container is gone then.

        Lambda gives this phase 10 s and then the function's timeout; here it is the sum of the two.

        Args:
            request_id: the invocation for which it is started.
            reports: write the lines of an invocation if the import failed.
        """
        self._request_id = request_id
        began_ms = self._clock.monotonic_ms()
        self._channel.send(
            {
                "handler": self.settings.handler,
                "code_dir": self.settings.code_dir,
                "memory_bytes": (self.settings.memory_mib + STACKS_MIB) << 20,
            }
        )
        outcome = await self._ends_by(INIT_MS_MAX + self.settings.timeout_ms)
        self._init_ms = float(self._clock.monotonic_ms() - began_ms)
        if isinstance(outcome, Answered):
            return None
        self._init_ms = None
        if reports:
            self._log("platform", f"START RequestId: {request_id} Version: $LATEST")
            self._report(outcome)
        await self.close()
        return outcome

    async def invoke(self, event: bytes, request_id: str, *, kill: Kill | None = None, kill_in_ms: int = 0) -> Outcome:
        """Call the handler with one event. If the call is cancelled, the container is killed.

        Args:
            event: JSON, at most 6 MiB.
            kill: kill the container before it has the event, `kill_in_ms` after its handler was called, or after the
                handler returned; the outcome is then a crash, whatever the handler did.
        """
        assert self._pending is None, "a container runs one invocation at a time"
        self._request_id = request_id
        self._kill, self._kill_in_ms = kill, kill_in_ms
        self._took_ms = None
        self._log("platform", f"START RequestId: {request_id} Version: $LATEST")
        if kill == "before":
            self._killed_by_fault()
        else:
            self._channel.send(
                {
                    "id": request_id,
                    "deadline_ms": self._clock.monotonic_ms() + self.settings.timeout_ms,
                    "arn": self.settings.arn,
                    "trace_id": _trace_id(request_id),
                    "tells_start": kill == "during",
                },
                event,
            )
        outcome = await self._ends_by(self.settings.timeout_ms)
        self._report(outcome)
        return outcome

    @property
    def took_ms(self) -> float:
        """The duration of the last invocation."""
        return self._took_ms or 0.0

    async def close(self) -> None:
        """Kill it and wait until it is gone; can be called twice."""
        self.kill()
        await asyncio.shield(self._gone)

    def kill(self) -> None:
        """Have the supervisor kill all of its processes; harmless if they are gone."""
        self.alive = False
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
            self._process.send_signal(signal.SIGCONT)  # in case the handler has stopped its supervisor

    # -- one invocation ----------------------------------------------------------------------------------------------

    async def _ends_by(self, timeout_ms: int) -> Outcome:
        began_ms = self._clock.monotonic_ms()
        self._deadline_ms = began_ms + timeout_ms
        self._pending = self._loop.create_future()
        if self._gone.done():
            self._settle(self._crashed())
        if self._check_timer is not None:
            self._check_timer.cancel()
        self._check_timer = self._loop.call_later(min(_LOOK_MS, timeout_ms) / 1000, self._supervise)
        try:
            return await self._pending
        except asyncio.CancelledError:
            self.kill()
            raise
        finally:
            self._pending = None
            self._check_timer.cancel()
            if self.alive:
                self._check_timer = self._loop.call_later(_IDLE_LOOK_MS / 1000, self._check_idle, _IDLE_LOOK_MS)
            if self._took_ms is None:
                self._took_ms = float(self._clock.monotonic_ms() - began_ms)

    def _supervise(self) -> None:
        """Check the deadline and the memory of a running invocation."""
        if self._gone.done():
            return
        left_ms = self._deadline_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            self._condemn(TimedOut(self.settings.timeout_ms))
        elif self._over_memory():
            self._condemn(self._out_of_memory())
        else:
            self._check_timer = self._loop.call_later(min(_LOOK_MS, left_ms) / 1000, self._supervise)

    def _check_idle(self, after_ms: int) -> None:
        """Check the memory between two invocations: a thread or process that the handler left behind may use some."""
        if not self.alive or self._pending is not None:
            return
        if self._over_memory(whole=True):
            self._condemn(self._out_of_memory("between two invocations it"))
            for line in self._error_lines(self._crashed()):
                self._log("platform", line)
        else:
            next_ms = min(2 * after_ms, _IDLE_LOOK_MS_MAX)
            self._check_timer = self._loop.call_later(next_ms / 1000, self._check_idle, next_ms)

    def _over_memory(self, *, whole: bool = False) -> bool:
        """Whether the handler's process uses too much memory; now and then, or with `whole`, all its processes."""
        if self._status_fd is not None:
            try:
                _, _, rest = os.pread(self._status_fd, _STATUS_BYTES, 0).partition(b"VmHWM:")
            except ProcessLookupError:
                rest = b""
            if rest:  # a process that is ending no longer has any
                self._peak_kib = int(rest.split(None, 1)[0])
        self._check_count += 1
        if whole or self._check_count % _GROUP_LOOKS == 0:
            self._peak_kib = max(self._peak_kib, memory_below(self._process.pid))
        return self._peak_kib - self.own_kib > self.settings.memory_mib * 1024

    def _out_of_memory(self, what: str = "it") -> Crashed:
        used, own = (math.ceil(kib / 1024) for kib in (self._peak_kib, self.own_kib))
        most = self.settings.memory_mib
        return Crashed(
            "signal: killed", f"{what} used {used} MB; it may use {most} MB and {own} MB for the interpreter"
        )

    def _framed(self, head: dict[str, Any], payload: bytes) -> None:
        kind = head.get("kind")
        if kind == "begun" and not self._pid:
            self._begun(int(head["pid"]))
        elif self._pending is None or self._verdict is not None or head.get("id", self._request_id) != self._request_id:
            self._broken("it sent an answer to a question it was not asked")
        elif kind in ("ready", "failed"):
            self.own_kib = int(head["own_kib"])
            self._over_memory()  # updates the peak
            self._settle(_error(head) if kind == "failed" else Answered(b""))
        elif kind == "started":
            self._loop.call_later(self._kill_in_ms / 1000, self._killed_by_fault, self._request_id)
        elif self._kill is not None:
            self._killed_by_fault()
        elif self._over_memory():
            self._condemn(self._out_of_memory())
        elif kind == "answer":
            self._settle(Answered(payload), head)
        elif kind == "too-large":
            self._settle(TooLarge(int(head["bytes"])), head)
        else:
            self._settle(_error(head), head)

    def _begun(self, pid: int) -> None:
        self._pid = pid
        try:
            self._pid_fd = os.pidfd_open(pid)
            self._status_fd = os.open(f"/proc/{pid}/status", os.O_RDONLY)
        except (ProcessLookupError, FileNotFoundError):  # it has ended; its supervisor reports how
            return
        except OSError as error:  # no descriptors are left
            self._broken(f"its memory cannot be watched: {error.strerror}")

    def _settle(self, outcome: Outcome, head: dict[str, Any] | None = None) -> None:
        if self._pending is not None and not self._pending.done():
            if head is not None:
                self._took_ms = int(head["took_us"]) / 1000
            self._pending.set_result(outcome)

    def _condemn(self, verdict: Outcome) -> None:
        """Kill the container; the invocation ends with this verdict once the process is gone."""
        if self._verdict is None:
            self._verdict = verdict
        self.kill()

    def _killed_by_fault(self, request_id: str | None = None) -> None:
        if request_id in (None, self._request_id):
            self._condemn(Crashed("signal: killed", "a fault that was injected on request"))

    def _broken(self, reason: str) -> None:
        """The channel is broken; usually the process is ending, and its exit status says how."""
        self.alive = False
        verdict = Crashed("signal: killed", reason)
        if reason == CLOSED:
            self._loop.call_later(_ENDING_MS / 1000, self._closed, verdict)
        else:
            self._condemn(verdict)

    def _closed(self, verdict: Outcome) -> None:
        if not self._has_ended():
            self._condemn(verdict)

    def _has_ended(self) -> bool:
        """Whether the handler's process has ended."""
        if self._pid_fd is None:
            return bool(self._pid)
        poll = select.poll()
        poll.register(self._pid_fd, select.POLLIN)
        return bool(poll.poll(0))

    def _exited(self) -> None:
        """All of its processes have ended: read their last output."""
        self._loop.remove_reader(self._exit_fd)
        if self._check_timer is not None:
            self._check_timer.cancel()
        self._channel.pump()
        if self._pid_fd is not None and not self._has_ended():  # the handler has killed its supervisor
            for pid in [*bootstrap.descendants(self._pid), self._pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.kill()
        self._process.wait()
        for output in self._outputs:
            output.end()
            output.close()
        self._channel.close()
        for descriptor in (self._exit_fd, self._status_fd, self._pid_fd):
            if descriptor is not None:
                os.close(descriptor)
        self._gone.set_result(None)
        self._settle(self._crashed())

    def _crashed(self) -> Outcome:
        if self._verdict is not None:
            return self._verdict
        code = self._process.returncode
        if code >= 0:
            return Crashed(f"exit status {code}" if code else "")
        return Crashed(f"signal: {(signal.strsignal(-code) or str(-code)).lower()}")

    # -- log ---------------------------------------------------------------------------------------------------------

    def _log(self, stream: Stream, text: str) -> None:
        """Log each line of a text separately: an exception's text can come from anywhere and must not look like ours."""
        for line in text.split("\n"):
            self._on_line(LogLine(self.settings.name, self._request_id, stream, line))

    def _report(self, outcome: Outcome) -> None:
        """Log what Lambda writes after an invocation: the error, END, REPORT."""
        for output in self._outputs:
            output.end()
        for line in self._error_lines(outcome):
            self._log("platform", line)
        took_ms = self._took_ms or 0.0
        init_ms, self._init_ms = self._init_ms, None
        parts = [
            f"REPORT RequestId: {self._request_id}",
            f"Duration: {took_ms:.2f} ms",
            # Lambda developer guide, billing: the init phase is billed too, since August 2025.
            f"Billed Duration: {math.ceil(took_ms + (init_ms or 0.0))} ms",
            f"Memory Size: {self.settings.memory_mib} MB",
            f"Max Memory Used: {math.ceil(self._peak_kib / 1024)} MB",
        ]
        if init_ms is not None:
            parts.append(f"Init Duration: {init_ms:.2f} ms")
        if isinstance(outcome, TimedOut):
            parts.append("Status: timeout")
        elif isinstance(outcome, Crashed):
            parts += ["Status: error", f"Error Type: {kind_of(outcome)}"]
        self._log("platform", f"END RequestId: {self._request_id}")
        self._log("platform", "\t".join(parts))

    def _error_lines(self, outcome: Outcome) -> list[str]:
        if isinstance(outcome, Answered):
            return []
        if isinstance(outcome, FunctionError):
            trace = "".join(outcome.trace).splitlines()
            return [
                f"[ERROR] {outcome.kind}: {outcome.message}",
                *(["Traceback (most recent call last):"] if trace else []),
                *trace,
            ]
        if isinstance(outcome, TimedOut):
            at = datetime.fromtimestamp(self._clock.now_ms() / 1000, tz=UTC).isoformat(timespec="milliseconds")
            return [f"{at.removesuffix('+00:00')}Z {self._request_id} {message_of(outcome)}"]
        line = f"RequestId: {self._request_id} Error: {message_of(outcome)}"
        detail = outcome.detail if isinstance(outcome, Crashed) else ""
        return [f"{line} ({detail})" if detail else line, kind_of(outcome)]


def memory_below(supervisor: int) -> int:
    """Memory in KiB of a handler's process and of all it has started; shared pages and files in memory count once.

    RLIMIT_DATA bounds each process alone; a handler and what it starts count together, as in Lambda. Returns 0 if it is
    alone and keeps nothing in files in memory: then its own status is enough.
    """
    below = bootstrap.descendants(supervisor)
    files: dict[tuple[int, int], int] = {}
    for process in below:
        _add_memory_files(process, files)
    if len(below) < 2 and not files:
        return 0
    parts = [_proportional_kib(process) for process in below]
    mapped_kib = sum(shared for _, shared in parts)  # may include open files, which must count once
    return sum(private for private, _ in parts) + max(mapped_kib, sum(files.values()) // 1024)


def _proportional_kib(process: int) -> tuple[int, int]:
    """A process's own memory, and its mapped files in memory, in KiB; processes that share a page divide it."""
    try:
        with open(f"/proc/{process}/smaps_rollup", "rb") as file:
            rows = dict(row.split(b":", 1) for row in file.read().splitlines()[1:])
    except OSError:
        return 0, 0
    whole, shared = (int(rows.get(name, b"0 kB").split(None, 1)[0]) for name in (b"Pss", b"Pss_Shmem"))
    return whole - shared, shared


def _add_memory_files(process: int, files: dict[tuple[int, int], int]) -> None:
    """Add the bytes of each file in memory that a process has open, by device and inode."""
    folder = f"/proc/{process}/fd"
    with suppress(OSError):  # the process has ended
        for name in os.listdir(folder):
            with suppress(OSError):  # closed meanwhile
                if os.readlink(f"{folder}/{name}").startswith(_MEMORY_FILES):
                    state = os.stat(f"{folder}/{name}")
                    files[state.st_dev, state.st_ino] = state.st_blocks * 512


def _error(head: dict[str, Any]) -> FunctionError:
    return FunctionError(str(head["type"]), str(head["message"]), tuple(head["trace"]))


def _trace_id(request_id: str) -> str:
    """An X-Ray header that requests no trace, made from the request id."""
    digits = request_id.replace("-", "")
    return f"Root=1-{digits[:8]}-{digits[8:]};Parent={digits[:16]};Sampled=0"


def environment(settings: FunctionSettings, log_stream: str) -> dict[str, str]:
    """A container's environment: this process's without the server's secrets, the function's, and what Lambda sets.

    Source: Lambda developer guide, "Defined runtime environment variables".
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return {
        "LANG": "en_US.UTF-8",
        **{name: value for name, value in os.environ.items() if name not in _SERVERS_OWN},
        **settings.env,
        "TZ": ":UTC",
        "_HANDLER": settings.handler,
        "AWS_REGION": settings.region,
        "AWS_DEFAULT_REGION": settings.region,
        "AWS_EXECUTION_ENV": f"AWS_Lambda_{version}",
        "AWS_LAMBDA_FUNCTION_NAME": settings.name,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(settings.memory_mib),
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{settings.name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": log_stream,
        "LAMBDA_TASK_ROOT": settings.code_dir,
        "LAMBDA_RUNTIME_DIR": str(BOOTSTRAP.parent),
    }
