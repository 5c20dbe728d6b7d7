"""The things that a process has opened for an app: an engine with the app's queues, a clock, random numbers and sinks.

A `Runtime` opens its engine once, at the first use, in whichever thread that happens. Jobs, schedules, maps and buses
refer to the runtime from their declaration on, so that importing a module that declares an app opens nothing.
Never here: what is declared (`registry.py`), processing messages, output.
Invariant: nothing is opened before it is needed, and everything that was opened is closed by `close`.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from onefold import errors, forks
from onefold.clock import Never, steady
from onefold.contracts.settings import differences, is_workable
from onefold.engines import urls
from onefold.record.key_identity import RuleIdentity, identity_of
from onefold.registry import Registry
from onefold.runtime import outgoing as sending
from onefold.runtime.events import tracing_of
from onefold.runtime.names import take

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from onefold.clock import SteadyClock
    from onefold.contracts.engine import Engine
    from onefold.contracts.ledger import History
    from onefold.contracts.settings import QueueSettings
    from onefold.outside import Clock, Entropy, Waiter
    from onefold.runner.handlers import Job
    from onefold.runner.hooks import HookSet
    from onefold.runtime.asynchronous import LoopThreads
    from onefold.runtime.events import Sink, Sinks
    from onefold.runtime.outgoing import Outgoing, Receipt
    from onefold.runtime.tracing import Tracing

T = TypeVar("T")


class Runtime:
    """An engine with the queues of one app, opened when it is first needed. Safe from any thread, and in forked children.

    Args:
        registry: what the app declares. Its queues are created when the engine is opened, unless a deployment makes them;
            one that exists with other times or limits is not changed, so that two versions of an app can run side by side.
        url: which engine, for example `sqlite:///.onefold/shop.db` or `sqlite://:memory:`.
        clock, entropy: sources of time and of random numbers.
        history: what the ledger keeps. app_sinks, hooks: those that the app names.
        records_alone: the URL may be a store for records, which has no queues.
        read_only: nothing is written, so read access to a file is enough.
        outbox_url: the database with the app's outbox table; None if it has no outbox.

    Methods that need the engine open it, and raise as `open` does.
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
        hooks: HookSet | None = None,
        records_alone: bool = False,
        read_only: bool = False,
        outbox_url: str | None = None,
    ) -> None:
        self.registry = registry
        self.outbox_url: str | None = outbox_url
        self.url: str = url
        self.clock: Clock = clock
        self.entropy: Entropy = entropy
        self.history: History = history
        self.app_sinks = app_sinks
        self.hooks: HookSet | None = hooks
        self.records_alone = records_alone
        self.read_only = read_only
        self._opened: _Opened | None = None
        self._threads: LoopThreads | None = None
        self._opening = threading.Lock()
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: drop the engine that the parent opened; the child opens its own when it needs one."""
        self._opening, self._threads = threading.Lock(), None
        if self._opened is not None and self._opened.engine.shared:  # an engine in memory refuses this itself
            forks.keep_for_ever(self._opened)
            self._opened = None

    @property
    def app_sinks(self) -> Sequence[Sink]:
        """The sinks that the app names; one of them may provide `tracing`."""
        return self._app_sinks

    @app_sinks.setter
    def app_sinks(self, sinks: Sequence[Sink]) -> None:
        self._app_sinks = sinks
        self.tracing: Tracing | None = tracing_of(sinks)

    # -- opening and closing -----------------------------------------------------------------------------------------

    def open(self, url: str | None = None, *, patient: bool = True) -> None:
        """Open the engine, unless it is open, and create all declared queues; logs a warning for each that differs.

        Args:
            url: an engine other than this runtime's own; an open engine stays open.
            patient: wait for other writers as long as in any call; otherwise only for a moment.

        Raises:
            UsageError: an unknown scheme. StorageError: the file cannot be used.
            ConflictError: a queue exists with incompatible settings.
        """
        if self._opened is not None:
            return
        with self._opening:
            if self._opened is None:
                for sink in self.app_sinks:
                    if hasattr(sink, "opened"):
                        sink.opened(url or self.url)
                self._opened = _Opened(self, url or self.url, patient=patient)
                if self._opened.warnings:
                    import logging  # 11 ms to import, and this is rare

                    for warning in self._opened.warnings:
                        logging.getLogger("onefold").warning(
                            "%s To change them: onefold queue apply %s", warning, self.registry.command_name
                        )

    def _here(self) -> _Opened:
        opened = self._opened
        while opened is None:  # repeated if another thread has just closed it
            self.open()
            opened = self._opened
        return opened

    def close(self, *, unfinished: bool = False) -> None:
        """Close the engine if it is open; accepted messages are on disk already. It is opened again when needed.

        Args:
            unfinished: handlers are still running in this process; what they hold is freed when the process ends.
        """
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.close()
        with self._opening:  # if another thread is opening the engine, that one is closed as well
            if self._opened is not None:
                self._opened.engine.close(unfinished=unfinished)
                self._opened = None

    @contextmanager
    def reopened(self, url: str, clock: Clock, entropy: Entropy) -> Iterator[None]:
        """Use another engine, clock and entropy for a while; for tests and simulations. Not safe from several threads."""
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
        """The clock for stored times."""
        return self._here().steady

    @property
    def owner(self) -> str:
        """This process's id on the engine."""
        return self._here().owner

    @property
    def settings(self) -> dict[str, QueueSettings]:
        """The app's queues on the engine, by name."""
        return self._here().settings

    @property
    def warnings(self) -> list[str]:
        """How queues differ from their declarations, one sentence each."""
        return self._here().warnings

    @property
    def sinks(self) -> Sinks | None:
        """The sinks of this process's worker or handler; they also get events outside deliveries. None if it has neither."""
        return self._here().sinks

    def attach(self, sinks: Sinks, touch_run: Callable[[str], None]) -> None:
        """Register a worker or handler of this process; it then gets emitted events and runs that may be complete."""
        opened = self._here()
        opened.sinks, opened.touch_run = sinks, touch_run

    def touch_run(self, name: str) -> None:
        """Let this process's worker, if there is one, check whether a run is complete."""
        touch = self._here().touch_run
        if touch is not None:
            touch(name)

    # -- verbs -------------------------------------------------------------------------------------------------------

    def send(self, outgoing: Sequence[Outgoing], connection: object = None) -> list[Receipt]:
        """Accept messages durably, all or none; errors as for `outgoing.send_all`.

        Args:
            connection: the caller's, as for `callers.driver_connection`: the messages are accepted if, and only if, the
                transaction that is open on it commits.

        Raises:
            UsageError: it cannot be used for that, or the engine has no transaction to join; nothing was sent.
        """
        if self.tracing is None:
            return self._send(outgoing, connection)
        with self.tracing.sending(outgoing) as carrying:
            return self._send(carrying, connection)

    def _send(self, outgoing: Sequence[Outgoing], connection: object) -> list[Receipt]:
        if connection is None:
            return sending.send_all(self, outgoing, self.history)
        from onefold.runtime import callers, outbox  # cold starts are measured, and few senders have a connection

        found = callers.driver_connection(connection)
        if outbox.takes(found, self.url):
            return outbox.put(self.registry, self.outbox_url, outgoing, found, self.now_ms())
        with self._joined(found), sending.of_caller():
            return sending.send_all(self, outgoing, self.history)

    async def asend(self, outgoing: Sequence[Outgoing], connection: object = None) -> list[Receipt]:
        """Like `send`, from a coroutine, without blocking its loop.

        Args:
            connection: as for `callers.async_driver_connection`: an asynchronous connection to a database with an
                outbox.
        """
        if connection is None:
            return await self.in_thread(lambda: self.send(outgoing))
        from onefold.runtime import callers, outbox  # as above

        found = await callers.async_driver_connection(connection)
        if self.tracing is None:
            return await outbox.aput(self.registry, self.outbox_url, outgoing, found, self.now_ms())
        with self.tracing.sending(outgoing) as carrying:
            return await outbox.aput(self.registry, self.outbox_url, carrying, found, self.now_ms())

    def outbox_item(self, one: Outgoing) -> dict[str, dict[str, Any]]:
        """See `Job.outbox_item`."""
        from onefold.runtime import outbox  # as above

        if self.tracing is None:
            return outbox.action(self.registry, self.outbox_url, one, self.now_ms(), self.entropy.token())
        with self.tracing.sending([one], outbox=True) as (carrying,):
            return outbox.action(self.registry, self.outbox_url, carrying, self.now_ms(), self.entropy.token())

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Make a blocking call in a thread, for a coroutine. Returns or raises what the call does.

        If the task is cancelled meanwhile, a call that has begun still runs to its end.
        """
        return await self._loop_threads().run(call)

    async def pause(self, pause_ms: int) -> None:
        """Wait in a coroutine for at most this long, without blocking the loop."""
        clock, never = self.steady, self.never()
        await self._loop_threads().pause(lambda: clock.wait(never, pause_ms))

    def _loop_threads(self) -> LoopThreads:
        threads = self._threads
        if threads is None:
            from onefold.runtime.asynchronous import LoopThreads  # asyncio costs 36 ms, which only coroutines pay

            threads = self._threads = LoopThreads()
        return threads

    def _joined(self, connection: object) -> AbstractContextManager[None]:
        try:
            self.open(patient=False)
        except errors.StorageBusy as error:
            raise errors.UsageError(
                f"App {self.registry.name} was not open yet, and cannot be opened inside your transaction: {error.what}",
                meaning="Its queues must be created, and your transaction may be holding the file. Nothing was sent.",
                todo="Call app.runtime() once when the program starts, before the first transaction.",
            ) from error
        join = self.engine.joined
        if join is None:
            raise errors.UsageError(
                f"The queues of app {self.registry.name} are not in a database that a connection can reach.",
                meaning="The message and your rows would not be in one transaction. Nothing was sent.",
                todo="Leave connection= out, and send after your commit.",
            )
        return join(connection)

    def now_ms(self) -> int:
        """Wall time; opens nothing."""
        return self.clock.now_ms()

    def take_names(self, names: Collection[str], app: str, rules: Mapping[str, RuleIdentity] | None = None) -> None:
        """Take the names of jobs for the app on this engine, as `names.take` does, and log its warnings; each only once."""
        opened = self._here()
        wanted: dict[str, RuleIdentity | None] = {name: (rules or {}).get(name) for name in names}
        if all(name in opened.named and rule in (None, opened.named[name]) for name, rule in wanted.items()):
            return
        for warning in take(opened.engine.state, names, app, opened.steady.now_ms(), rules):
            import logging  # as above

            logging.getLogger("onefold").warning("%s", warning)
        if not sending.is_of_caller():  # names taken in the caller's transaction may be rolled back
            opened.named.update({name: rule or opened.named.get(name) for name, rule in wanted.items()})

    def take_names_of(self, jobs: Mapping[str, Job[Any, Any]]) -> None:
        """Like `take_names`, for an app's jobs, whose key rules are remembered for the next release."""
        for app in {job.app for job in jobs.values()}:
            own = [job for job in jobs.values() if job.app == app]
            self.take_names([name for job in own for name in job.names], app, rules_of(own))

    def s3_client(self) -> Any:
        """A client for S3, in the account of the engine."""
        return urls.s3_client(self._here().url)

    def never(self) -> Waiter:
        """A waiter for pauses that are never cut short."""
        return Never()


class _Opened:
    """One opened engine; it is opened completely or not at all."""

    def __init__(self, runtime: Runtime, url: str, *, patient: bool) -> None:
        queues = runtime.registry.queue_settings()
        self.url = url
        self.steady: SteadyClock = steady(runtime.clock)
        self.owner: str = runtime.entropy.token()
        self.settings: dict[str, QueueSettings] = {one.name: one for one in queues}
        self.warnings: list[str] = []
        self.named: dict[str, RuleIdentity | None] = {}  # with the key rules that were stored
        self.sinks: Sinks | None = None
        self.touch_run: Callable[[str], None] | None = None
        self.engine: Engine = urls.open_engine(
            url, clock=self.steady, entropy=runtime.entropy, owner=self.owner,
            records_alone=runtime.records_alone, read_only=runtime.read_only,
        )  # fmt: skip
        try:
            self.engine.hurry(None if patient else 0)
            for settings in queues if not self.engine.provisioned else ():
                self._create(settings)
            self.engine.hurry(None)
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
    """A sentence about how a queue differs from its declaration, and what that means."""
    then = (
        "The queue's own settings count." if is_workable(stored, asked) else "Workers and senders of the app refuse it."
    )
    return f"Queue {asked.name} differs from its declaration: {'; '.join(differences(stored, asked))}. {then}"


def rules_of(jobs: Iterable[Job[Any, Any]]) -> dict[str, RuleIdentity]:
    """The key rules of jobs, under each of their names; not of those to which only onefold sends."""
    return {
        name: identity_of(job.rules.key, job.rules.tenant)
        for job in jobs
        if not (job.internal or job.ticks)
        for name in job.names
    }
