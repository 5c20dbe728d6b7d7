"""A local SQS for a test: the whole server in memory, on a free port of 127.0.0.1, in a thread of its own.

    def test_it_comes_back():
        with onefold.testing.sqs(clock="virtual") as endpoint:
            queue = endpoint.boto3("sqs").create_queue(QueueName="orders")["QueueUrl"]
            ...
            endpoint.advance("31m")

It is what `onefold serve --memory` runs, on real sockets, so any client works; several can run at the same time. With
`clock="virtual"` time does not move until `advance`, which returns when everything that came due has been done. Never
here: imitations of the server. Invariant: when the `with` block ends, the thread, the port and the queues are gone.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from msgspec import structs

from onefold import duration
from onefold.clock import SystemClock
from onefold.contracts.admin import Peeked
from onefold.duration import Duration
from onefold.entropy import SeededEntropy, SystemEntropy
from onefold.local.fault_rules import NO_FAULTS, parse_faults
from onefold.local.history import HistoryEvent
from onefold.local.identifiers import message_id_of, message_uuid
from onefold.local.outcomes import LogLine
from onefold.local.serving import ServeSettings, Serving, new_loop
from onefold.manual_clock import ManualClock

T = TypeVar("T")

_START_MS = 1_767_225_600_000  # 2026-01-01, where virtual time begins
_PATIENCE_S = 60.0  # for an answer from the server's thread
_ACCESS_KEY = "test"


class Endpoint:
    """A running local SQS.

    Attributes:
        url: the value for `endpoint_url`. port, region, account: as clients see them.
    """

    def __init__(self, serving: Serving, loop: asyncio.AbstractEventLoop, clock: ManualClock | None) -> None:
        self._serving = serving
        self._loop = loop
        self._clock = clock
        self.url: str = serving.url
        self.port: int = serving.port
        self.region: str = serving.settings.region
        self.account: str = serving.settings.account

    def boto3(self, service: str = "sqs", **settings: Any) -> Any:
        """A boto3 client for this endpoint, with dummy credentials.

        Args:
            service: `sqs` or `lambda`.
            settings: further arguments of `boto3.client`, which override the endpoint's.
        """
        import boto3  # needed only by tests that use it

        given = {
            "endpoint_url": self.url,
            "region_name": self.region,
            "aws_access_key_id": _ACCESS_KEY,
            "aws_secret_access_key": _ACCESS_KEY,
            **settings,
        }
        return boto3.client(service, **given)

    def environment(self) -> dict[str, str]:
        """Environment variables that point any AWS SDK, and the AWS CLI, at this endpoint."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": _ACCESS_KEY,
        }

    # ------------------------------------------------------------------------------------------------------------ time

    @property
    def now_ms(self) -> int:
        """The time of the server's clock, in milliseconds since the epoch."""
        return self._serving.clock.now_ms()

    def advance(self, by: Duration) -> None:
        """Move the virtual clock; returns when everything that came due has been done, earliest first.

        Args:
            by: how far, for example `"31m"` or a timedelta.

        Raises:
            RuntimeError: the endpoint runs on real time.
        """
        if self._clock is None:
            raise RuntimeError('this endpoint runs on real time; open it with sqs(clock="virtual")')
        self._do(lambda: self._serving.advance(duration.to_ms(by, "by")), patience_s=None)

    # --------------------------------------------------------------------------------------------------------- looking

    def peek(self, queue: str, *, limit: int = 1_000) -> list[Peeked]:
        """The messages of a queue, oldest first, without receiving them.

        Raises:
            NotFoundError: the queue does not exist.
        """

        async def look() -> list[Peeked]:
            admin = self._serving.queues.engine.queues
            admin.open(queue)  # raises if it does not exist
            return [
                structs.replace(one, message_id=message_uuid(one.message_id)) for one in admin.peek(queue, limit=limit)
            ]

        return self._do(look)

    def history(self, queue: str | None = None, message: str | None = None) -> list[HistoryEvent]:
        """What happened, oldest first: to one message, in one queue, or everything.

        Args:
            queue: a queue's name. message: a MessageId as clients get it.
        """

        async def look() -> list[HistoryEvent]:
            history = self._serving.queues.history
            if message is not None:
                return history.of(message_id_of(message))
            return history.all(queue, None, max(history.limit, 1))

        return self._do(look)

    def waiting(self, queue: str) -> int:
        """How many receivers wait in long polls on a queue."""

        async def look() -> int:
            return self._serving.queues.waiting().get(queue, 0)

        return self._do(look)

    # ------------------------------------------------------------------------------------------------------- changing

    def faults(self, *options: str, **settings: object) -> Mapping[str, object]:
        """Replace the faults, or end all faults if none are given; returns the settings and past injections of each.

        Args:
            options: in the form of `--fault`: `"lose-ack=0.1,queue=orders"`.
            settings: the same by name, with `_` for `-`: `deliver=2`, `lose_ack=0.5`, `seed=7`.

        Raises:
            UsageError: a fault is unknown or out of range; nothing was changed.
        """
        named = [f"{name.replace('_', '-')}={value}" for name, value in settings.items()]
        chosen = parse_faults([*options, *named]) if options or named else NO_FAULTS

        async def change() -> Mapping[str, object]:
            box = self._serving.queues.faults
            before = box.report()
            box.set(chosen)
            return before

        return self._do(change)

    def reset(self) -> None:
        """Forget every queue, message and event, and all faults."""
        self._do(self._serving.reset)

    def _do(self, make: Callable[[], Coroutine[Any, Any, T]], *, patience_s: float | None = _PATIENCE_S) -> T:
        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(patience_s)


def _print_line(line: LogLine) -> None:
    """Print a function's log line to standard error, which pytest shows with a failed test."""
    sys.stderr.write(f"{line.request_id[:8]} | {line.text}\n")


class _Thread:
    """The server's thread: a loop, a `Serving`, and a wait for the end."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="onefold-sqs", daemon=True)

    def start(self) -> asyncio.AbstractEventLoop:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        assert self.loop is not None
        return self.loop

    def stop(self) -> None:
        assert self.loop is not None
        assert self._stopping is not None
        self.loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self._error = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self.loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        await self.serving.start()
        self._ready.set()
        try:
            await self._stopping.wait()
        finally:
            await self.serving.stop()


@contextmanager
def sqs(
    *,
    clock: Literal["virtual"] | None = None,
    functions: Mapping[str, str] | None = None,
    faults: Sequence[str] = (),
    seed: int | None = None,
    recreate_wait: bool = False,
    history: int = 100_000,
    host: str = "127.0.0.1",
    admin_token: str | None = None,
) -> Iterator[Endpoint]:
    """Run a local SQS until the end of the `with` block.

    Args:
        clock: `"virtual"`: time does not move until `advance`; None: real time.
        functions: Lambda functions by name, each as `module:function`.
        faults: faults to inject from the start, in the form of `--fault`.
        seed: the seed of ids and faults; the same seed and the same calls give the same run.
        recreate_wait: a deleted queue's name becomes free only after 60 s, as on AWS.
        history: how many events are remembered.
        host: the address to listen on; `"0.0.0.0"` lets containers connect.
        admin_token: the token that `/_onefold` requires; it must be given if `host` lets other machines connect.

    Raises:
        UsageError: a fault or function is invalid, or the extra `serve` is not installed.
    """
    manual = ManualClock(_START_MS) if clock == "virtual" else None
    options = [*faults, *([] if seed is None else [f"seed={seed}"])]
    settings = ServeSettings(
        host=host,
        port=0,
        admin_token=admin_token,
        data=None,
        recreate_wait=recreate_wait,
        functions=tuple((functions or {}).items()),
        faults=parse_faults(options) if options else NO_FAULTS,
        history=history,
    )
    entropy = SystemEntropy() if seed is None else SeededEntropy(seed)
    serving = Serving(settings, clock=manual or SystemClock(), entropy=entropy, on_line=_print_line)
    thread = _Thread(serving)
    loop = thread.start()
    try:
        yield Endpoint(thread.serving, loop, manual)
    finally:
        thread.stop()
