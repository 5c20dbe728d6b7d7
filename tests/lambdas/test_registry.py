"""The registry: what it refuses changes nothing, changes come one after another, and stored mappings go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec import structs

from onefold import errors
from onefold.entropy import SeededEntropy
from onefold.local.fault_rules import parse_faults
from onefold.local.identifiers import QueueAddresses
from onefold.local.outcomes import Answered, LogLine, Outcome
from onefold.local.registry import FunctionRegistry
from onefold.local.settings import FunctionSettings
from tests.local.house import House, play, turns

Script = Callable[[House, FunctionRegistry], Coroutine[Any, Any, None]]


class Handler:
    """Stands for a function that is always done; `held` keeps invocations from ending."""

    def __init__(self, settings: FunctionSettings) -> None:
        self.settings = settings
        self.capacity = 8
        self.limit = 1_000
        self.invocations = 0
        self.closed = False
        self.held: asyncio.Event | None = None

    def new_request_id(self) -> str:
        return "request"

    async def invoke(self, event: bytes, **_: object) -> Outcome:
        assert not self.closed
        self.invocations += 1
        if self.held is not None:
            await self.held.wait()
        return Answered(b"null")

    async def close(self) -> None:
        self.closed = True


def settings(name: str, **more: Any) -> FunctionSettings:
    return FunctionSettings(name=name, handler="shop:handler", code_dir=".", **more)


def registry_of(house: House, *names: str) -> FunctionRegistry:
    made = FunctionRegistry(
        house.queues,
        addresses=QueueAddresses("000000000000", "us-east-1", "localhost"),
        make=lambda chosen, _: Handler(chosen),  # type: ignore[arg-type, return-value]  # what is needed of one
        on_line=lambda _: None,
        entropy=SeededEntropy(5),
    )
    for name in names:
        made.register(settings(name))
    return made


def with_registry(script: Script) -> None:
    """Run a script with a registry of the functions `book` and `bill`."""

    async def whole(house: House) -> None:
        registry = registry_of(house, "book", "bill")
        try:
            await script(house, registry)
        finally:
            await registry.stop()

    play(whole)


def handler(registry: FunctionRegistry, name: str = "book") -> Handler:
    found = registry.function(name)
    assert isinstance(found, Handler)
    return found


def stored(house: House) -> list[str]:
    return house.engine.state.names("lambda/mapping/")


def failing(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing can be stored."""

    def refuse(_: object) -> list[bool]:
        raise errors.StorageBusy("The disk is full.")

    monkeypatch.setattr(house.engine.state, "put", refuse)


def test_functions_have_names_of_their_own() -> None:
    async def script(_: House, registry: FunctionRegistry) -> None:
        with pytest.raises(errors.ConflictError):
            registry.register(settings("book"))
        with pytest.raises(errors.UsageError):
            registry.register(settings("no name"))
        assert sorted(registry.functions) == ["bill", "book"]
        with pytest.raises(errors.NotFoundError, match="bill, book"):
            registry.function("other")

    with_registry(script)


@pytest.mark.parametrize(
    ("function", "queue", "more", "error"),
    [
        ("none", "orders", {}, errors.NotFoundError),
        ("book", "none", {}, errors.UsageError),
        ("book", "orders", {"batch_size": 0}, errors.UsageError),
        ("book", "orders", {"batch_size": 11}, errors.UsageError),
        ("book", "steps.fifo", {"batch_size": 11, "window_ms": 1_000}, errors.UsageError),
        ("book", "steps.fifo", {"window_ms": 1_000}, errors.UsageError),
        ("book", "orders", {"window_ms": 301_000}, errors.UsageError),
        ("book", "orders", {"concurrency_max": 1}, errors.UsageError),
        ("book", "orders", {"filters": ('{"body": [{"strange": 1}]}',)}, errors.UsageError),
        ("slow", "orders", {}, errors.UsageError),
    ],
)
def test_what_is_refused_makes_no_mapping(function: str, queue: str, more: dict[str, Any], error: type) -> None:
    async def script(house: House, registry: FunctionRegistry) -> None:
        registry.register(settings("slow", timeout_ms=31_000))
        with pytest.raises(error):
            await registry.create(function, queue, **more)
        assert (list(registry.entries()), stored(house)) == ([], [])

    with_registry(script)


def test_two_at_the_same_moment_make_one() -> None:
    async def script(house: House, registry: FunctionRegistry) -> None:
        made = await asyncio.gather(*(registry.create("book", "orders") for _ in range(3)), return_exceptions=True)
        assert [type(one) for one in made[1:]] == [errors.ConflictError, errors.ConflictError]
        (entry,) = registry.entries()
        assert stored(house) == [f"lambda/mapping/{entry.settings.uuid}"]
        assert entry.settings.uuid in str(made[1])

    with_registry(script)


def test_what_cannot_be_stored_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(house: House, registry: FunctionRegistry) -> None:
        made = await registry.create("book", "orders")
        failing(house, monkeypatch)
        with pytest.raises(errors.StorageBusy):
            await registry.create("bill", "orders")
        with pytest.raises(errors.StorageBusy):
            await registry.update(made.settings.uuid, batch_size=1)
        with pytest.raises(errors.StorageBusy):
            await registry.delete(made.settings.uuid)
        (entry,) = registry.entries()
        assert (entry.settings, entry.state) == (made.settings, "Enabled")

    with_registry(script)


def test_a_refused_update_changes_nothing() -> None:
    async def script(house: House, registry: FunctionRegistry) -> None:
        first = await registry.create("book", "orders")
        second = await registry.create("bill", "orders")
        for changes in ({"batch_size": 0}, {"function": "none"}, {"function": "book"}, {"filters": ("{}",) * 6}):
            with pytest.raises(errors.UsageError):
                await registry.update(second.settings.uuid, **changes)
        assert registry.entry(second.settings.uuid).settings == second.settings
        assert registry.entry(first.settings.uuid).settings == first.settings

    with_registry(script)


def test_a_change_waits_for_the_batch_in_hand() -> None:
    async def script(house: House, registry: FunctionRegistry) -> None:
        made = await registry.create("book", "orders")
        assert made.state == "Creating"
        uuid, book = made.settings.uuid, handler(registry)
        assert registry.entry(uuid).state == "Enabled"
        book.held = asyncio.Event()
        await house.send("a")
        await turns(40)
        assert (await registry.update(uuid, enabled=False)).state == "Disabling"
        await house.send("b")
        await turns(40)
        assert (registry.entry(uuid).state, book.invocations) == ("Disabling", 1)
        book.held.set()
        await turns(40)
        assert (registry.entry(uuid).state, book.invocations) == ("Disabled", 1)
        assert (await registry.update(uuid, enabled=True)).state == "Enabling"
        await turns(40)
        assert (registry.entry(uuid).state, book.invocations) == ("Enabled", 2)
        assert house.engine.queues.depth("orders").visible == 0

    with_registry(script)


def test_of_quick_changes_the_last_one_counts() -> None:
    async def script(house: House, registry: FunctionRegistry) -> None:
        uuid = (await registry.create("book", "orders")).settings.uuid
        for enabled in (False, True, False, True, False):
            await registry.update(uuid, enabled=enabled)
        await turns(60)
        assert registry.entry(uuid).state == "Disabled"
        assert registry.stats() == {uuid: None}
        await house.send("a")
        await turns(40)
        assert handler(registry).invocations == 0

    with_registry(script)


def test_a_deleted_mapping_finishes_its_batch_and_takes_no_other() -> None:
    async def script(house: House, registry: FunctionRegistry) -> None:
        uuid, book = (await registry.create("book", "orders")).settings.uuid, handler(registry)
        book.held = asyncio.Event()
        await house.send("a")
        await turns(40)
        assert (await registry.delete(uuid)).state == "Deleting"
        assert (registry.entries(), stored(house)) == ([], [])
        with pytest.raises(errors.NotFoundError):
            registry.entry(uuid)
        book.held.set()
        await house.send("b")
        await turns(40)
        depth = house.engine.queues.depth("orders")
        assert (book.invocations, depth.visible, depth.in_flight) == (1, 1, 0)
        await registry.create("book", "orders")  # the pair is free again
        await turns(40)
        assert book.invocations == 2

    with_registry(script)


@pytest.mark.conformance(
    operation="Mapping", case="a later change of the queue's visibility is not checked again", source="2.1 [D]"
)
def test_only_create_and_update_check_the_visibility() -> None:
    async def script(house: House, registry: FunctionRegistry) -> None:
        uuid = (await registry.create("book", "orders")).settings.uuid
        queues = house.engine.queues
        queues.change(structs.replace(queues.setting("orders"), visibility_ms=1_000))
        await house.send("a")
        await turns(40)
        assert handler(registry).invocations == 1
        with pytest.raises(errors.UsageError, match="Queue visibility timeout: 1 seconds"):
            await registry.update(uuid, batch_size=5)

    with_registry(script)


def test_stored_mappings_go_on_where_their_function_is() -> None:
    async def script(house: House, registry: FunctionRegistry) -> None:
        kept = (await registry.create("book", "orders", batch_size=3)).settings
        lost = (await registry.create("bill", "orders")).settings
        await registry.stop()
        again = registry_of(house, "book")
        try:
            (problem,) = await again.load()
            assert lost.uuid in problem
            assert "bill is not registered" in problem
            assert {one.settings.uuid: one.state for one in again.entries()} == {
                kept.uuid: "Enabled",
                lost.uuid: "Disabled",
            }
            assert again.entry(kept.uuid).settings == kept
            await house.send("a")
            await turns(40)
            assert handler(again).invocations == 1
        finally:
            await again.stop()
        assert handler(again).closed

    with_registry(script)


def test_a_listener_hears_its_own_invocation() -> None:
    async def script(house: House, registry: FunctionRegistry) -> None:
        lines = registry.listen("one")
        for request_id in ("one", "two"):
            registry._log(LogLine("book", request_id, "stdout", request_id))
        registry.hush("one")
        registry._log(LogLine("book", "one", "stdout", "late"))
        assert lines == ["one"]

    with_registry(script)


def test_a_fault_meets_what_is_invoked_directly() -> None:
    async def script(house: House, registry: FunctionRegistry) -> None:
        assert registry.fault() is None
        house.queues.faults.set(parse_faults(["kill-after=1,times=1", "seed=1"]))
        assert registry.fault() == "after"
        assert registry.fault() is None
        assert [(event.what, event.via) for event in house.history.all()] == [("fault", "lambda")]

    with_registry(script)
