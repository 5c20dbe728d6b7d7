"""Files whose FIFO messages lost their group's row, and the numbers of groups."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onefold import limits
from onefold.contracts.entries import Entry, Sent
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.engines.sqlite.database import Database
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock

DAMAGE = """
    PRAGMA user_version = 3;
    DELETE FROM onefold_state;
    -- moved to the end of its own group: the group's row is gone
    DELETE FROM onefold_group WHERE name = 'alone';
    -- so was this one's, and a group of another queue took the number, whose queue then received the message
    UPDATE onefold_message SET grp = (SELECT id FROM onefold_group WHERE name = 'other') WHERE body IN ('taken', 'behind');
    DELETE FROM onefold_group WHERE name = 'taken';
    INSERT INTO onefold_received
    SELECT m.id, (SELECT id FROM onefold_queue WHERE name = 'lines.fifo'), m.visible_at_ms, m.sent_at_ms, 1, 1, 0, 0, NULL
    FROM onefold_message m WHERE body = 'taken';
    -- and this one was deleted there, but for its place in its own queue
    DELETE FROM onefold_message WHERE body = 'gone';
    DELETE FROM onefold_group WHERE name = 'gone';
"""


class Desk:
    """Two FIFO queues in a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, ManualClock()
        self.engine: Database | None = None
        self.queues = self.opened()
        self.queues.create(QueueSettings(name="orders.fifo", fifo=True))
        self.queues.create(QueueSettings(name="lines.fifo", fifo=True))

    def opened(self) -> SqliteQueues:
        self.engine = Database(str(self.path), self.clock)
        return SqliteQueues(self.engine, owner="me", entropy=SeededEntropy(1))

    def reopened(self, script: str) -> None:
        """After a damage done by hand."""
        self.close()
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executescript(script)
        self.queues = self.opened()

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.engine = None

    def send(self, queue: str, *bodies: str, group: str) -> None:
        entries = [Entry(body=body, group=group, dedup_id=f"{queue}-{body}") for body in bodies]
        assert all(isinstance(one, Sent) for one in self.queues.open(queue).send(entries))

    def bodies(self, queue: str) -> list[str]:
        """Receive and delete what can be received."""
        opened = self.queues.open(queue)
        found: list[str] = []
        while deliveries := opened.receive(10):
            found += [one.body for one in deliveries]
            assert opened.delete([one.receipt for one in deliveries]) == [True] * len(deliveries)
        return found

    def counted(self, queue: str) -> tuple[int, int]:
        depth = self.queues.depth(queue)
        return depth.visible + depth.in_flight + depth.delayed, len(self.queues.peek(queue))

    def numbers(self) -> dict[str, int]:
        assert self.engine is not None
        return dict(self.engine.read(lambda one: one.execute("SELECT name, id FROM onefold_group").fetchall()))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "work.db")
    yield made
    made.close()


def test_messages_without_a_group_get_one_of_their_own(desk: Desk) -> None:
    desk.send("lines.fifo", "line", group="other")
    for body in ("alone", "taken", "gone"):
        desk.send("orders.fifo", body, group=body)
    desk.send("orders.fifo", "behind", group="taken")
    desk.send("orders.fifo", "well", group="well")
    desk.reopened(DAMAGE)
    assert desk.counted("orders.fifo") == (4, 4)
    assert desk.counted("lines.fifo") == (1, 1)
    groups = {one.body: one.group or "" for one in desk.queues.peek("orders.fifo")}
    assert groups.pop("well") == "well"
    assert all(group.startswith("onefold-repaired-") for group in groups.values())
    assert groups["taken"] == groups["behind"] != groups["alone"]
    assert desk.bodies("lines.fifo") == ["line"]
    assert sorted(desk.bodies("orders.fifo")) == ["alone", "behind", "taken", "well"]
    assert desk.counted("orders.fifo") == desk.counted("lines.fifo") == (0, 0)
    desk.clock.advance(30 * limits.DAY_MS)
    assert [desk.queues.sweep() for _ in range(2)] == [6, 0]  # the deduplication ids


def test_a_repaired_message_can_be_moved_to_another_queue(desk: Desk) -> None:
    desk.send("orders.fifo", "alone", group="alone")
    desk.reopened(DAMAGE)
    (message,) = desk.queues.peek("orders.fifo")
    (moved,) = desk.queues.move([(message.message_id, "lines.fifo", None)])
    assert moved is not None
    assert desk.bodies("lines.fifo") == ["alone"]


def test_a_group_never_gets_the_number_of_an_earlier_one(desk: Desk) -> None:
    seen: set[int] = set()
    for turn in range(3):
        desk.send("orders.fifo", f"a{turn}", f"b{turn}", group="g")
        desk.send("lines.fifo", f"c{turn}", group="h")
        made = desk.numbers()
        assert set(made) == {"g", "h"}
        assert not seen & set(made.values())
        seen |= set(made.values())
        assert desk.bodies("orders.fifo") == [f"a{turn}", f"b{turn}"]
        assert desk.bodies("lines.fifo") == [f"c{turn}"]


def test_a_file_of_the_version_before_keeps_its_groups(desk: Desk) -> None:
    desk.send("orders.fifo", "a", group="g")
    before = desk.numbers()
    desk.reopened("UPDATE onefold_file SET last_id = 1; PRAGMA user_version = 3")
    assert desk.numbers() == before
    desk.send("orders.fifo", "b", group="h")
    desk.send("orders.fifo", "c", group="g")
    assert sorted(desk.bodies("orders.fifo")) == ["a", "b", "c"]
