"""Settings to live objects: an app's queues on an opened engine.

`backends/urls.py` turns a URL into the contracts of one backend; `Runtime` adds what a process needs to run jobs on it:
an owner id, presence, wake-up, sinks. Never here: declarations (app.py), decisions, output.
Invariant: nothing is opened before it is asked for, and everything that was opened is closed by `close`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from onefold import errors, maps
from onefold.backends import urls
from onefold.clock import Never
from onefold.contracts.settings import differences, is_workable
from onefold.contracts.state import group_flag
from onefold.runner.admission import Admission
from onefold.runner.names import take
from onefold.runner.runner import Runner
from onefold.runner.settlement import Backend, JointTransaction
from onefold.steady_clock import SteadyClock, steady

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from onefold.contracts.engine import Engine
    from onefold.contracts.ledger import History
    from onefold.contracts.queue import Delivery
    from onefold.contracts.settings import QueueSettings
    from onefold.contracts.verbs import Queue
    from onefold.maps.sources import ResultLocation, Source
    from onefold.outside import Clock, Entropy, Waiter
    from onefold.runner.completion import Closing
    from onefold.runner.events import Sinks
    from onefold.runner.handlers import Job


def backend_of(engine: Engine) -> Backend:
    """What a runner needs of an engine."""
    commit, opened = engine.commit, engine.effects

    def open_queue(name: str) -> Queue:
        return engine.queues.open(name)  # asked for so late, since a function may need no operator's verb

    backend = Backend(
        store=engine.store,
        ledger=engine.ledger,
        state=engine.state,
        commit=commit,
        open_queue=open_queue,
        effects=commit.effects if commit is not None else None,
    )
    if commit is not None or opened is None:
        return backend

    def effects(limit_ms: int) -> JointTransaction | None:
        inner = opened(limit_ms)
        return JointTransaction(backend, inner) if inner is not None else None

    return msgspec.structs.replace(backend, effects=effects)


def differing(stored: QueueSettings, asked: QueueSettings) -> str:
    """How a queue differs from its declaration, and what that means."""
    then = (
        "The queue's own settings count." if is_workable(stored, asked) else "Workers and senders of the app refuse it."
    )
    return f"Queue {asked.name} differs from its declaration: {'; '.join(differences(stored, asked))}. {then}"


def _flag_of(jobs: Mapping[str, Job[Any, Any]], queue: str, group: str, named: str | None) -> str | None:
    """The flag that stops a group by a message's job; a message whose job nobody here knows stops its group."""
    own = [one for one in jobs.values() if one.policy.queue == queue]
    job = jobs.get(named) if named is not None else own[0] if len(own) == 1 else None
    return group_flag(queue, group) if job is None or job.policy.after_failure == "stop" else None


class Runtime:
    """An opened engine with the queues of one app.

    Args:
        url: which engine, for example `sqlite:///.onefold/shop.db` or `sqlite://:memory:`.
        queues: declared queues, created now if they are not there, unless a deployment makes them. One that is there with
            other times or limits stays as it is, so that processes of two versions work side by side; see `warnings`.
        clock, entropy: where time and chance come from.
        records_alone: the URL may be that of a store for records, which has no queues.
        looks: to look at what is there: a file may be one that this user can only read.

    Attributes:
        warnings: how queues differ from what was declared, a sentence each.

    Raises:
        UsageError: unknown scheme, or a queue that exists with settings that cannot be worked with (ConflictError).
        StorageError: the file cannot be used.
    """

    def __init__(
        self,
        url: str,
        queues: Sequence[QueueSettings],
        *,
        clock: Clock,
        entropy: Entropy,
        records_alone: bool = False,
        looks: bool = False,
    ) -> None:
        self.url = url
        self.clock = clock
        self.steady: SteadyClock = steady(clock)
        self.entropy = entropy
        self.owner: str = entropy.token()
        self.settings: dict[str, QueueSettings] = {one.name: one for one in queues}
        self.closer: Closing | None = None  # of this process's runner
        self.sinks: Sinks | None = None  # of this process's runner: they also get what is emitted outside of deliveries
        self.engine: Engine = urls.open_engine(
            url, clock=self.steady, entropy=entropy, owner=self.owner, records_alone=records_alone, looks=looks
        )
        self.backend: Backend = backend_of(self.engine)
        self.warnings: list[str] = []
        self._named: set[str] = set()
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

    def runner(
        self,
        jobs: Mapping[str, Job[Any, Any]],
        job_of: Callable[[Delivery], Job[Any, Any]],
        *,
        lease_ms: int,
        sinks: Sinks,
        history: History,
    ) -> Runner:
        """A runner for these jobs on this engine.

        Raises:
            ConflictError: another app's job on this engine has the name of one.
        """
        self.take_names_of(jobs)
        self.sinks = sinks
        from onefold.runner.completion import (
            Closer,  # with `runs`, a tenth of a cold start; a Lambda handler has its own
        )

        self.closer = Closer(self.engine, jobs, self.steady)
        self.engine.stop_groups(lambda queue, group, job: _flag_of(jobs, queue, group, job))
        return Runner(
            self.backend,
            job_of,
            clock=self.steady,
            entropy=self.entropy,
            never=self.never(),
            owner=self.owner,
            lease_ms=lease_ms,
            sinks=sinks,
            history=history,
            admission=Admission(self.backend.state, clock=self.steady, owner=self.owner, lease_ms=lease_ms),
            closer=self.closer,
            settings=self.settings,
        )

    def take_names(self, names: Collection[str], app: str) -> None:
        """Have the names of jobs belong to the app on this engine, as `names.take`; asks once for each name."""
        if not self._named.issuperset(names):
            take(self.engine.state, names, app, self.steady.now_ms())
            self._named.update(names)

    def take_names_of(self, jobs: Mapping[str, Job[Any, Any]]) -> None:
        """As `take_names`, for an app's jobs."""
        for app in {job.app for job in jobs.values()}:
            self.take_names([name for name, job in jobs.items() if job.app == app], app)

    def source(self, place: str) -> Source:
        """The file, directory, S3 object or prefix that a map run reads; errors as `sources.source_of`."""
        return maps.source_of(place, urls.s3_client(self.url) if place.startswith("s3://") else None)

    def results(self, place: str) -> ResultLocation:
        """Where a map run writes its result files: a folder or an S3 prefix."""
        return maps.result_location(place, urls.s3_client(self.url) if place.startswith("s3://") else None)

    def never(self) -> Waiter:
        """For pauses that nobody ends early."""
        return Never()

    def close(self, *, unfinished: bool = False) -> None:
        """Close the engine; what was accepted is on disk already. `unfinished`: handlers still run in this process."""
        self.engine.close(unfinished=unfinished)
