"""A value under a record's key that cannot be read is reported without being quoted."""

from __future__ import annotations

import json

import pytest
import redis

from onefold.contracts.store import Unreadable
from onefold.engines.redis.backend import RedisBackend
from onefold.engines.redis.layout import Names
from onefold.observe.log_fields import fields_of, json_line
from onefold.record import guard
from onefold.record.delivery import Decision
from onefold.runtime.events import Event
from onefold.testing.records import KEY, NOW, ask
from tests.decide.test_guard import POLICY

BODY = "zbodyqmarker"


@pytest.mark.parametrize(
    "stored", [BODY, json.dumps({"status": BODY}), json.dumps([BODY]), json.dumps({"result": BODY}), f'{{"{BODY}": 1}}']
)
def test_what_cannot_be_read_is_not_quoted(books: RedisBackend, direct: redis.Redis, stored: str) -> None:
    direct.set(Names().record(KEY), stored)
    (found,) = books.store.claim([ask()], NOW)
    assert isinstance(found, Unreadable)
    decision = guard.answer(found, POLICY, NOW)
    assert isinstance(decision, Decision)
    (note,) = decision.notes
    line = json_line(fields_of(Event(at_ms=NOW, name=note.event, key=KEY, detail=note.detail)))
    assert "is not a record" in line
    assert BODY not in line
    assert f"'{KEY.key}'" not in line
