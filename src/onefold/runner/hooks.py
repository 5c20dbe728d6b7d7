"""Hooks: the user's code that runs when a process starts or stops, around each handler, and when a handler raises.

A program subclasses `Hooks` and overrides what it needs; a `HookSet` has the hooks that an app, or a guarded function,
was given. Hooks run in the process and thread of the handler, whether that is in a worker, a child process, a Lambda
function, an inline test or a guarded call.
Never here: events and sinks, which only listen (`events.py`); what a failure means.
Invariants: what a hook raises before the handler never counts as the handler's effect; no hook can hide what a handler
raised; a hook that only reports changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from typing import Any, Final, Literal, TypeVar

from onefold import errors
from onefold.record.error_text import error_name, trace_of
from onefold.runner import context
from onefold.runtime.events import kept_text

T = TypeVar("T")

HookPlace = Literal["worker", "child", "lambda", "inline"]
"""What starts or stops: a worker, one of its child processes, a container of a Lambda function, an inline test."""


class Hooks:
    """Base class of hooks: override what you need, and pass objects to `App(hooks=[...])` or `@once(hooks=[...])`.

    Several objects are entered in the order of the list and left in reverse order. Several threads may use one object
    at the same time.
    """

    def start(self, place: HookPlace) -> None:
        """Called before the process does any work: open a pool, set up a framework.

        If it raises, the process ends before anything is received: a worker exits with code 1, a Lambda container fails
        to initialise. Hooks that had started are stopped. Not called for calls under `@onefold.once`.
        """

    def stop(self, place: HookPlace) -> None:
        """Called after the last handler of the process, in reverse order; an exception is logged, and the others go on.

        Not called if the process is killed, if handlers still run when it ends, and on Lambda, which ends without
        notice.
        """

    def around(self, ctx: context.Context) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:
        """Return a context manager in which the handler runs; its time counts towards the handler's timeout.

        An exception on entry is a failed attempt before any effect: the handler was not called. An exception on exit
        counts as raised by the handler, since the manager may be committing. What the handler raised counts in any
        case, even if the manager suppresses it. Asynchronous managers are for `async def` handlers only.
        """
        raise NotImplementedError  # not called: only overridden hooks are (`_overrides`)

    def error(self, error: BaseException, ctx: context.Context) -> None:
        """Report what a handler, or a hook around it, raised. Called in its thread, before the outcome is recorded.

        If it raises, that is logged and changes nothing. Not called for LeaseLost, for a handler that was stopped at
        its timeout, or for one whose process died: sinks receive events about those.
        """


_OWN: Final = {name: getattr(Hooks, name) for name in ("start", "stop", "around", "error")}


class HookSet:
    """The hooks of an app or of a guarded function.

    Attributes:
        has_any: whether a hook runs around a handler, or when it raises.
    """

    def __init__(self, hooks: Iterable[Hooks] = ()) -> None:
        self.hooks: tuple[Hooks, ...] = tuple(hooks)
        self._arounds = [one.around for one in self.hooks if _overrides(one, "around")]
        self._errors = [one for one in self.hooks if _overrides(one, "error")]
        self.has_any: bool = bool(self._arounds or self._errors)

    # -- a process ---------------------------------------------------------------------------------------------------

    def start(self, place: HookPlace) -> None:
        """Call the `start` of all hooks; if one raises, those before it are stopped.

        Raises:
            UsageError: one of them raised.
        """
        started: list[Hooks] = []
        for one in self.hooks:
            try:
                one.start(place)
            except Exception as error:
                _stop(reversed(started), place)
                at = trace_of(error, kept_text).at
                raise errors.UsageError(
                    f"{_name(one, 'start')} raised {error_name(error)}: {kept_text(error)}"
                    f"{f' (at {at})' if at else ''}",
                    meaning="The process has not started: nothing was received, and no handler was called.",
                    todo="Fix what it reports, and start again.",
                ) from error
            started.append(one)

    def stop(self, place: HookPlace) -> None:
        """Call the `stop` of all hooks, the last first; what they raise is logged."""
        _stop(reversed(self.hooks), place)

    # -- a handler ---------------------------------------------------------------------------------------------------

    def call(self, ctx: context.Context, handler: Callable[..., T], *args: Any) -> T:
        """Call a plain function within its hooks.

        Raises:
            Exception: what the handler, or a hook around it, raised.
        """
        values: list[T] = []
        failed: BaseException | None = None
        try:
            with ExitStack() as stack:
                try:
                    for around in self._arounds:
                        stack.enter_context(_plain(around, ctx))
                    ctx.is_called = True
                    values.append(handler(*args))
                except BaseException as error:
                    failed = error
                    self._report(error, ctx)
                    raise
        except BaseException as error:
            if error is not failed:
                self._report(error, ctx)
            raise
        if failed is not None:
            raise failed  # a hook has suppressed it
        return values[0]

    async def call_async(self, ctx: context.Context, handler: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Like `call`, for a coroutine function."""
        values: list[T] = []
        failed: BaseException | None = None
        try:
            async with AsyncExitStack() as stack:
                try:
                    for around in self._arounds:
                        manager: Any = around(ctx)
                        if hasattr(manager, "__aenter__"):
                            await stack.enter_async_context(manager)
                        else:
                            stack.enter_context(_checked(manager, around))
                    ctx.is_called = True
                    values.append(await handler(*args))
                except BaseException as error:
                    failed = error
                    self._report(error, ctx)
                    raise
        except BaseException as error:
            if error is not failed:
                self._report(error, ctx)
            raise
        if failed is not None:
            raise failed
        return values[0]

    def _report(self, error: BaseException, ctx: context.Context) -> None:
        if not isinstance(error, Exception | SystemExit) or isinstance(error, errors.LeaseLost):
            return  # the task was cancelled, or a person pressed Ctrl-C
        for one in self._errors:
            try:
                one.error(error, ctx)
            except Exception as raised:  # noqa: BLE001 - reporting a failure must not change it
                _log(one, "error", raised, f"The outcome of {ctx.job} {ctx.key!r} is unchanged.")


def _overrides(hooks: Hooks, name: str) -> bool:
    return getattr(type(hooks), name, None) is not _OWN[name]


def _plain(around: Callable[[context.Context], Any], ctx: context.Context) -> AbstractContextManager[Any]:
    return _checked(around(ctx), around)


def _checked(manager: Any, around: Callable[[context.Context], Any]) -> AbstractContextManager[Any]:
    """The context manager that `around` returned, if a handler can run in it.

    Raises:
        UsageError: it is not a context manager, or it is an asynchronous one around a plain function.
    """
    if hasattr(manager, "__enter__") and hasattr(manager, "__exit__"):
        found: AbstractContextManager[Any] = manager
        return found
    if hasattr(manager, "__aenter__"):
        meaning = "It is asynchronous, and the handler is not. The handler was not called."
        todo = "Return a plain context manager for jobs that are plain functions."
    else:
        meaning = "The handler was not called."
        todo = "Write @contextmanager above the method, or return contextlib.nullcontext()."
    raise errors.UsageError(
        f"{around.__qualname__} returned a {type(manager).__qualname__}, not a context manager.",
        meaning=meaning,
        todo=todo,
    )


def _stop(hooks: Iterable[Hooks], place: HookPlace) -> None:
    for one in hooks:
        try:
            one.stop(place)
        except Exception as error:  # noqa: BLE001 - the work is done, and the others must be stopped too
            _log(one, "stop", error, "The work was done before; the other hooks are stopped too.")


def _log(hooks: Hooks, name: str, error: Exception, meaning: str) -> None:
    import logging  # 11 ms to import, and this is rare

    at = trace_of(error, kept_text).at
    where = f" (at {at})" if at else ""
    said = f"{_name(hooks, name)} raised {error_name(error)}: {kept_text(error)}{where}"
    logging.getLogger("onefold").error("%s. %s", said, meaning)


def _name(hooks: Hooks, name: str) -> str:
    return f"The hook {type(hooks).__qualname__}.{name}"


def checked_hooks(hooks: object) -> HookSet:
    """The value of `hooks=`, checked.

    Raises:
        UsageError: not a list, or one of its items is not an object of a subclass of `Hooks`.
    """
    if not isinstance(hooks, Iterable) or isinstance(hooks, str):
        raise errors.UsageError(f"hooks={hooks!r:.80} is not a list.", todo="Write for example hooks=[Pool()].")
    found = tuple(hooks)
    for one in found:
        if not isinstance(one, Hooks):
            called = f" Write {one.__qualname__}()." if isinstance(one, type) and issubclass(one, Hooks) else ""
            raise errors.UsageError(
                f"hooks= has {one!r:.80}, which is not an object with hooks.",
                todo=f"Subclass onefold.Hooks, override what you need, and pass an object of it.{called}",
            )
    return HookSet(found)
