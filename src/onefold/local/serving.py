"""A local SQS from plain settings: builds, starts and stops engine, queues, functions and HTTP server in order.

`Serving` lives on one loop; `run` gives it the main thread and the signals, `onefold.testing` its own thread.
Never here: what a request means, what the command prints (`cli/`). Invariant: everything that was started is stopped, in
reverse order, even if a later step of the start fails.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, structs

from onefold import errors, extras, private_files
from onefold.clock import SystemClock
from onefold.contracts.engine import Engine
from onefold.engines import urls
from onefold.engines.sqlite.file import FileSettings
from onefold.local import sqs_model, templates
from onefold.local.admin_api import AdminApi, ServerFacts
from onefold.local.fault_rules import NO_FAULTS, Faults
from onefold.local.faults import FaultInjector
from onefold.local.functions import ServedFunction
from onefold.local.history import EVENTS_MAX, MessageHistory
from onefold.local.http_server import HttpServer
from onefold.local.identifiers import QueueAddresses
from onefold.local.lambda_api import LambdaApi
from onefold.local.outcomes import LogLine
from onefold.local.queue_attributes import QueueMetadataStore
from onefold.local.queues import LocalQueues
from onefold.local.registry import FunctionRegistry
from onefold.local.request_handler import LAMBDA, OURS, SNS, RequestHandler, is_loopback
from onefold.local.settings import FunctionSettings
from onefold.local.signing import AccessKey
from onefold.local.sns_api import SnsApi
from onefold.local.sqs_service import SqsService
from onefold.local.templates import Planted
from onefold.local.timers import Timers
from onefold.local.topics import Topics
from onefold.manual_clock import ManualClock

if TYPE_CHECKING:
    from onefold.outside import Clock, Entropy


class DataFileLock:
    """Allows one server per data file: a lock next to the file, held until `release` or the end of the process.

    Args:
        data: the data file; its folder is created.

    Raises:
        ConflictError: another server holds it; names its process and address.
        StorageError: the folder or the lock file cannot be written.
    """

    def __init__(self, data: str) -> None:
        data = os.path.realpath(data)  # the file's real path, whichever symbolic links lead to it
        self._path = Path(f"{data}.serve.lock")
        try:
            private_files.make_folder(self._path.parent)
            private_files.refuse_strangers(data)
            mode = private_files.mode_beside(data)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        except OSError as error:
            raise errors.StorageError(
                f"{self._path} cannot be written: {error.strerror}.", todo="Check the path and its permissions."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._file, 200).decode(errors="replace").strip() or "another process"
            os.close(self._file)
            raise errors.ConflictError(
                f"{data} is being served already, by {holder}.",
                meaning="One server answers for a file: receivers that wait at one would not see what the other takes.",
                todo="Use that server, or give this one a file of its own with --data FILE.",
            ) from None

    def say(self, url: str) -> None:
        """Record which process serves the file, and its address, for a second server's error."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} at {url}\n".encode(), 0)

    def release(self) -> None:
        """Let others have the file."""
        os.close(self._file)


PORT = 9324  # the port of other local SQS servers
DATA = ".onefold/sqs.db"
ACCOUNT = "000000000000"
REGION = "us-east-1"
_FILE = FileSettings(
    busy_ms=1_000,  # the whole server waits this long while another process holds the file; then SDKs must retry
    log_bytes=1_024_000,  # a queue's pages are few, and a short log is soon reused instead of growing
    page_bytes=1_024,  # most calls change a row or two in three tables
)
_SETTLING_TURNS = 8  # turns of the loop for the longest chain of tasks that one timer starts
_LOOK_S = 0.002  # between two checks for running invocations while a manual clock is moved
_TWICE_S = 1.0  # how long after a first Ctrl-C a second one is ignored
GRACE_S = 10.0  # how long a stop waits for clients that do not read their answers


class ServeSettings(Struct, frozen=True, kw_only=True):
    """The settings of a local SQS.

    Args:
        host, port: its address; port 0 takes a free one.
        data: the file that holds the queues; None: memory.
        account: 12 digits. region: as in `us-east-1`.
        access_key, secret_key: requests must be signed with this pair, even those under `/_onefold` (or have it as HTTP
            Basic, for a browser); both None: any request is accepted.
        admin_token: required under `/_onefold` instead; needed if other machines can reach a server without keys.
        recreate_wait: the name of a deleted queue is free again after 60 s, as on AWS.
        functions: name and `module:function` of each Lambda function.
        template: a CloudFormation or SAM template whose queues, functions and mappings are created.
        parameters: name and value of each parameter of the template.
        faults: the faults that are injected from the start.
        history: how many events are kept.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    data: str | None = DATA
    account: str = ACCOUNT
    region: str = REGION
    access_key: str | None = None
    secret_key: str | None = None
    admin_token: str | None = None
    recreate_wait: bool = True
    functions: tuple[tuple[str, str], ...] = ()
    template: str | None = None
    parameters: Mapping[str, str] = {}
    faults: Faults = NO_FAULTS
    history: int = EVENTS_MAX


def check(settings: ServeSettings) -> None:
    """Refuse invalid settings.

    Raises:
        UsageError: names the first one that is wrong.
    """
    if not (len(settings.account) == 12 and settings.account.isascii() and settings.account.isdigit()):
        raise errors.UsageError(f"account={settings.account!r} is not an AWS account id.", todo="It has 12 digits.")
    plain = settings.region.replace("-", "")
    if not (settings.region.isascii() and plain.isalnum() and len(settings.region) <= 32):
        raise errors.UsageError(f"region={settings.region!r} is not a region.", todo="Write for example us-east-1.")
    if (settings.access_key is None) is not (settings.secret_key is None):
        given = "secret-key" if settings.access_key is None else "access-key"
        raise errors.UsageError(
            f"Only --{given} was given.", meaning="A signature is made with both.", todo="Give both keys, or neither."
        )
    for name in ("access_key", "secret_key", "admin_token"):
        if getattr(settings, name) == "":  # "$TOKEN" is empty if TOKEN was not set
            option = name.replace("_", "-")
            raise errors.UsageError(
                f"An empty text was given for --{option}.",
                meaning="Nothing was started: anybody could give an empty one.",
                todo="Give it a value, or leave the option out.",
            )
    if not settings.host:  # for asyncio it means all addresses; "$HOST" is empty if HOST was not set
        raise errors.UsageError(
            "host='' is not an address.",
            meaning="Nothing was started.",
            todo="Name 127.0.0.1, or 0.0.0.0 to let other machines in.",
        )
    if settings.data is not None and settings.data in ("", ":memory:"):
        raise errors.UsageError(f"data={settings.data!r} is not a file.", todo="Name a file, or keep all in memory.")


class Serving:
    """A running local SQS, on the loop that started it.

    Attributes:
        settings: as given. clock: the clock of everything here. queues: its queues, once started.
        planted: what was created from the template; None without one. problems: stored mappings that wait for a
            function.
    """

    queues: LocalQueues

    def __init__(
        self,
        settings: ServeSettings,
        *,
        clock: Clock,
        entropy: Entropy,
        on_line: Callable[[LogLine], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self._entropy = entropy
        self._engine: Engine | None = None
        self._lock: DataFileLock | None = None
        self._server: HttpServer | None = None
        self._handler: RequestHandler | None = None
        self._registry: FunctionRegistry | None = None
        self._inline: TemporaryDirectory[str] | None = None
        self._on_line = on_line
        self.planted: Planted | None = None
        self.problems: tuple[str, ...] = ()
        self._sqs: SqsService
        self._topics: Topics

    @property
    def url(self) -> str:
        """Its address for clients."""
        assert self._server is not None, "it was started"
        return self._server.url

    @property
    def port(self) -> int:
        """The port on which it listens."""
        assert self._server is not None, "it was started"
        return self._server.port

    async def start(self) -> None:
        """Open, build and listen; requests are accepted when this returns.

        Raises:
            UsageError: a setting is wrong, or a package is missing. ConflictError: another server has the file.
            StorageError: the file cannot be used.
        """
        check(self.settings)
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings, loop = self.settings, asyncio.get_running_loop()
        if settings.data is not None:
            self._lock = DataFileLock(settings.data)
        url = "sqlite://:memory:" if settings.data is None else f"sqlite:///{settings.data}"
        self._engine = urls.open_engine(
            url, clock=self.clock, entropy=self._entropy, owner=self._entropy.token(), file=_FILE,
        )  # fmt: skip
        queues = LocalQueues(
            self._engine,
            Timers(self.clock, loop),
            MessageHistory(settings.history),
            FaultInjector(settings.faults, self._entropy),
        )
        await queues.start()
        self.queues = queues
        self._build()
        assert self._server is not None
        await self._server.start()
        host = self._server.url.removeprefix("http://")  # with the real port
        self._sqs.addresses = structs.replace(self._sqs.addresses, host=host)
        await self._plant()
        if self._lock is not None:
            self._lock.say(self._server.url)

    def _build(self) -> None:
        """Build everything between the sockets and the queues."""
        settings = self.settings
        addresses = QueueAddresses(settings.account, settings.region, f"{settings.host}:{settings.port}")
        sqs = SqsService(
            queues=self.queues,
            addresses=addresses,
            metadata_store=QueueMetadataStore(self.queues.engine.state),
            recreate_wait=settings.recreate_wait,
        )
        key = None
        if settings.access_key is not None and settings.secret_key is not None:
            key = AccessKey(settings.access_key, settings.secret_key)
        facts = ServerFacts(
            data=None if settings.data is None else str(Path(settings.data).resolve()),
            started_at_ms=self.clock.now_ms(),
            admin_token=settings.admin_token,
            is_open=not is_loopback(settings.host),
            key=key,
        )
        self._sqs = sqs
        reset = self.reset if settings.data is None else None
        self._registry = registry = self._functions(addresses)
        admin_api = AdminApi(self.queues, facts, mappings=self._mappings, reset=reset)
        api = LambdaApi(registry, sqs, self.queues.timers)
        self._topics = Topics(sqs, self._message_id)
        sns = SnsApi(self._topics, settings.account)
        parts = {OURS: admin_api.handle, LAMBDA: api.handle, SNS: sns.handle}
        self._handler = RequestHandler(
            sqs, sqs_model.load(), key=key, parts=parts, entropy=self._entropy, is_open=facts.is_open
        )
        self._server = server = HttpServer(self._handler, host=settings.host, port=settings.port, clock=self.clock)
        # A client makes one request at a time, but mappings make calls of their own.
        self.queues.group_commit.is_alone = lambda: server.connections == 1 and not registry.entries()

    def _message_id(self) -> str:
        """A new id in the form of a UUID, as SNS gives to messages."""
        one, other = self._entropy.token(), self._entropy.token()
        return f"{one[:8]}-{one[8:12]}-4{one[13:]}-8{other[1:4]}-{other[4:]}"

    def _functions(self, addresses: QueueAddresses) -> FunctionRegistry:
        """The registry of functions and mappings."""

        def make(settings: FunctionSettings, on_line: Callable[[LogLine], None]) -> ServedFunction:
            return ServedFunction(
                settings, timers=self.queues.timers, clock=SystemClock(), entropy=self._entropy, on_line=on_line
            )

        return FunctionRegistry(
            self.queues, addresses=addresses, make=make, on_line=self._on_line, entropy=self._entropy
        )

    async def _plant(self) -> None:
        """Register functions, create what the template describes, and resume stored mappings."""
        settings, registry = self.settings, self._registry
        assert registry is not None, "it was built"
        templates.register(registry, settings.functions, account=settings.account, region=settings.region)
        if settings.template is None:
            self.problems = tuple(await registry.load())
            return
        self._inline = TemporaryDirectory(prefix="onefold-inline-")
        path = Path(settings.template)
        self.planted = await templates.plant(
            path, self._sqs, registry, self._topics, Path(self._inline.name), settings.parameters
        )
        self.problems = self.planted.problems

    def _mappings(self) -> dict[str, object]:
        """Functions and mappings as JSON."""
        registry = self._registry
        assert registry is not None, "it was built"
        stats = registry.stats()
        return {
            "functions": {name: structs.asdict(one.stats()) for name, one in registry.functions.items()},
            "mappings": [
                {
                    **structs.asdict(one.settings),
                    "state": one.state,
                    "stats": None if (found := stats[one.settings.uuid]) is None else structs.asdict(found),
                }
                for one in registry.entries()
            ],
        }

    async def stop(self) -> None:
        """Finish what is in flight and close everything; long polls get an empty answer. Can be called twice."""
        if self._server is not None:
            self._server.drain()
        if self._handler is not None:
            self._handler.stop()
        if self._registry is not None:
            await self._registry.stop()
        if hasattr(self, "queues"):
            await self.queues.stop()
        if self._server is not None:
            await self._server.stop(grace_s=GRACE_S)
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if self._inline is not None:
            self._inline.cleanup()
            self._inline = None

    # -- for tests -----------------------------------------------------------------------------------------------------

    async def advance(self, by_ms: int) -> None:
        """Move a manual clock, and return once everything that came due has been done, in the order of time.

        Args:
            by_ms: 0 or more.
        """
        clock, timers = self.clock, self.queues.timers
        assert isinstance(clock, ManualClock), "only a manual clock can be moved"
        end_ms = clock.now_ms() + by_ms
        await self._settle()
        while (next_ms := timers.next_at_ms()) is not None and next_ms <= end_ms:
            clock.advance(max(next_ms - clock.now_ms(), 0))
            timers.moved()
            await self._settle()
        clock.advance(end_ms - clock.now_ms())
        self.queues.maintain_now()
        await self._settle()

    async def _settle(self) -> None:
        """Run all that is ready on the loop, and all that this makes ready; wait for running invocations."""
        loop = asyncio.get_running_loop()
        while True:
            for _ in range(_SETTLING_TURNS):
                turned = loop.create_future()
                loop.call_soon(turned.set_result, None)
                await turned
            if self._registry is None or not any(one.stats().running for one in self._registry.functions.values()):
                return
            looked = loop.create_future()
            loop.call_later(_LOOK_S, looked.set_result, None)
            await looked

    async def reset(self) -> None:
        """Forget every queue, message, mapping, event and fault, for queues in memory. Functions stay."""
        assert self.settings.data is None, "queues in a file cannot be reset"
        if self._registry is not None:
            for entry in self._registry.entries():
                await self._registry.delete(entry.settings.uuid)
        queues, metadata_store = self.queues, self._sqs.metadata_store
        names = [one.name for one in queues.engine.queues.settings()]

        def drop() -> None:
            for name in names:
                queues.engine.queues.drop(name, referenced=True)
                metadata_store.erase(name)

        await queues.call(drop)
        for name in names:
            metadata_store.forget(name)
            queues.dropped(name)
        self._sqs.forget_names()
        queues.faults.clear()
        queues.history.clear()


def new_loop() -> asyncio.AbstractEventLoop:
    """The loop a server runs on.

    Raises:
        UsageError: the extra `serve` is not installed.
    """
    with extras.needed("The local SQS", "serve"):
        import httptools  # noqa: F401 - imported here, so that its absence is reported before anything is started
        import uvloop
    return uvloop.new_event_loop()


def run(
    settings: ServeSettings,
    *,
    clock: Clock,
    entropy: Entropy,
    ready: Callable[[Serving], None],
    on_line: Callable[[LogLine], None] = lambda _: None,
) -> None:
    """Serve in this thread, the main one, until SIGTERM or SIGINT; then finish what is in flight.

    Args:
        on_line: gets the log of all functions, line by line.
        ready: called once requests are accepted.

    Raises:
        the errors of `Serving.start`.
    """

    async def main() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def terminated(*_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended.set)

        signal.signal(signal.SIGTERM, terminated)  # not the loop's handler, which ends before the process
        loop.add_signal_handler(signal.SIGINT, ended.set)
        serving = Serving(settings, clock=clock, entropy=entropy, on_line=on_line)
        await serving.start()
        try:
            ready(serving)
            await ended.wait()
        finally:
            # After this time a second Ctrl-C ends the process, because a function may run for minutes. Not sooner, and
            # never SIGTERM, because wrappers such as `timeout` send each signal twice.
            loop.call_later(_TWICE_S, loop.remove_signal_handler, signal.SIGINT)
            await serving.stop()

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # another one must not kill a process that has just ended well


def as_json(serving: Serving) -> bytes:
    """One line with the address, for a program that started the server."""
    settings = serving.settings
    facts = {
        "url": serving.url,
        "port": serving.port,
        "pid": os.getpid(),
        "region": settings.region,
        "account": settings.account,
        "data": settings.data,
        "template": settings.template,
        "problems": serving.problems,
    }
    return msgspec.json.encode(facts)
