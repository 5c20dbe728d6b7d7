"""A guarded function with a new name keeps the records that it has under its earlier names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import onefold
from onefold import observe
from onefold.clock import SystemClock
from onefold.contracts.store import Ask, Claimed, Complete, Record, RecordKey
from onefold.contracts.verbs import Store
from onefold.engines import urls
from onefold.entropy import SystemEntropy
from onefold.errors import ConflictError, OutcomeUnknown, TransientError, UsageError
from onefold.testing.records import KEPT_MS, ask


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    engine = urls.open_engine(
        f"sqlite:///{tmp_path}/records.db", clock=SystemClock(), entropy=SystemEntropy(), owner="a"
    )
    yield engine.store
    engine.close()


def guarded(store: Store, calls: list[str], error: Exception | None = None, **options: Any) -> Any:
    @onefold.once(key="{invoice}", store=store, **options)
    def charge(invoice: str, pence: int = 0) -> str:
        if error is not None:
            raise error
        calls.append(invoice)
        return f"charged {invoice}"

    return charge


def statuses(store: Store, key: str, *names: str) -> list[str | None]:
    found: Sequence[Record | None] = store.read([RecordKey("", name, key) for name in names], 0)
    return [None if one is None else one.status for one in found]


def test_what_is_done_under_an_earlier_name_is_not_done_again(store: Store) -> None:
    calls: list[str] = []
    old = guarded(store, calls, name="shop.charge")
    assert old("i-1") == "charged i-1"
    del old
    new = guarded(store, calls, name="charge", aliases=["charging", "shop.charge"])
    assert new("i-1") == "charged i-1"
    assert new("i-2") == "charged i-2"
    assert calls == ["i-1", "i-2"]
    assert statuses(store, "i-1", "charge", "shop.charge") == [None, "completed"], "a record keeps its name"
    assert statuses(store, "i-2", "charge", "shop.charge") == ["completed", None]
    assert observe.look(new, "i-1").result == "charged i-1"
    assert observe.look(new, "i-3").state == "absent"
    with pytest.raises(UsageError, match=r"42 is not a key: it is a int\..*Pass the text"):
        observe.look(new, cast("Any", 42))
    with pytest.raises(ConflictError, match="other arguments"):
        new("i-1", pence=1)


def test_without_aliases_it_would_be_done_again(store: Store) -> None:
    calls: list[str] = []
    guarded(store, calls, name="shop.charge")("i-1")
    guarded(store, calls, name="charge")("i-1")
    assert calls == ["i-1", "i-1"]


def test_a_coroutine_has_earlier_names_too(store: Store) -> None:
    calls: list[str] = []
    guarded(store, calls, name="shop.charge")("i-1")

    @onefold.once(key="{invoice}", store=store, name="charge", aliases=["shop.charge"])
    async def charge(invoice: str, pence: int = 0) -> str:
        calls.append(invoice)
        return "again"

    assert asyncio.run(charge("i-1")) == "charged i-1"
    assert asyncio.run(observe.alook(charge, "i-1")).result == "charged i-1"


def test_what_is_held_or_runs_under_an_earlier_name_counts(store: Store) -> None:
    calls: list[str] = []

    lost = OutcomeUnknown("the answer was lost")
    old = guarded(store, calls, lost, name="shop.charge", on_unknown="hold")
    with pytest.raises(OutcomeUnknown):
        old("i-1")
    new = guarded(store, calls, name="charge", aliases=["shop.charge"], on_unknown="hold", on_running="raise")
    with pytest.raises(OutcomeUnknown, match="charge"):
        new("i-1")
    now_ms = 1_700_000_000_000
    (running,) = store.claim([_ask("shop.charge", "i-2", 1 << 50)], now_ms)
    assert isinstance(running, Claimed)
    with pytest.raises((TransientError, ConflictError)):
        new("i-2")
    assert calls == []


def _ask(name: str, key: str, lease_until_ms: int) -> Ask:
    return Ask(
        key=RecordKey("", name, key), fingerprint="other", owner="another", lease_until_ms=lease_until_ms, start=True,
        expires_at_ms=1 << 51,
    )  # fmt: skip


class Racing:
    """A store in which a process of the earlier release records the call, right after the claim under the present name."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.location = None
        self.claims = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, asks: Sequence[Ask], now_ms: int, *notes: Any) -> Any:
        found = self._store.claim(asks, now_ms, *notes)
        self.claims += 1
        if self.claims == 1:
            (other,) = self._store.claim([_ask_like(asks[0], "shop.charge")], now_ms)
            done = Complete(result=b'"charged by the other"', expires_at_ms=now_ms + KEPT_MS)
            assert self._store.write([(other.hold, done)], now_ms) == [True]
        return found


def _ask_like(one: Ask, name: str) -> Ask:
    made = ask(RecordKey(one.key.scope, name, one.key.key), "B")
    return Ask(
        key=made.key, fingerprint=one.fingerprint, owner="another", lease_until_ms=one.lease_until_ms, start=True,
        expires_at_ms=one.expires_at_ms,
    )  # fmt: skip


def test_a_call_recorded_under_an_earlier_name_between_read_and_claim_is_not_made_again(store: Store) -> None:
    calls: list[str] = []
    racing: Any = Racing(store)
    new = guarded(racing, calls, name="charge", aliases=["shop.charge"])
    assert new("i-1") == "charged by the other"
    assert calls == []
    assert statuses(store, "i-1", "charge") == ["released"]


def test_the_claim_is_given_back_where_the_other_names_cannot_be_read(store: Store) -> None:
    calls: list[str] = []
    racing: Any = Racing(store)
    racing.claims = 1  # nobody else is there
    reads = []

    def read(keys: Sequence[RecordKey], now_ms: int) -> Any:
        reads.append(list(keys))
        if len(reads) == 2:
            assert statuses(store, "i-1", "charge") == ["in_progress"]
            raise TransientError("the store is away")
        return store.read(keys, now_ms)

    racing.read = read
    new = guarded(racing, calls, name="charge", aliases=["shop.charge"])
    with pytest.raises(TransientError, match="the store is away"):
        new("i-1")
    assert calls == []
    assert statuses(store, "i-1", "charge") == ["released"]
    assert new("i-1") == "charged i-1"


def test_the_earlier_name_of_one_may_not_be_the_name_of_another(store: Store) -> None:
    calls: list[str] = []
    kept = guarded(store, calls, name="shop.charge")

    def other(invoice: str) -> str:
        return invoice

    with pytest.raises(ConflictError, match=r"has the name 'shop\.charge'"):
        onefold.once(key="{invoice}", store=store, name="charge", aliases=["shop.charge"])(other)
    assert kept("i-1") == "charged i-1"


@pytest.mark.parametrize(
    ("aliases", "said"),
    [
        ("shop.charge", "is not a list of names"),
        (["charge"], "has the alias 'charge' twice"),
        (["a", "a"], "has the alias 'a' twice"),
        ([""], "is not a name that an operation can have had"),
        ([7], "is not a name that an operation can have had"),
        ([f"a{number}" for number in range(11)], "has 11 aliases"),
    ],
)
def test_what_cannot_be_earlier_names_is_refused(store: Store, aliases: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        guarded(store, [], name="charge", aliases=aliases)
