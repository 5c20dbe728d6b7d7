"""`OnefoldBackend`: Django's tasks as jobs of onefold.

`enqueue` inside `transaction.atomic()` is part of that transaction if the database is the engine's own file or has the
app's outbox: the task is enqueued if, and only if, the transaction commits. A task that is enqueued by another task is
sent when that one completes.
Never here: running tasks (`running.py`), states (`results.py`).
Invariant: all threads of a process share one app per backend.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone
from django.utils.crypto import get_random_string
from msgspec.structs import replace

from onefold.app import App
from onefold.django import contract, results, running, settings
from onefold.django.contract import BaseTaskBackend, InvalidTask, Task, TaskResult
from onefold.django.declaring import Call, OnefoldTask, TaskJobs, id_of
from onefold.errors import OnefoldError, PermanentError
from onefold.runner import context
from onefold.runner.handlers import Job
from onefold.runner.hooks import HookSet
from onefold.runtime.events import EVENTS, Event
from onefold.runtime.outgoing import Receipt

_ID_CHARS: Final = 32


class _Of:
    """The part of one backend that all threads of a process share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tasks: dict[str, OnefoldTask] = {}
        self.jobs: TaskJobs | None = None


_shared: Final[dict[str, _Of]] = {}


class OnefoldBackend(BaseTaskBackend):
    """The BACKEND of an entry in TASKS.

    Args:
        alias: the entry's name. params: the entry; its OPTIONS are those of `onefold.django.settings.DjangoOptions`.
    """

    task_class = OnefoldTask  # type: ignore[assignment]  # a task with any arguments
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = False

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._of = _shared.setdefault(alias, _Of())

    @property
    def app(self) -> App:
        """The app that has the tasks as its jobs.

        Raises:
            ImproperlyConfigured: the settings cannot work.
        """
        return self._jobs().app

    def _jobs(self) -> TaskJobs:
        """The app, with the tasks as its jobs. Raises ImproperlyConfigured: the settings cannot work."""
        with self._of.lock:
            options = settings.options_of(self.options)
            jobs = self._of.jobs
            if jobs is not None and (jobs.options, jobs.queues) == (options, self.queues):
                if not options.adopt or jobs.app.url == settings.engine_file(options):
                    return jobs
                jobs.app.close()
            found = [one for one in settings.problems(self.options, self.queues) if one.number.startswith("E")]
            if found:
                raise settings.wrong(f"TASKS[{self.alias!r}]: {found[0].what}", found[0].todo)
            handler = partial(running.handler_of, self.alias, type(self))
            self._of.jobs = jobs = TaskJobs(options, self.queues, handler, self._prepare)
            for task in self._of.tasks.values():
                with suppress(InvalidTask):  # it is in `jobs.refused`: `check` and `enqueue` report it
                    jobs.add(task)
            return jobs

    # -- the contract --------------------------------------------------------------------------------------------------

    def validate_task(self, task: Task[..., Any]) -> None:
        """Check a task as Django does, and the options of `OnefoldTask`; declare it as a job when it is first seen."""
        super().validate_task(task)
        if not isinstance(task, OnefoldTask):
            raise InvalidTask(f"{task.module_path} was not made by @task of this backend.")
        with self._of.lock:
            known = self._of.tasks.get(task.module_path)
            if known is not None and known.func is task.func:
                return
            self._of.tasks[task.module_path] = task
            if self._of.jobs is not None:
                self._of.jobs.add(task)

    def enqueue(self, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[Any]:
        """Enqueue a task; arguments and return value are those of Django's backends.

        Raises:
            InvalidTask: the task cannot run on this backend. TypeError: an argument cannot be written as JSON.
            ImproperlyConfigured: the entry in TASKS cannot work.
            OnefoldError: the engine refused it; nothing was enqueued.
        """
        self.validate_task(task)
        jobs = self._jobs()
        job = jobs.job_of(task)
        call = Call(id="", args=results.plain(list(args)), kwargs=results.plain(dict(kwargs)))
        key = jobs.key_of(task, call.args, call.kwargs) or get_random_string(_ID_CHARS)
        call = replace(call, id=key)
        result_id = id_of(job.name, key)
        receipt = self._send(jobs, job, call, task)
        if receipt is not None and receipt.duplicate and receipt.found == "done":
            return self.get_result(result_id)
        result = results.fresh(task, self.alias, result_id, call)
        contract.signals.task_enqueued.send(sender=type(self), task_result=result)
        return result

    def _send(self, jobs: TaskJobs, job: Job[Call, Any], call: Call, task: Task[..., Any]) -> Receipt | None:
        run_at = task.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        database = jobs.options.database
        connection: Any = connections[database]
        if running.run_of(connection) is not None:  # a run's transaction: the message goes into the run's outbox
            return job.send(call, run_at=run_at)
        if connection.in_atomic_block:
            if jobs.way in ("join", "outbox"):
                return job.send(call, run_at=run_at, connection=connection)
            if jobs.way == "on_commit":
                job.outgoing(call, run_at=run_at)  # raises now what is wrong with the call
                transaction.on_commit(partial(job.send, call, run_at=run_at), using=database)
                return None
        if jobs.way == "outbox" and context.of_this_thread() is None:
            with transaction.atomic(using=database):
                return job.send(call, run_at=run_at, connection=connection)
        return job.send(call, run_at=run_at)

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """The result with an id; see `results.py` for its states. Raises TaskResultDoesNotExist if there is none."""
        return results.look(self._jobs(), self.alias, result_id)

    def check(self, **_options: Any) -> Iterable[checks.CheckMessage]:
        """The problems of the settings, and of the tasks that are known."""
        found = settings.problems(self.options, self.queues)
        yield from (one.message(self.alias) for one in found)
        if not any(one.number.startswith("E") for one in found):
            try:
                refused = self._jobs().refused
            except settings.InMemoryError:
                return  # the problems above include it
            for error in refused.values():
                yield settings.Problem("E008", str(error), "Correct the options of its @task.").message(self.alias)

    def _prepare(self, app: App) -> None:
        """Add Django's hooks around each handler of the app, and the sink that signals tasks that failed for good."""
        app.sinks = (*(one for one in app.sinks if not isinstance(one, _Failed)), _Failed(self))
        if any(isinstance(one, running.DjangoHooks) for one in app.hooks.hooks):
            return
        app.hooks = HookSet((running.DjangoHooks(), *app.hooks.hooks))
        for job in app.jobs.values():
            job.hooks = app.hooks


class _Failed:
    """A sink that sends Django's signal for a task that has failed for good."""

    def __init__(self, backend: OnefoldBackend) -> None:
        self._backend = backend

    def emit(self, event: Event) -> None:
        """See `Sink.emit`."""
        if event.name in ("dead-letter", "quarantine") and event.key is not None:
            with suppress(contract.TaskResultDoesNotExist):  # a job of the app that is not a task
                result = self._backend.get_result(id_of(event.key.job, event.key.key))
                error = event.exception or PermanentError(f"{event.key.job}: {EVENTS[event.name].text}.")
                _while_handled(error, lambda: self._signal(result))

    def _signal(self, result: TaskResult[Any]) -> None:
        contract.signals.task_finished.send(sender=type(self._backend), task_result=result)


def _while_handled(error: BaseException, call: Callable[[], None]) -> None:
    """Call with an error as the one that is being handled: receivers of the signal log it as the current exception."""
    frames = error.__traceback__
    try:
        raise error  # noqa: TRY301 - it was raised before, in a handler
    except BaseException:  # noqa: BLE001 - it is the task's, and has been dealt with
        error.__traceback__ = frames
        call()


def open_with(connection: Any) -> None:
    """Open each engine that is in the file of the database that Django has just connected to."""
    for one in contract.backends().values():
        if not isinstance(one, OnefoldBackend) or settings.options_of(one.options).database != connection.alias:
            continue
        try:
            jobs = one._jobs()  # noqa: SLF001 - its own module
            if jobs.way == "join":
                jobs.app.runtime()
        except (ImproperlyConfigured, InvalidTask):  # `check` and `enqueue` report it
            continue
        except OnefoldError as error:
            logging.getLogger("onefold").warning("%s", error)


def app_of(alias: str) -> App:
    """The app of a backend; it is opened when it is first used.

    Raises:
        ImproperlyConfigured: TASKS has no such entry, or the entry has another backend.
    """
    found = contract.backends().get(alias)
    if not isinstance(found, OnefoldBackend):
        ours = [name for name, one in contract.backends().items() if isinstance(one, OnefoldBackend)]
        raise settings.wrong(
            f"TASKS has no {alias!r} with the backend onefold.django.OnefoldBackend.",
            f"Use --backend with one of: {', '.join(ours)}." if ours else "Add one; see the how-to about Django.",
        )
    return found.app
