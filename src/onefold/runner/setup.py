"""Makes a runner for an app's jobs on an opened runtime, for a worker, a Lambda container or a test.

Never here: what a delivery's source does with it. Invariant: an app's runner is made only after the app has taken the
names of its jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onefold.contracts.ledger import History
from onefold.contracts.queue import Delivery
from onefold.contracts.state import group_flag
from onefold.runner.admission import CACHE_MS, Admission
from onefold.runner.handlers import Job
from onefold.runner.late_closer import LateCloser
from onefold.runner.runner import Runner
from onefold.runner.settlement import Backend, backend_of
from onefold.runtime.events import Sinks
from onefold.runtime.runtime import Runtime


def make_runner(
    runtime: Runtime,
    jobs: Mapping[str, Job[Any, Any]],
    job_of: Callable[[Delivery], Job[Any, Any]],
    *,
    lease_ms: int,
    sinks: Sinks,
    history: History,
    backend: Backend | None = None,
) -> Runner:
    """A runner for these jobs on an opened engine; the runtime's own events go to its sinks from now on.

    Raises:
        ConflictError: another app has a job with one of these names on this engine. UsageError: an earlier version of a
            job's payload cannot be upgraded.
    """
    for job in jobs.values():
        if job.versions is not None:
            job.versions.check()
    runtime.take_names_of(jobs)
    closer = LateCloser(runtime.engine, jobs, runtime.steady)
    runtime.attach(sinks, closer.touch)
    runtime.engine.stop_groups(lambda queue, group, job: _flag_of(jobs, queue, group, job))
    backend = backend_of(runtime.engine) if backend is None else backend
    return runner_on(runtime, backend, job_of, closer, lease_ms=lease_ms, sinks=sinks, history=history)


def runner_on(
    runtime: Runtime,
    backend: Backend,
    job_of: Callable[[Delivery], Job[Any, Any]],
    closer: LateCloser,
    *,
    lease_ms: int,
    sinks: Sinks,
    history: History,
    cache_ms: int = CACHE_MS,
) -> Runner:
    """A runner on a backend of an opened runtime; the names of its jobs are taken. `cache_ms`: as for `Admission`."""
    clock, owner = runtime.steady, runtime.owner
    return Runner(
        backend,
        job_of,
        clock=clock,
        entropy=runtime.entropy,
        never=runtime.never(),
        owner=owner,
        lease_ms=lease_ms,
        sinks=sinks,
        history=history,
        admission=Admission(backend.state, clock=clock, owner=owner, lease_ms=lease_ms, cache_ms=cache_ms),
        closer=closer,
        settings=runtime.settings,
    )


def _flag_of(jobs: Mapping[str, Job[Any, Any]], queue: str, group: str, named: str | None) -> str | None:
    """The flag with which a dead-lettered message stops its group; None: its job's policy lets the group go on."""
    own = [one for one in jobs.values() if one.policy.queue == queue]
    job = jobs.get(named) if named is not None else own[0] if len(own) == 1 else None
    return group_flag(queue, group) if job is None or job.policy.after_failure == "stop" else None
