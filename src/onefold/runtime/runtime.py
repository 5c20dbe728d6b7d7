"""What a process has opened for an app: an engine with the app's queues, the clock, chance, and who hears of events.

A `Runtime` opens its engine when something is first sent, run or asked, once, whatever thread that is in. Jobs, schedules,
maps and buses hold it from their declaration on, so that importing a module that declares an app opens nothing.
Never here: what is declared (`registry.py`), how messages are treated, output.
Invariant: nothing is opened before it is needed, and everything that was opened is closed by `close`.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onefold import errors, forks
from onefold.clock import Never, steady
from onefold.contracts.settings import differences, is_workable
from onefold.engines import urls
from onefold.registry import Registry
from onefold.runtime import outgoing as sending
from onefold.runtime.names import take

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from onefold.clock import SteadyClock
    from onefold.contracts.engine import Engine
    from onefold.contracts.ledger import History
    from onefold.contracts.settings import QueueSettings
    from onefold.outside import Clock, Entropy, Waiter
    from onefold.runner.handlers import Job
    from onefold.runtime.events import Sink, Sinks
    from onefold.runtime.outgoing import Outgoing, Receipt


class Runtime:
    """An engine with the queues of one app, opened when it is first needed. Safe from any thread, and in forked children.

    Args:
        registry: what the app declares. Its queues are created when the engine is opened, unless a deployment makes them;
            one that is there with other times or limits stays as it is, so that two versions work side by side.
        url: which engine, for example `sqlite:///.onefold/shop.db` or `sqlite://:memory:`.
        clock, entropy: where time and chance come from.
        history: what the ledger keeps. app_sinks: the sinks that the app names.
        records_alone: the URL may be that of a store for records, which has no queues.
        looks: to look at what is there: a file may be one that this user can only read.

    What needs the engine opens it, and raises as `open` does.
    """

    def __init__(
        self,
        registry: Registry,
        url: str,
        *,
        clock: Clock,
        entropy: Entropy,
        history: History = "brief",
        app_sinks: Sequence[Sink] = (),
        records_alone: bool = False,
        looks: bool = False,
    ) -> None:
        self.registry = registry
        self.url: str = url
        self.clock: Clock = clock
        self.entropy: Entropy = entropy
        self.history: History = history
        self.app_sinks = app_sinks
        self.records_alone = records_alone
        self.looks = looks
        self._opened: _Opened | None = None
        self._opening = threading.Lock()
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: it has no part in the engine that its parent opened, and opens its own when it needs one."""
        self._opening = threading.Lock()
        if self._opened is not None and self._opened.engine.shared:  # one in memory refuses by itself
            forks.keep_for_ever(self._opened)
            self._opened = None

    # -- opening and closing -----------------------------------------------------------------------------------------

    def open(self, url: str | None = None) -> None:
        """Open the engine, with all declared queues created, unless it is open; where a queue differs, a warning is logged.

        Args:
            url: another engine than this runtime's own; what is open already stays.

        Raises:
            UsageError: an unknown scheme. StorageError: the file cannot be used.
            ConflictError: a queue exists with settings that cannot be worked with.
        """
        if self._opened is not None:
            return
        with self._opening:
            if self._opened is None:
                self._opened = _Opened(self, url or self.url)
                if self._opened.warnings:
                    import logging  # 11 ms to import, and this is rare

                    for warning in self._opened.warnings:
                        logging.getLogger("onefold").warning(
                            "%s To change them: onefold queue apply MODULE:APP", warning
                        )

    def _here(self) -> _Opened:
        opened = self._opened
        while opened is None:  # else another thread has closed it just now
            self.open()
            opened = self._opened
        return opened

    def close(self, *, unfinished: bool = False) -> None:
        """Close the engine if it is open; what was accepted is on disk already. It is opened again when it is needed.

        Args:
            unfinished: handlers still run in this process; what they hold is freed when it ends.
        """
        with self._opening:  # by another thread, perhaps: what it opens is closed
            if self._opened is not None:
                self._opened.engine.close(unfinished=unfinished)
                self._opened = None

    @contextmanager
    def reopened(self, url: str, clock: Clock, entropy: Entropy) -> Iterator[None]:
        """Use another engine, clock and chance for a while; for tests and simulations. Not safe from several threads."""
        before = (self._opened, self.url, self.clock, self.entropy)
        self._opened, self.url, self.clock, self.entropy = None, url, clock, entropy
        try:
            yield
        finally:
            self.close()
            self._opened, self.url, self.clock, self.entropy = before

    # -- what is open ------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The opened engine."""
        return self._here().engine

    @property
    def steady(self) -> SteadyClock:
        """The time of what is stored."""
        return self._here().steady

    @property
    def owner(self) -> str:
        """This process's id on the engine."""
        return self._here().owner

    @property
    def settings(self) -> dict[str, QueueSettings]:
        """The app's queues as the engine has them, by name."""
        return self._here().settings

    @property
    def warnings(self) -> list[str]:
        """How queues differ from what was declared, a sentence each."""
        return self._here().warnings

    @property
    def sinks(self) -> Sinks | None:
        """Of this process's worker or handler: they also get what is emitted outside of deliveries; None: there is none."""
        return self._here().sinks

    def attach(self, sinks: Sinks, touch_run: Callable[[str], None]) -> None:
        """Let a worker or handler of this process hear of what is emitted, and of runs that may be complete."""
        opened = self._here()
        opened.sinks, opened.touch_run = sinks, touch_run

    def touch_run(self, name: str) -> None:
        """A run may be complete: have this process's worker look at it, if there is one."""
        touch = self._here().touch_run
        if touch is not None:
            touch(name)

    # -- verbs -------------------------------------------------------------------------------------------------------

    def send(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """Accept messages durably, all or none; errors as `sending.send_all`."""
        return sending.send_all(self, outgoing, self.history)

    def now_ms(self) -> int:
        """Wall time; opens nothing."""
        return self.clock.now_ms()

    def take_names(self, names: Collection[str], app: str) -> None:
        """Have the names of jobs belong to the app on this engine, as `names.take`; asks once for each name."""
        opened = self._here()
        if not opened.named.issuperset(names):
            take(opened.engine.state, names, app, opened.steady.now_ms())
            opened.named.update(names)

    def take_names_of(self, jobs: Mapping[str, Job[Any, Any]]) -> None:
        """As `take_names`, for an app's jobs."""
        for app in {job.app for job in jobs.values()}:
            self.take_names([name for name, job in jobs.items() if job.app == app], app)

    def s3_client(self) -> Any:
        """A client for places on S3, in the account of the engine."""
        return urls.s3_client(self._here().url)

    def never(self) -> Waiter:
        """For pauses that nobody ends early."""
        return Never()


class _Opened:
    """One engine, open; it is made whole or not at all."""

    def __init__(self, runtime: Runtime, url: str) -> None:
        queues = runtime.registry.queue_settings()
        self.url = url
        self.steady: SteadyClock = steady(runtime.clock)
        self.owner: str = runtime.entropy.token()
        self.settings: dict[str, QueueSettings] = {one.name: one for one in queues}
        self.warnings: list[str] = []
        self.named: set[str] = set()
        self.sinks: Sinks | None = None
        self.touch_run: Callable[[str], None] | None = None
        self.engine: Engine = urls.open_engine(
            url, clock=self.steady, entropy=runtime.entropy, owner=self.owner,
            records_alone=runtime.records_alone, looks=runtime.looks,
        )  # fmt: skip
        try:
            for settings in queues if not self.engine.provisioned else ():
                self._create(settings)
        except BaseException:
            self.engine.close()
            raise

    def _create(self, settings: QueueSettings) -> None:
        try:
            self.engine.queues.create(settings)
        except errors.ConflictError:
            stored = self.engine.queues.setting(settings.name)
            if not is_workable(stored, settings):
                raise
            self.settings[settings.name] = stored
            self.warnings.append(differing(stored, settings))


def differing(stored: QueueSettings, asked: QueueSettings) -> str:
    """How a queue differs from its declaration, and what that means."""
    then = (
        "The queue's own settings count." if is_workable(stored, asked) else "Workers and senders of the app refuse it."
    )
    return f"Queue {asked.name} differs from its declaration: {'; '.join(differences(stored, asked))}. {then}"
