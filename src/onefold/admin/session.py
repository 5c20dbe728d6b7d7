"""What every use case of `admin/` takes: an opened engine, the jobs of an app where one is known, and who acts.

The command line and a web page open an `AdminSession` and call the same functions. What a person changes is written to the
ledger with that person's name, whatever the history level. Never here: the use cases themselves, output, parsing.
Invariant: opening a session on an engine that does not exist creates nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from onefold import errors, redact
from onefold.clock import SystemClock
from onefold.contracts.admin import Peeked
from onefold.contracts.ledger import History, Row
from onefold.contracts.queue import Delivery
from onefold.contracts.settings import QueueSettings
from onefold.contracts.store import RecordKey
from onefold.engines.urls import is_records_alone
from onefold.entropy import SystemEntropy
from onefold.registry import Registry
from onefold.runner.handlers import Job, run_of
from onefold.runtime.outgoing import transaction, wake_workers
from onefold.runtime.runtime import Runtime

if TYPE_CHECKING:
    from onefold.contracts.engine import Engine
    from onefold.outside import Clock, Entropy

T = TypeVar("T")

_PAGE = 500  # messages per peek


class Jobs(Struct, frozen=True, kw_only=True):
    """What a session knows of an app; an empty one where there is only a URL.

    Args:
        named: the declared jobs by name.
        of: the job a message is for; raises NotFoundError.
        history: what the app's ledger keeps.
        queues: what it declares, where that is to be compared.
    """

    named: Mapping[str, Job[Any, Any]]
    of: Callable[[Delivery], Job[Any, Any]]
    history: History
    queues: tuple[QueueSettings, ...] = ()


class AdminSession:
    """An opened engine as an operator uses it.

    Args:
        runtime: the opened engine.
        jobs: of the app, or None where only the engine is known.
        actor: who acts, as the ledger names them: `person:<login>`.

    Attributes:
        has_queues: False for a store for records.
    """

    def __init__(self, runtime: Runtime, *, actor: str, jobs: Jobs | None = None) -> None:
        self.url = redact.masked(absolute(runtime.url))
        self.engine: Engine = runtime.engine
        self.clock = runtime.steady
        self.entropy: Entropy = runtime.entropy
        self.never = runtime.never()
        self.jobs = jobs
        self.actor = actor
        self.has_queues = not is_records_alone(runtime.url)
        self._runtime = runtime

    def now_ms(self) -> int:
        """The time of what the file says: of leases, instants and whatever ends; the wall's where nobody set the clock."""
        return self.clock.now_ms()

    def job(self, name: str | None) -> Job[Any, Any] | None:
        """A declared job by name; None where it, or the app, is not known."""
        return self.jobs.named.get(name) if self.jobs is not None and name is not None else None

    def row(
        self,
        event: str,
        *,
        key: RecordKey | None = None,
        message: Peeked | None = None,
        queue: str | None = None,
        run: str | None = None,
        **detail: str | int | bool | None,
    ) -> Row:
        """The ledger row of something this person does; what is None is left out of its detail.

        The rows of a dead letter whose key its worker could not read have no key: `there_for` says here what they said.

        Args:
            run: that the operation belongs to; unless given, the one of its message.
        """
        reason = message.reason if message is not None else None
        if key is not None and reason is not None and reason.key is None:
            detail["there_for"] = f"{reason.error or reason.kind}: {reason.summary}"
        return Row(
            at_ms=self.now_ms(),
            event=event,
            key=key,
            queue=message.queue if message is not None else queue,
            message_id=message.message_id if message is not None else None,
            run=self._run_of(message, key) if run is None and message is not None else run,
            actor=self.actor,
            detail={name: value for name, value in detail.items() if value is not None},
        )

    def _run_of(self, message: Peeked, key: RecordKey | None) -> str | None:
        job = self.job(key.job) if key is not None else None
        if key is not None and job is not None and job.ticks:  # EventBridge Scheduler signs nothing; its body says it
            return key.key
        return run_of(message)

    def record(self, event: str, **about: Any) -> None:
        """Write one such row; arguments as `row`."""
        self.engine.ledger.append([self.row(event, **about)])

    def together(self, write: Callable[[], T]) -> T:
        """Make one call's changes in one transaction where the engine has one; elsewhere one after the other.

        Raises:
            Exception: whatever the call raised; nothing of it was written, where there is a transaction.
        """

        def call() -> T:
            answer = write()
            wake_workers(self.engine)
            return answer

        return transaction(self.engine, call)

    def settings(self) -> dict[str, QueueSettings]:
        """All queues of the engine by name."""
        return {settings.name: settings for settings in self.engine.queues.settings()}

    def closed_queues(self) -> tuple[str, ...]:
        """Working queues that do not show what waits in them, as SQS's: a look receives the messages, and is counted."""
        names = sorted(roles(self.settings()).sources)
        return tuple(name for name in names if not self.engine.queues.open(name).capabilities.inspectable)

    def every(self, queue: str) -> Iterator[Peeked]:
        """All messages of a queue, from the oldest on. On SQS a look receives them: see `closed_queues`."""
        after: str | None = None
        while page := self.engine.queues.peek(queue, limit=_PAGE, after=after):
            yield from page
            after = page[-1].message_id

    def close(self) -> None:
        """Close the engine."""
        self._runtime.close()


def open_session(
    url: str,
    *,
    actor: str,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    jobs: Jobs | None = None,
    looks: bool = False,
) -> AdminSession:
    """A session on an engine as it is, or on a store for records; it must be there, and no queue is made.

    Args:
        jobs: of the app, or None where only the engine is known.
        looks: nothing is going to be changed: a file that this user may only read will do.

    Raises:
        NotFoundError: the file does not exist. UsageError: a malformed URL. StorageError: it cannot be used.
    """
    path = url.removeprefix("sqlite:///") if url.startswith("sqlite:///") else None
    size = None if path is None else _size_of(path)
    if path is not None and not size:
        relative = " A relative file is one of the folder that a process runs in." if not path.startswith("/") else ""
        raise errors.NotFoundError(
            f"{os.path.abspath(path)} is empty."
            if size is not None
            else f"There is no file {os.path.abspath(path)} yet.",
            meaning=f"It is made when an app first sends or a worker first runs.{relative}",
            todo="Look in the folder of the senders and workers, or name the file's absolute path in ONEFOLD_URL or --url."
            if relative
            else "Check the URL.",
        )
    runtime = Runtime(
        Registry(""), url, clock=clock or SystemClock(), entropy=entropy or SystemEntropy(), records_alone=True,
        looks=looks,
    )  # fmt: skip
    return AdminSession(runtime, actor=actor, jobs=jobs)


def _size_of(path: str) -> int | None:
    """A file's size in bytes; None where the file does not exist.

    Raises:
        StorageError: this user may not enter its folder, so that nobody can say.
    """
    try:
        return os.stat(path).st_size
    except PermissionError:
        folder = os.path.dirname(os.path.abspath(path))
        raise errors.StorageError(
            f"{folder}, or a folder above it, may not be entered by this user (uid {os.geteuid()}).",
            meaning=f"Whether there is a file {os.path.basename(path)} in it cannot be seen.",
            todo="Run the command as the user of the senders and workers, or let this one in with chmod, chown or setfacl.",
        ) from None
    except OSError:
        return None


def absolute(url: str) -> str:
    """A URL that names the same engine in every folder."""
    path = url.removeprefix("sqlite:///")
    return f"sqlite:///{os.path.abspath(path)}" if path != url and not path.startswith(":") else url


class Roles(Struct, frozen=True, kw_only=True):
    """Which queue is what.

    Args:
        sources: queues that are neither dead-letter nor held queue of another, by name.
        dead: dead-letter queue -> the queues it serves.
        held: held queue -> the queues it serves.
    """

    sources: Mapping[str, QueueSettings]
    dead: Mapping[str, tuple[str, ...]]
    held: Mapping[str, tuple[str, ...]]


def roles(settings: Mapping[str, QueueSettings]) -> Roles:
    """Sort queues by what they are for."""
    dead: dict[str, tuple[str, ...]] = {}
    held: dict[str, tuple[str, ...]] = {}
    for name, one in settings.items():
        if one.dead_letter not in (None, name):  # SQS lets a queue be its own
            dead[str(one.dead_letter)] = (*dead.get(str(one.dead_letter), ()), name)
        if one.held is not None:
            held[one.held] = (*held.get(one.held, ()), name)
    sources = {name: one for name, one in settings.items() if name not in dead and name not in held}
    return Roles(sources=sources, dead=dead, held=held)
