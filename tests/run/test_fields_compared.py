"""Which fields of a payload make it another one, and what a conflict says of them: their names, never their values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import onefold
from onefold import errors
from onefold.codec import Compared, differing, fingerprint

Order = dict[str, Any]
START = datetime(2026, 11, 23, tzinfo=UTC)


class Shop:
    """A job whose `requested_at` does not count, and one of which only `pence` does."""

    def __init__(self, **options: Any) -> None:
        self.app, self.ran = onefold.App("shop", url="sqlite://:memory:"), list[str]()
        orders = self.app.queue("orders")

        @self.app.job(orders, key="{id}", **options)
        def ship(order: Order) -> None:
            self.ran.append(order["id"])

        self.ship = ship


def test_a_field_that_is_ignored_makes_no_other_payload() -> None:
    shop = Shop(ignore=["requested_at"])
    with onefold.testing.inline(shop.app) as world:
        shop.ship.send({"id": "o-1", "pence": 5, "requested_at": "10:00"})
        shop.ship.send({"id": "o-1", "pence": 5, "requested_at": "10:01"})
        world.run()
        assert shop.ran == ["o-1"]
        assert world.depth("orders-dead").visible == 0


def test_only_the_named_fields_count() -> None:
    shop = Shop(fingerprint=["pence"], unique=True)
    with onefold.testing.inline(shop.app):
        assert shop.ship.send({"id": "o-1", "pence": 5, "note": "a"}).found == "new"
        assert shop.ship.send({"id": "o-1", "pence": 5, "note": "b"}).found == "waiting"
        with pytest.raises(errors.ConflictError, match="another payload") as caught:
            shop.ship.send({"id": "o-1", "pence": 987654, "note": "a"})
        assert "They differ in: pence." in caught.value.meaning
        assert "987654" not in str(caught.value)


def test_a_conflict_of_a_delivery_names_the_fields() -> None:
    shop = Shop(ignore=["note"])
    with onefold.testing.inline(shop.app) as world:
        shop.ship.send({"id": "o-1", "pence": 5, "to": "north", "note": "a"})
        shop.ship.send({"id": "o-1", "pence": 987654, "note": "b", "by": "air"})
        world.run()
        (dead,) = shop.app.runtime().engine.queues.peek("orders-dead")
        assert dead.reason is not None
        assert "They differ in: by, pence, to." in dead.reason.summary
        assert "987654" not in dead.reason.summary


def test_without_a_choice_a_conflict_says_how_to_have_the_fields_named() -> None:
    shop = Shop(unique=True)
    with onefold.testing.inline(shop.app):
        shop.ship.send({"id": "o-1", "pence": 5})
        with pytest.raises(errors.ConflictError) as caught:
            shop.ship.send({"id": "o-1", "pence": 6})
        assert "fingerprint=[...]" in caught.value.meaning


def test_what_was_recorded_before_fields_were_chosen_still_counts(tmp_path: Path) -> None:
    before, after = Shop(unique=True), Shop(unique=True, ignore=["note"])
    before.app.url = after.app.url = f"sqlite:///{tmp_path / 'shop.db'}"
    before.ship.send({"id": "o-1", "pence": 5})
    assert after.ship.send({"id": "o-1", "pence": 5}).found == "waiting"
    with pytest.raises(errors.ConflictError):
        after.ship.send({"id": "o-1", "pence": 6})
    before.app.close()
    after.app.close()


class Parcel(msgspec.Struct):
    id: str
    pence: int = 5


def test_defaults_that_are_left_out_are_no_difference() -> None:
    compared = Compared(ignored=("note",))
    app = onefold.App("shop", url="sqlite://:memory:")

    @app.job(app.queue("orders"), key="{id}", unique=True, fingerprint=["id", "pence"])
    def ship(parcel: Parcel) -> None: ...

    with onefold.testing.inline(app):
        ship.send(Parcel("o-1"))
        assert ship.send(Parcel("o-1", 5)).found == "waiting"
    assert compared.of(b'{"a":1}').startswith(fingerprint(b'{"a":1}'))
    assert differing(compared.of(b'{"a":1,"note":1}'), compared.of(b'{"a":1,"note":2}')) == []
    assert compared.of(b"[1]") != compared.of(b"[2]")
    wide = {f"field_{number}": number for number in range(200)}
    assert len(compared.of(msgspec.json.encode(wide))) < 500


@pytest.mark.parametrize(
    ("options", "match"),
    [({"ignore": "id"}, "not a list of names"), ({"fingerprint": ["pence", "prise"]}, "names 'prise'")],
)
def test_names_that_are_none(options: dict[str, Any], match: str) -> None:
    app = onefold.App("shop")
    with pytest.raises(errors.UsageError, match=match):

        @app.job(app.queue("orders"), key="{id}", **options)
        def ship(parcel: Parcel) -> None: ...


class Stamped(msgspec.Struct):
    id: str
    sent_at: datetime


class Made(msgspec.Struct):
    id: str
    on: datetime = msgspec.field(default_factory=lambda: START)


@dataclass
class MadeToo:
    id: str
    on: datetime = field(default_factory=lambda: START)
    all: list[datetime] = field(default_factory=list)


@pytest.mark.parametrize(("kind", "name"), [(Stamped, "sent_at"), (Made, "on"), (MadeToo, "on")])
def test_a_field_that_sounds_like_the_time_of_the_send_is_warned_of(kind: Any, name: str) -> None:
    app = onefold.App("shop")
    orders = app.queue("orders")

    def ship(order: Any) -> None: ...

    ship.__annotations__["order"] = kind
    with pytest.warns(UserWarning, match=f"The field {name} of ship's payload looks like the time of the send"):
        app.job(orders, key="{id}")(ship)
    app.job(orders, key="{id}", name="other", ignore=[name])(ship)


def test_a_receipt_says_what_it_means() -> None:
    shop = Shop(unique=True)
    with onefold.testing.inline(shop.app) as world:
        first = shop.ship.send({"id": "o-1"})
        assert str(first) == f"ship 'o-1': sent as message {first.message_id}"
        assert str(shop.ship.send({"id": "o-1"})) == "ship 'o-1': waiting already; nothing was added"
        world.run()
        assert str(shop.ship.send({"id": "o-1"})) == "ship 'o-1': done already; nothing was added"
