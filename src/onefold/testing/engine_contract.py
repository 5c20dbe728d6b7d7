"""What every Engine must do with calls made together, as tests.

Subclass `EngineContract` and set `self.engine` (an open Engine without any queue) before each test; use
`OwnersContract` in the same way, with an engine on which this process has not appeared yet.
Never here: particular calls. Invariant: what a call writes is stored as a whole or not at all.
"""

from __future__ import annotations

from onefold import errors
from onefold.contracts.engine import Engine
from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings


class EngineContract:
    """Calls of one transaction."""

    engine: Engine

    def _send(self, *bodies: str) -> None:
        self.engine.queues.open("q").send([Entry(body=body) for body in bodies])

    def _bodies(self) -> list[str]:
        return sorted(one.body for one in self.engine.queues.peek("q"))

    def _create(self) -> None:
        self.engine.queues.create(QueueSettings(name="q"))

    def test_each_call_is_answered_in_its_place(self) -> None:
        """Each call's answer is its value or its exception."""
        self._create()
        answers = self.engine.together([lambda: 1, lambda: self.engine.queues.depth("nobody"), lambda: "three"])
        assert (answers[0], answers[2]) == (1, "three")
        assert isinstance(answers[1], errors.NotFoundError)
        assert self.engine.together([]) == []

    def test_a_call_sees_what_the_calls_before_it_wrote(self) -> None:
        """Create, send and receive in one transaction."""
        received = self.engine.together(
            [self._create, lambda: self._send("a"), lambda: self.engine.queues.open("q").receive(1)], synced=False
        )[2]
        assert [one.body for one in received] == ["a"]  # type: ignore[attr-defined]

    def test_a_call_that_fails_takes_all_it_wrote_back_and_nothing_else(self) -> None:
        """All steps of a failed call are undone."""
        self._create()

        def half() -> None:
            self._send("half")
            self.engine.queues.create(QueueSettings(name="other"))
            raise ValueError("no")

        answers = self.engine.together([lambda: self._send("before"), half, lambda: self._send("after")])
        assert isinstance(answers[1], ValueError)
        assert self._bodies() == ["after", "before"]
        assert [one.name for one in self.engine.queues.settings()] == ["q"]

    def test_what_stops_the_process_takes_everything_back(self) -> None:
        """KeyboardInterrupt is raised, not returned as an answer."""
        self._create()

        def stop() -> None:
            raise KeyboardInterrupt

        try:
            self.engine.together([lambda: self._send("a"), stop])
        except KeyboardInterrupt:
            assert self._bodies() == []
        else:
            raise AssertionError("it was swallowed")
        self.engine.together([lambda: self._send("b")])
        assert self._bodies() == ["b"]

    def test_calls_made_together_inside_a_call_are_part_of_it(self) -> None:
        """Calls can be nested."""
        self._create()

        def outer() -> list[object]:
            return self.engine.together([lambda: self._send("inner"), lambda: self.engine.queues.depth("nobody")])

        def outer_that_fails() -> None:
            outer()
            raise ValueError("no")

        first, second = self.engine.together([outer, outer_that_fails])
        assert isinstance(first[1], errors.NotFoundError)  # type: ignore[index]
        assert isinstance(second, ValueError)
        assert self._bodies() == ["inner"]

    def test_a_dead_letter_that_was_taken_back_is_not_reported(self) -> None:
        """`take_transfers` reports only what has happened."""
        admin = self.engine.queues
        admin.create(QueueSettings(name="dead", retention_ms=1_209_600_000))
        admin.create(QueueSettings(name="q", dead_letter="dead", receives_max=1))
        self._send("a")
        admin.open("q").receive(1, 0)

        def fails() -> None:
            assert admin.open("q").receive(1) == []
            raise ValueError("no")

        assert isinstance(self.engine.together([fails])[0], ValueError)
        assert admin.take_transfers() == []
        assert admin.depth("q").visible == 1
        assert admin.open("q").receive(1) == []
        assert len(admin.take_transfers()) == 1

    def test_nobody_else_has_written(self) -> None:
        """Changes by this process do not count as changes by another."""
        assert not self.engine.changed_elsewhere()
        self._create()
        self._send("a")
        assert self.engine.queues.depth("q").visible == 1
        assert not self.engine.changed_elsewhere()


class OwnersContract:
    """Tests of `dead_owners`: which owners' processes have ended."""

    engine: Engine
    owner: str
    """The owner that the engine was opened with."""

    def ended(self) -> str | None:
        """An owner that has appeared on this engine and whose process has ended; None if an engine cannot know."""
        raise NotImplementedError  # abstract: the suite of each engine defines how one of its processes ends

    def test_nobody_is_taken_for_dead_on_no_evidence(self) -> None:
        """An unknown owner may work on another host; its name comes from a record and can be anything."""
        strange = ["elsewhere", "", ".", "..", "../elsewhere", "a/b", "x" * 5_000, "a\0b", "é"]
        assert self.engine.dead([]) == frozenset()
        assert self.engine.dead([self.owner, *strange]) == frozenset()

    def test_whoever_works_is_alive(self) -> None:
        """The engine's own process is alive while the engine is open."""
        self.engine.appear()
        assert self.engine.dead([self.owner]) == frozenset()
        self.engine.maintain(lambda _: None)
        assert self.engine.dead([self.owner]) == frozenset()

    def test_who_has_ended_is_dead_before_and_after_it_is_noticed(self) -> None:
        """Asking changes nothing: maintenance still reports each owner once."""
        self.engine.appear()
        ended = self.ended()
        for _ in range(2):
            assert self.engine.dead([self.owner, ended or "elsewhere"]) == frozenset([ended] if ended else [])
        told: list[str] = []
        self.engine.maintain(told.append)
        assert told == ([ended] if ended else [])
        for _ in range(2):
            assert self.engine.dead(iter([ended or "elsewhere", self.owner])) == frozenset([ended] if ended else [])
        self.engine.maintain(told.append)
        assert told == ([ended] if ended else [])
