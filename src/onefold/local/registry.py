"""The functions of one server, and the event source mappings between its queues and them.

Functions are registered when the server starts; mappings are created, changed and deleted at run time, are as durable
as the queues, and continue after a restart. Whatever Lambda refuses when a mapping is created or changed is refused
here too, and only then: as on Lambda, a mapping is not checked again when its queue or function changes later.
Never here: an API's shapes, polling. Invariant: one mapping per queue and function, and only stored mappings poll.
"""

from __future__ import annotations

import asyncio
import uuid as uuids
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct, structs

from onefold import errors
from onefold.contracts.state import Change
from onefold.local.containers import Kill
from onefold.local.functions import ServedFunction
from onefold.local.identifiers import QueueAddresses
from onefold.local.mapping import Mapping as Poller
from onefold.local.mapping import MappingStats
from onefold.local.outcomes import LogLine
from onefold.local.queues import LocalQueues
from onefold.local.settings import FunctionSettings, MappingSettings, check_function, check_mapping

if TYPE_CHECKING:
    from onefold.outside import Entropy

State = Literal["Creating", "Enabling", "Enabled", "Disabling", "Disabled", "Updating", "Deleting"]
_PREFIX = "lambda/mapping/"


class _Stored(Struct, frozen=True):
    """A mapping as it is stored."""

    settings: MappingSettings
    changed_at_ms: int


class MappingEntry(Struct):
    """One mapping.

    Args:
        settings: the present ones. changed_at_ms: when they were set. state: in Lambda's words.
        poller: the running poller; None while it is disabled or being deleted.
    """

    settings: MappingSettings
    changed_at_ms: int
    state: State
    poller: Poller | None = None


class FunctionRegistry:
    """All functions and mappings of one server. Used on the loop's thread only.

    Args:
        queues: the queues that mappings poll.
        addresses: the server's, for the ARNs and URLs of its queues.
        make: makes a function from its settings and a receiver of its log.
        on_line: gets the lines of all functions' logs.
        entropy: for ids and pauses.
    """

    def __init__(
        self,
        queues: LocalQueues,
        *,
        addresses: QueueAddresses,
        make: Callable[[FunctionSettings, Callable[[LogLine], None]], ServedFunction],
        on_line: Callable[[LogLine], None],
        entropy: Entropy,
    ) -> None:
        self.functions: dict[str, ServedFunction] = {}
        self._queues = queues
        self._addresses = addresses
        self._make = make
        self._on_line = on_line
        self._entropy = entropy
        self._entries: dict[str, MappingEntry] = {}
        self._changing: set[asyncio.Task[None]] = set()
        self._listeners: dict[str, list[str]] = {}

    # -- functions -----------------------------------------------------------------------------------------------------

    def register(self, settings: FunctionSettings) -> ServedFunction:
        """Register a function under its name.

        Raises:
            UsageError: Lambda would refuse the settings. ConflictError: the name is taken.
        """
        check_function(settings)
        if settings.name in self.functions:
            raise errors.ConflictError(
                f"Function already exist: {settings.name}", todo="Give each function a name of its own."
            )
        self.functions[settings.name] = made = self._make(settings, self._log)
        return made

    def function(self, name: str) -> ServedFunction:
        """The function with that name.

        Raises:
            NotFoundError: it was not registered.
        """
        found = self.functions.get(name)
        if found is None:
            there = ", ".join(sorted(self.functions)) or "none"
            raise errors.NotFoundError(
                f"Function not found: {name}",
                meaning=f"Functions of this server: {there}.",
                todo="Start the server with --function NAME=MODULE:FUNCTION.",
            )
        return found

    def _log(self, line: LogLine) -> None:
        self._on_line(line)
        heard = self._listeners.get(line.request_id)
        if heard is not None:
            heard.append(line.text)

    def listen(self, request_id: str) -> list[str]:
        """Collect the log lines of one invocation from now on, until `hush`."""
        return self._listeners.setdefault(request_id, [])

    def fault(self) -> Kill | None:
        """The injected fault of an invocation that was requested directly; noted in the history."""
        faults = self._queues.faults
        plan = faults.invoking() if faults.active else None
        if plan is None:
            return None
        self._queues.history.record("", "", "fault", at_ms=self._queues.timers.now_ms(), why=plan.why, via="lambda")
        return plan.kill

    def hush(self, request_id: str) -> None:
        """Stop collecting the lines of an invocation."""
        self._listeners.pop(request_id, None)

    # -- mappings ------------------------------------------------------------------------------------------------------

    def entries(self, *, queue: str | None = None, function: str | None = None) -> list[MappingEntry]:
        """Mappings, by uuid; only those of `queue` or `function`, if given."""
        return [
            one
            for _, one in sorted(self._entries.items())
            if (queue is None or one.settings.queue == queue)
            and (function is None or one.settings.function == function)
        ]

    def entry(self, uuid: str) -> MappingEntry:
        """One mapping.

        Raises:
            NotFoundError: there is none with that uuid.
        """
        found = self._entries.get(uuid)
        if found is None:
            raise errors.NotFoundError("The resource you requested does not exist.", todo="List the mappings.")
        return found

    async def create(self, function: str, queue: str, **settings: Any) -> MappingEntry:
        """Map a queue to a function; it polls as soon as this returns, unless it is created disabled.

        Args:
            settings: other members of `MappingSettings`.

        Raises:
            NotFoundError: the function does not exist. ConflictError: they are mapped already; names the mapping.
            UsageError: what Lambda refuses: an unknown queue, values out of range, a visibility below the timeout.
        """
        made = MappingSettings(uuid=self._new_uuid(), queue=queue, function=function, **settings)
        self._check(made)
        entry = MappingEntry(made, self._queues.timers.now_ms(), "Creating")
        self._entries[made.uuid] = entry  # at once: a second call sees it while this one waits for the disk
        try:
            await self._store(entry)
        except BaseException:
            del self._entries[made.uuid]
            raise
        self._begin(entry)
        return structs.replace(entry, state="Creating" if made.enabled else "Disabled")

    def _new_uuid(self) -> str:
        return str(uuids.UUID(hex=self._entropy.token() + self._entropy.token(), version=4))

    def _check(self, settings: MappingSettings) -> None:
        function = self.function(settings.function)
        try:
            queue = self._queues.engine.queues.setting(settings.queue)
        except errors.NotFoundError as error:
            raise errors.UsageError(
                "Error occurred while ReceiveMessage. SQS Error Code: AWS.SimpleQueueService.NonExistentQueue. "
                "SQS Error Message: The specified queue does not exist.",
                meaning=f"There is no queue {settings.queue!r}.",
                todo="Create the queue first.",
            ) from error
        check_mapping(
            settings, fifo=queue.fifo, visibility_ms=queue.visibility_ms, timeout_ms=function.settings.timeout_ms
        )
        for other in self.entries(queue=settings.queue, function=settings.function):
            if other.settings.uuid != settings.uuid:
                raise errors.ConflictError(
                    f'An event source mapping with SQS arn (" {self._addresses.arn(settings.queue)} ") and function '
                    f'(" {settings.function} ") already exists. Please update or delete the existing mapping with UUID '
                    f"{other.settings.uuid}",
                    todo="Update that one, or delete it first.",
                )

    def _begin(self, entry: MappingEntry) -> None:
        if not entry.settings.enabled:
            entry.state = "Disabled"
            return
        entry.poller = Poller(
            entry.settings,
            self._queues,
            self.function(entry.settings.function),
            addresses=self._addresses,
            entropy=self._entropy,
        )
        entry.poller.start()
        entry.state = "Enabled"

    async def update(self, uuid: str, **changes: Any) -> MappingEntry:
        """Change a mapping; batches in progress are finished with the old settings.

        Args:
            changes: members of `MappingSettings` without uuid and queue.

        Raises:
            NotFoundError, ConflictError, UsageError: as for `create`; nothing was changed.
            StorageBusy: it could not be stored; nothing was changed.
        """
        entry = self.entry(uuid)
        wanted = structs.replace(entry.settings, **changes)
        self._check(wanted)
        before = entry.settings
        changed = MappingEntry(wanted, self._queues.timers.now_ms(), entry.state)
        await self._store(changed)
        entry.settings, entry.changed_at_ms = wanted, changed.changed_at_ms
        entry.state = "Updating"
        if before.enabled is not wanted.enabled:
            entry.state = "Enabling" if wanted.enabled else "Disabling"
        answer = structs.replace(entry)
        self._later(self._swap(entry))
        return answer

    async def _swap(self, entry: MappingEntry) -> None:
        old, entry.poller = entry.poller, None
        if old is not None:
            await old.stop()
        if self._entries.get(entry.settings.uuid) is entry and entry.poller is None:
            self._begin(entry)

    async def delete(self, uuid: str) -> MappingEntry:
        """End a mapping; batches in progress are finished.

        Raises:
            NotFoundError: there is none with that uuid.
        """
        entry = self.entry(uuid)
        await self._put(uuid, None)
        self._entries.pop(uuid, None)
        entry.state = "Deleting"
        self._later(self._swap(entry))
        return entry

    def _later(self, work: Any) -> None:
        task = self._queues.timers.loop.create_task(work)
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)

    async def _store(self, entry: MappingEntry) -> None:
        await self._put(entry.settings.uuid, msgspec.json.encode(_Stored(entry.settings, entry.changed_at_ms)))

    async def _put(self, uuid: str, value: bytes | None) -> None:
        state, name = self._queues.engine.state, _PREFIX + uuid

        def put() -> None:
            (found,) = state.get([name])
            state.put([Change(name, value, 0 if found is None else found.version)])

        await self._queues.call(put)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def load(self) -> Sequence[str]:
        """Resume stored mappings; returns one sentence for each that cannot be resumed because its function is missing."""
        state = self._queues.engine.state
        problems = []
        for found in state.get(state.names(_PREFIX)):
            if found is None:
                continue
            stored = msgspec.json.decode(found.value, type=_Stored)
            entry = MappingEntry(stored.settings, stored.changed_at_ms, "Disabled")
            self._entries[stored.settings.uuid] = entry
            if stored.settings.function in self.functions:
                self._begin(entry)
            else:
                problems.append(
                    f"mapping {stored.settings.uuid} of {stored.settings.queue} waits: function "
                    f"{stored.settings.function} is not registered"
                )
        return problems

    def stats(self) -> Mapping[str, MappingStats | None]:
        """The counters of each mapping, by uuid; None for one that does not poll."""
        return {uuid: None if one.poller is None else one.poller.stats() for uuid, one in self._entries.items()}

    async def stop(self) -> None:
        """Finish the batches in progress, end all polling, close all functions."""
        pollers = [one.poller for one in self._entries.values() if one.poller is not None]
        await asyncio.gather(*(poller.stop() for poller in pollers))
        await asyncio.gather(*self._changing, return_exceptions=True)
        await asyncio.gather(*(function.close() for function in self.functions.values()))
