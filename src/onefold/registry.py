"""What an app declares, as data: queues, jobs, schedules, map runs, reconciliations, buses, pipes, each by its name.

`App` fills it, a `Runtime` opens an engine for it; workers, handlers and operators read it.
Never here: options and their checks (`app.py`), engines, clocks, behaviour of what is declared. The classes of what is
declared belong to higher layers and are named only in annotations.
Invariant: a job gets a message only if it was declared on the message's queue.
Private: may change with any release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onefold import errors
from onefold.contracts.queue import APP_ATTRIBUTE, JOB_ATTRIBUTE, VERSION_ATTRIBUTE
from onefold.contracts.settings import differences
from onefold.options import AlarmTargets, Queue

if TYPE_CHECKING:
    from onefold.contracts.queue import Attribute, Delivery
    from onefold.contracts.settings import QueueSettings
    from onefold.events.bus import Bus
    from onefold.events.pipes import Pipe
    from onefold.maps.jobs import MapJob
    from onefold.reconcile.reconciler import Reconciler
    from onefold.runner.handlers import Job
    from onefold.schedules.schedule import Schedule


class Registry:
    """The declarations of one app.

    Args:
        name: the name of the app; empty if only an engine is known.

    Attributes:
        queues, jobs, schedules, maps, reconcilers, buses, pipes: what was declared, by name.
        aliases: earlier names of jobs, each with the job's name.
        alarms: where alarms are sent; None if that is not declared.
        command_name: the app on a command line; a placeholder where no command has named it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.command_name = "MODULE:APP"
        self.queues: dict[str, Queue] = {}
        self.jobs: dict[str, Job[Any, Any]] = {}
        self.aliases: dict[str, str] = {}
        self.schedules: dict[str, Schedule] = {}
        self.maps: dict[str, MapJob] = {}
        self.reconcilers: dict[str, Reconciler] = {}
        self.buses: dict[str, Bus] = {}
        self.pipes: dict[str, Pipe] = {}
        self.alarms: AlarmTargets | None = None

    def add_queue(self, declared: Queue) -> Queue:
        """Add a queue; returns the existing one if it was declared before with the same settings.

        Raises:
            ConflictError: it was declared before with other settings.
        """
        known = self.queues.setdefault(declared.name, declared)
        if known != declared:
            raise errors.ConflictError(
                f"Queue {declared.name} was declared twice with different settings:"
                f" {'; '.join(differences(known.settings, declared.settings)) or 'in its dead-letter or held queue'}.",
                todo="Declare it once and pass the object that app.queue returned.",
            )
        return known

    def check_own(self, queue: Queue) -> None:
        """Refuse anything that is not a queue of this app.

        Raises:
            UsageError: it is not a queue, or was declared elsewhere.
        """
        if not isinstance(queue, Queue):
            raise errors.UsageError(f"{queue!r} is not a queue.", todo="Pass what app.queue(...) returned.")
        if self.queues.get(queue.name) is not queue:
            raise errors.UsageError(
                f"Queue {queue.name} was not declared on app {self.name}.", todo="Pass what app.queue(...) returned."
            )

    def queue_settings(self) -> list[QueueSettings]:
        """The settings of every declared queue, each after those of its dead-letter and held queue."""
        return [one for queue in self.queues.values() for one in (queue.dead_letter, queue.held, queue.settings)]

    def job_of(self, delivery: Delivery) -> Job[Any, Any]:
        """The job of a message: the one that it names, or otherwise the only one on its queue.

        Permission to send to a queue is permission to run the jobs that are declared on it, and no others.

        Raises:
            NotFoundError: the message is another app's, or names a job that is not declared on its queue, or names none
                and the queue has several or none.
        """
        attributes = delivery.attributes
        named = attributes.get(JOB_ATTRIBUTE)
        if named is not None:
            job = self.job_named(str(named.value))
            app = attributes.get(APP_ATTRIBUTE)
            if job is not None and job.policy.queue == delivery.queue and (app is None or app.value == self.name):
                if job.versions is not None or VERSION_ATTRIBUTE in attributes:
                    self._check_version(delivery, job)
                return job
            raise self._not_mine(delivery, job, str(named.value), app)
        on_queue = [job for job in self.jobs.values() if job.policy.queue == delivery.queue]
        if len(on_queue) == 1:
            return on_queue[0]
        raise errors.NotFoundError(
            f"Message {delivery.message_id} on {delivery.queue} names no job, and the queue has {len(on_queue)}.",
            todo="Declare exactly one job on a queue that others send to.",
        )

    def add_job(self, job: Job[Any, Any]) -> None:
        """Add a job whose name and aliases belong to no other job."""
        self.jobs[job.name] = job
        self.aliases.update(dict.fromkeys(job.aliases, job.name))

    def job_named(self, name: str) -> Job[Any, Any] | None:
        """The job that has this name, or had it earlier (`aliases=`); None if there is none."""
        found = self.jobs.get(name)
        return found if found is not None else self.jobs.get(self.aliases.get(name, ""))

    def _check_version(self, delivery: Delivery, job: Job[Any, Any]) -> None:
        """Refuse a payload of a later version, which a later release handles."""
        present = 1 if job.versions is None else job.versions.present
        given = str(delivery.attributes[VERSION_ATTRIBUTE].value) if VERSION_ATTRIBUTE in delivery.attributes else "1"
        if given.isascii() and given.isdecimal() and int(given[:9]) > present:
            raise errors.NotFoundError(
                f"Message {delivery.message_id:.100} on {delivery.queue} has version {given:.9} of the payload of"
                f" {job.name}, and this release takes version {present}.",
                meaning="A later release sent it. It is left to that release's workers.",
                todo="Start workers of the later release. In a dead-letter queue it can be redriven after that.",
            )

    def _not_mine(
        self, delivery: Delivery, job: Job[Any, Any] | None, named: str, app: Attribute | None
    ) -> errors.NotFoundError:
        what = f"Message {delivery.message_id:.100} on {delivery.queue} is for job {named!r:.140}"
        if app is not None and app.value != self.name:
            return errors.NotFoundError(
                f"{what} of the app {str(app.value)!r:.60}; this one is {self.name!r}.",
                meaning="Two apps work on one queue. Its message is left to the other one.",
                todo="Declare the queue in one of the two apps only, or give each app a file of its own (url=...).",
            )
        if job is not None:
            return errors.NotFoundError(
                f"{what}, which is declared on queue {job.policy.queue}.",
                meaning="A job runs only from its own queue; otherwise permission to send to one queue would run any job.",
                todo=f"Send it to {job.policy.queue}. If the job moved there, run a worker of the earlier release until "
                f"{delivery.queue} is empty.",
            )
        return errors.NotFoundError(
            f"{what}, which is not declared.",
            todo=f"If the job was renamed, declare aliases=[{named!r:.140}] or give it this name again. Else start a worker "
            "whose app declares it. In a dead-letter queue it can be redriven after that.",
        )
