"""The main program of a worker's child process: import the app, then perform one order after another.

Started as `python -m onefold.runner.child FD FD`, with ends of two socket pairs. The main thread runs handlers; a second
thread reads the first socket. When that socket closes while a handler runs, the parent is gone and nothing could record
what is done here: the process ends at once, with everything its handler has started. A handler in C code may block all
threads, or the process may be stopped. So a guard, a process forked before anything else, reads the second socket and
kills the process group GUARD_MS after that one closes. SIGTERM and SIGINT are for the parent, which drains; here they
do nothing.
Never here: queue, store, leases. Invariant: no handler runs before this process shares its parent's presence lock.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from importlib import import_module
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, NoReturn

from onefold import errors, forks
from onefold.clock import Never, SystemClock
from onefold.entropy import SystemEntropy
from onefold.record.delivery import Failed
from onefold.runner import calling, wire
from onefold.runner.context import Context, watch_pools, watch_threads
from onefold.runner.handlers import Job
from onefold.runner.hooks import HookSet
from onefold.runtime.events import kept_text, tracing_of

if TYPE_CHECKING:
    from onefold.outside import Clock, Entropy


GUARD_MS = 2_000  # how long a child whose parent has died may take to end


def main(descriptor: int, guarded: int) -> int:
    """Serve the parent at the other end of `descriptor` until that closes; returns the exit code.

    Args:
        guarded: descriptor of the second socket, which closes when the parent dies.
    """
    try:
        return _serve(descriptor, guarded)
    except (OSError, EOFError):  # the parent ended while this process was writing to it
        return 1


def _serve(descriptor: int, guarded: int) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _do_nothing)  # not SIG_IGN, which programs that a handler starts would inherit
    with suppress(OSError):  # if no process can be made, only the reading thread notices the parent's death
        if os.fork() == 0:  # no other thread runs yet, and no presence lock is held
            _guard(guarded, descriptor)
    os.close(guarded)
    before = {signal.SIGTERM: int(signal.SIG_DFL), signal.SIGINT: signal.default_int_handler}
    _own.append(forks.OwnSignals(before, _do_nothing, before))
    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    hello: wire.Hello = wire.receive(end, wire.Hello)
    try:
        app = _prepare(hello)
    except BaseException as error:  # noqa: BLE001 - an import runs anything, sys.exit() included
        wire.send(end, wire.Broken(f"{type(error).__name__}: {kept_text(error)}"))
        return 1
    hooks: HookSet = getattr(app, "hooks", None) or HookSet()
    try:
        hooks.start("child")
    except errors.UsageError as error:
        wire.send(end, wire.Broken(error.what, hook=True))
        return 1
    wire.send(end, wire.Ready())
    desk = _Desk()
    Thread(target=_read, args=(end, desk), daemon=True).start()
    clock, entropy, tracing = SystemClock(), SystemEntropy(), tracing_of(getattr(app, "sinks", ()))
    watch_threads()
    watch_pools(load=True)
    while (order := desk.orders.get()) is not None:
        wire.send(end, wire.OrderTaken())
        with tracing.within(order.trace) if tracing is not None else nullcontext():
            reply = perform(app.jobs, order, clock, entropy)
        desk.busy = False
        wire.send(end, reply)
    hooks.stop("child")
    return 0


def _guard(guarded: int, *others: int) -> NoReturn:
    """Wait until the parent has died, then kill this process group if it has not ended by itself by then."""
    try:
        for one in (0, 1, 2, *others):
            with suppress(OSError):
                os.close(one)
        while os.read(guarded, 1):
            pass
        SystemClock().wait(Never(), GUARD_MS)
        os.killpg(0, signal.SIGKILL)
    finally:
        os._exit(1)


class _Desk:
    """The state that the two threads share."""

    def __init__(self) -> None:
        self.orders: SimpleQueue[wire.Order | None] = SimpleQueue()
        self.busy = False


def _prepare(hello: wire.Hello) -> Any:
    sys.path[:] = hello.path
    if hello.join is not None:
        load(hello.join)(hello.lock_file)
    app = load(hello.target)
    app.jobs  # noqa: B018 - refused here if it is not an app
    return app


def load(target: str) -> Any:
    """The object that `module:attribute` names."""
    module, _, attribute = target.partition(":")
    found: Any = import_module(module)
    for name in attribute.split("."):
        found = getattr(found, name)
    return found


def _read(end: socket.socket, desk: _Desk) -> None:
    try:
        with suppress(EOFError):
            while True:
                order = wire.receive(end, wire.Order)
                desk.busy = True
                desk.orders.put(order)
    finally:
        if desk.busy:
            os.killpg(0, signal.SIGKILL)  # the parent made this process the leader of a group of its own
        desk.orders.put(None)


def perform(jobs: Mapping[str, Job[Any, Any]], order: wire.Order, clock: Clock, entropy: Entropy) -> wire.Reply:
    """Carry out one order in this thread."""
    job = jobs.get(order.job)
    if job is None:
        why = f"The child process does not know job {order.job!r}; its app differs from the parent's."
        return wire.Reply(outcome=Failed(kind="transient", error="NotFoundError", summary=why))
    delivery = wire.delivery_of(order.message)
    facts, payload = job.read(delivery)
    if facts.malformed is not None:
        why = f"The child process could not read the message that its parent had read: {facts.malformed}"
        return wire.Reply(outcome=Failed(kind="transient", error="PayloadError", summary=why[:500]))
    ctx = Context(
        order.hold,
        attempt=order.attempt,
        attempts_max=order.attempts_max,
        message=delivery,
        clock=clock,
        entropy=entropy,
        deadline_ms=clock.monotonic_ms() + order.remaining_ms,
        lost_answers="transient" if job.policy.on_unknown == "rerun" else "unknown",
    )
    if order.what == "probe":
        return wire.Reply(answer=calling.probe(job, payload, ctx, clock))
    return wire.Reply(outcome=calling.call(job, payload, ctx, clock))


_own: list[forks.OwnSignals] = []  # kept for the life of the process


def _do_nothing(_number: int, _frame: object) -> None:
    """Ignore a signal."""


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
