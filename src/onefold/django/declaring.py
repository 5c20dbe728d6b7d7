"""Tasks as jobs: what `@task` takes beyond Django's own arguments, and the job of each task on each queue.

A task is a job whose name is the task's path (`shop.tasks.book`). On a queue other than its own
(`using(queue_name=...)`) it is a second job, since a job runs only from the queue that it is declared on.
Never here: Django's results, sending. Invariant: the same settings and tasks give the same jobs, keys and ids in every
process.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

import onefold
from onefold import errors
from onefold.app import App
from onefold.django import settings
from onefold.django.contract import InvalidTask, Task
from onefold.record.keys import KeyRule, key_rule
from onefold.runner.call_arguments import fields_of
from onefold.runner.handlers import Found, Job

_OPTIONS: Final = (
    "on_unknown", "retry", "timeout", "effect", "after_failure", "keep", "owner", "unique", "transient", "permanent",
    "unknown",
)  # fmt: skip
_KEY_CHARS_MAX: Final = 50  # Django's ids have fewer than 64 characters
_NAME_CHARS: Final = 12


if TYPE_CHECKING:
    AnyTask = Task[..., Any]
else:
    AnyTask = Task


@dataclass(frozen=True, slots=True, kw_only=True)
class OnefoldTask(AnyTask):
    """A task on this backend. `@task(...)` takes these besides Django's own arguments.

    Args:
        key: identifies the operation: a template over the function's parameters (`"{order_id}"`), or a function that is
            called with the task's arguments and returns a text. A task enqueued twice under one key runs once. None:
            each call is a different operation.
        group: the message group, in the same forms as `key`; for a FIFO queue.
        on_unknown: `rerun`, `hold`, or a function that is called with the task's arguments and returns `onefold.Done`,
            `NotDone` or `StillUnknown`.
        effect: `transactional`: the task's rows, through the ORM or SQL, commit with its record.
        retry, timeout, after_failure, keep, owner, unique, transient, permanent, unknown: as for `onefold.App.job`.
    """

    key: str | Callable[..., str] | None = None
    group: str | Callable[..., str] | None = None
    on_unknown: str | Callable[..., Found] | None = None
    effect: str | None = None
    retry: onefold.Retry | None = None
    timeout: str | None = None
    after_failure: str | None = None
    keep: str | None = None
    owner: str | None = None
    unique: bool | None = None
    transient: Sequence[type[BaseException] | str] | None = None
    permanent: Sequence[type[BaseException] | str] | None = None
    unknown: Sequence[type[BaseException] | str] | None = None


class Call(Struct, frozen=True, kw_only=True):
    """The payload: one call of a task. `id` is its key, and the last part of its result's id."""

    id: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class Stored(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored result: what the task returned, and its arguments if the settings keep them."""

    value: Any = None
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


def rule_of(
    task: OnefoldTask, given: str | Callable[..., str], what: str
) -> Callable[[Sequence[Any], Mapping[str, Any]], str]:
    """The function that makes the key or group of a call from the task's arguments.

    Args:
        task: the task that is called. given: the template or function. what: `key` or `group`, for errors.

    Raises:
        UsageError: the template names no parameter of the function, or one that the function does not have.
    """
    signature = inspect.signature(task.func)
    if task.takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    name = f"{what} of {task.module_path}"
    if callable(given):
        rule = KeyRule(getattr(given, "__name__", "a function"), what, lambda found: found, (), 512)
        return lambda args, kwargs: rule.given(given(*args, **kwargs))
    rule = key_rule(given, fields_of(name, signature, typing.get_type_hints(task.func)), what=name, parameters=True)

    def of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return rule.of(bound.arguments)

    return of


class Place(NamedTuple):
    """The task and the queue that a job was declared for."""

    task: OnefoldTask
    queue: str


class TaskJobs:
    """The app of one backend, and the jobs of its tasks.

    Attributes:
        refused: the errors of tasks whose options cannot work, by path; the other tasks work all the same.

    Args:
        options, queues: OPTIONS and QUEUES of the entry in TASKS.
        handler: makes the handler of a task.
        prepare: called with the app before a task is declared.
    """

    def __init__(
        self,
        options: settings.DjangoOptions,
        queues: set[str],
        handler: Callable[[OnefoldTask, settings.DjangoOptions], Callable[..., Any]],
        prepare: Callable[[App], None],
    ) -> None:
        self.options = options
        self.app = settings.make_app(options, queues)
        prepare(self.app)
        self.way: settings.Way = settings.way_of(options, self.app)
        self.queues = queues
        self.refused: dict[str, InvalidTask] = {}
        self._handler = handler
        self._jobs: dict[tuple[str, str], Job[Call, Any]] = {}
        self._rules: dict[str, Callable[[Sequence[Any], Mapping[str, Any]], str]] = {}
        self._by_id: dict[str, Place] = {}
        self._lock = threading.Lock()

    def add(self, task: OnefoldTask) -> None:
        """Declare a task as a job on its own queue, and as one on each of the others.

        Raises:
            InvalidTask: its options cannot work.
        """
        with self._lock:
            known = self._by_id.get(_short(task.module_path))
            if known is not None and known.task.func is task.func:
                return
            try:
                if task.effect == "transactional" and not settings.is_in_database(self.options, self.app):
                    raise _no_transaction(self.options.database)
                if task.key is not None:
                    self._rules[task.module_path] = rule_of(task, task.key, "key")
                for queue in sorted(self.queues, key=lambda one: one != task.queue_name):
                    self._declare(task, queue)
            except (errors.OnefoldError, TypeError, NameError) as error:
                self.refused[task.module_path] = InvalidTask(f"{task.module_path}: {error}")
                raise self.refused[task.module_path] from error
            self.refused.pop(task.module_path, None)

    def _declare(self, task: OnefoldTask, queue: str) -> None:
        name = task.module_path if queue == task.queue_name else f"{task.module_path}@{queue}"
        given = {one: getattr(task, one) for one in _OPTIONS if getattr(task, one) is not None}
        declared = next(
            found for found in self.app.queues.values() if queue in (found.name, found.name.removesuffix(".fifo"))
        )
        if declared.settings.fifo or task.group is not None:
            rule = rule_of(task, task.group or "", "group") if task.group else None
            if rule is None and queue != task.queue_name:
                return  # a task without a group cannot be sent to that queue
            if declared.settings.fifo and rule is not None:
                given["group"] = lambda call: rule(call.args, call.kwargs)
        if callable(task.on_unknown):
            given["on_unknown"] = _probe(task.on_unknown)
        self.app.jobs.pop(name, None)  # tests and the shell load a module again
        job: Any = self.app.job(declared, key="{id}", name=name, **given)(self._handler(task, self.options))
        self._jobs[task.module_path, queue] = job
        self._by_id[_short(name)] = Place(task, queue)

    def job_of(self, task: Task[..., Any]) -> Job[Call, Any]:
        """The job of a task on its queue.

        Raises:
            InvalidTask: the task cannot be sent to that queue.
        """
        found = self._jobs.get((task.module_path, task.queue_name))
        if task.module_path in self.refused:
            raise self.refused[task.module_path]
        if found is None:
            raise InvalidTask(f"{task.module_path} has no group=, which queue {task.queue_name!r} needs.")
        return found

    def key_of(self, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """The key of a call, shortened so that it fits into an id; None if the task has no `key`."""
        rule = self._rules.get(task.module_path)
        if rule is None:
            return None
        key = rule(args, kwargs)
        if len(key) <= _KEY_CHARS_MAX:
            return key
        return f"{key[:9]}~{hashlib.sha256(key.encode()).hexdigest()[:40]}"

    def place_of(self, result_id: str) -> tuple[Place, str] | None:
        """The place and the key that an id refers to; None if no known task has that id."""
        short, _, key = result_id.partition("-")
        place = self._by_id.get(short)
        return (place, key) if place is not None and key else None


def _no_transaction(database: str) -> errors.UsageError:
    return errors.UsageError(
        f"effect='transactional' needs the engine in the SQLite file of database {database!r}.",
        meaning="Django's ORM and the record of the run would not be in one transaction.",
        todo="Set OPTIONS['adopt'] (SQLite). With PostgreSQL leave effect= out and give the task a key and on_unknown=, or"
        " make it a job of an onefold.App, which writes through ctx.connection.",
    )


def id_of(job: str, key: str) -> str:
    """The id of a result, at most 63 characters, from the job's name and its key."""
    return f"{_short(job)}-{key}"


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:_NAME_CHARS]


def _probe(given: Callable[..., Any]) -> Callable[[Call], Found]:
    def probe(call: Call) -> Found:
        found: Found = given(*call.args, **call.kwargs)
        if isinstance(found, onefold.Done):
            return onefold.Done(Stored(value=found.result, args=call.args, kwargs=call.kwargs))
        return found

    return probe
