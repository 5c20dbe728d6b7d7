"""What every use case in `admin/` needs: an open engine, the jobs of the app if one is known, and the operator's name.

The command line and a web page open an `AdminSession` and call the same functions. What a person changes is written to the
ledger with that person's name, whatever the history level. Never here: the use cases themselves, output, parsing.
Invariant: opening a session on an engine that does not exist creates nothing.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from onefold import errors, redact
from onefold.clock import SystemClock
from onefold.contracts.admin import Peeked, roles
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
    from onefold.app import App
    from onefold.contracts.engine import Engine
    from onefold.outside import Clock, Entropy

T = TypeVar("T")
_DATABASES = (".db", ".sqlite", ".sqlite3")

_PAGE = 500  # messages per peek


class SessionJobs(Struct, frozen=True, kw_only=True):
    """What a session uses of an app's declarations; empty if only a URL is known.

    Args:
        named: the declared jobs by name.
        of: returns the job a message is for; raises NotFoundError if there is none.
        history: what the app's ledger keeps.
        queues: the queues it declares, for comparison with the engine's.
        app: its name. outbox: URL of the database with its outbox table, or None.
    """

    named: Mapping[str, Job[Any, Any]]
    of: Callable[[Delivery], Job[Any, Any]]
    history: History
    queues: tuple[QueueSettings, ...] = ()
    app: str = ""
    outbox: str | None = None


def jobs_of(app: App) -> SessionJobs:
    """What a session uses of this app's declarations."""
    return SessionJobs(
        named=app.jobs,
        of=app.registry.job_of,
        history=app.history,
        queues=tuple(app.registry.queue_settings()),
        app=app.name,
        outbox=app.outbox,
    )


class AdminSession:
    """An open engine, as an operator uses it.

    Args:
        runtime: with the open engine.
        jobs: the app's, or None if only the engine is known.
        actor: the person acting, as named in the ledger: `person:<login>`.

    Attributes:
        has_queues: False if the engine only stores records.
    """

    def __init__(self, runtime: Runtime, *, actor: str, jobs: SessionJobs | None = None) -> None:
        self.url = redact.masked(absolute(runtime.url))
        self.engine: Engine = runtime.engine
        self.clock = runtime.steady
        self.entropy: Entropy = runtime.entropy
        self.never = runtime.never()
        self.jobs = jobs
        self.actor = actor
        self.has_queues = not is_records_alone(runtime.url)
        self._runtime = runtime

    def acting_as(self, actor: str) -> AdminSession:
        """The same open engine, used by another person."""
        other = copy(self)
        other.actor = actor
        return other

    def now_ms(self) -> int:
        """The steady time that the engine uses for leases and lifetimes; the wall time unless the clock was changed."""
        return self.clock.now_ms()

    def job(self, name: str | None) -> Job[Any, Any] | None:
        """A declared job by its name or an earlier one; None if the job or the app is unknown."""
        if self.jobs is None or name is None:
            return None
        found = self.jobs.named.get(name)
        return (
            found if found is not None else next((job for job in self.jobs.named.values() if name in job.aliases), None)
        )

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
        """The ledger row for something this person does; details that are None are left out.

        If the worker could not read a dead letter's key, its earlier rows have no key; `there_for` repeats their reason.

        Args:
            run: the one that the operation belongs to; by default its message's.
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
        if key is not None and job is not None and job.ticks:  # EventBridge Scheduler signs nothing: the key is the run
            return key.key
        return run_of(message)

    def record(self, event: str, **about: Any) -> None:
        """Write a row to the ledger; takes the arguments of `row`."""
        self.engine.ledger.append([self.row(event, **about)])

    def together(self, write: Callable[[], T]) -> T:
        """Make one call's changes in one transaction if the engine has transactions, otherwise one after another.

        Raises:
            Exception: whatever the call raised; if there is a transaction, nothing was written.
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
        """Source queues whose messages can only be read by receiving them (SQS), which adds to their receive counts."""
        names = sorted(roles(self.settings()).sources)
        return tuple(name for name in names if not self.engine.queues.open(name).capabilities.inspectable)

    def every(self, queue: str) -> Iterator[Peeked]:
        """All messages in a queue, oldest first. On SQS, reading receives them: see `closed_queues`."""
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
    jobs: SessionJobs | None = None,
    read_only: bool = False,
) -> AdminSession:
    """A session on an existing engine or record store; it creates no queues.

    Args:
        jobs: the app's, or None if only the engine is known.
        read_only: nothing will be changed, so permission to read the file is enough.

    Raises:
        NotFoundError: the file does not exist. UsageError: a malformed URL. StorageError: the engine cannot be used.
    """
    path = url.removeprefix("sqlite:///").partition("?")[0] if url.startswith("sqlite:///") else None
    size = None if path is None else _size_of(path)
    if path is not None and not size:
        raise _no_file(path, is_empty=size is not None)
    runtime = Runtime(
        Registry(""), url, clock=clock or SystemClock(), entropy=entropy or SystemEntropy(), records_alone=True,
        read_only=read_only,
    )  # fmt: skip
    return AdminSession(runtime, actor=actor, jobs=jobs)


def _no_file(path: str, *, is_empty: bool) -> errors.NotFoundError:
    """The error for a database that does not exist yet, with one that was perhaps meant."""
    place = os.path.abspath(path)
    folder, name = os.path.split(place)
    meaning = "It is created when an app first sends or a worker first runs."
    if is_empty:
        meaning = "No app has sent anything to it yet, and no worker has run on it."
    todo = "Check the URL."
    if not os.path.isdir(folder) and os.path.basename(folder) != ".onefold":
        meaning = f"Its folder does not exist either: {folder}."
    if not path.startswith("/"):
        meaning += " A relative path starts at the folder that a process runs in."
        todo = "Look where the senders and workers run, or give the file's absolute path in ONEFOLD_URL or --url."
    with suppress(OSError):
        others = [one for one in os.listdir(folder) if one.endswith(_DATABASES) and one != name]
        near = difflib.get_close_matches(name, others, n=1)
        if near:
            todo = f"Did you mean sqlite:///{os.path.join(os.path.dirname(path), near[0])}?"
    return errors.NotFoundError(
        f"{place} is empty." if is_empty else f"There is no file {place} yet.", meaning=meaning, todo=todo
    )


def _size_of(path: str) -> int | None:
    """A file's size in bytes; None if the file does not exist.

    Raises:
        StorageError: this user may not enter its folder, so onefold cannot tell whether it exists.
    """
    try:
        return os.stat(path).st_size
    except PermissionError:
        folder = os.path.dirname(os.path.abspath(path))
        raise errors.StorageError(
            f"This user (uid {os.geteuid()}) may not enter {folder}, or a folder above it.",
            meaning=f"onefold cannot tell whether the file {os.path.basename(path)} exists there.",
            todo="Run the command as the senders' and workers' user, or give this one access with chmod, chown or setfacl.",
        ) from None
    except OSError:
        return None


def absolute(url: str) -> str:
    """The URL in a form that names the same engine from any folder."""
    path = url.removeprefix("sqlite:///")
    return f"sqlite:///{os.path.abspath(path)}" if path != url and not path.startswith(":") else url
