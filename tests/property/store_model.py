"""A second, dumber idempotency store: it keeps everything that ever happened to a key and looks it up again each time.

It shares no rule with the package: nothing is updated in place, every figure is counted from the whole story. Slow, and
easy to believe. Never here: anything imported from onefold but the values that travel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from onefold.contracts.store import (
    Answer,
    Ask,
    Claimed,
    Complete,
    Completed,
    Conflict,
    Fail,
    Held,
    Hold,
    OutboxItem,
    Outcome,
    Record,
    RecordKey,
    Release,
    Running,
    Unknown,
)

ENDS = {Complete: "completed", Fail: "failed", Unknown: "unknown", Release: "released"}


@dataclass
class Story:
    """What happened to one key since it was last absent, oldest first: (what, when, whatever belongs to it)."""

    told: list[tuple[str, int, Any]] = field(default_factory=list)

    def all(self, *kinds: str) -> list[tuple[int, int, Any]]:
        """(place, when, what belongs to it) of every event of these kinds."""
        return [(place, at_ms, what) for place, (kind, at_ms, what) in enumerate(self.told) if kind in kinds]

    def last(self, *kinds: str) -> tuple[int, int, Any]:
        """The last event of these kinds; place -1 when there was none."""
        return (self.all(*kinds) or [(-1, 0, None)])[-1]

    @property
    def ask(self) -> Ask:
        return self.last("claim")[2][0]

    @property
    def fence(self) -> int:
        return self.last("claim")[2][1]

    @property
    def status(self) -> str:
        """How it stands: whatever ended the last claim, or a person's word after that."""
        place, _, what = self.last("claim", "end", "settle")
        if self.told[place][0] == "claim":
            return "in_progress"
        return ENDS[type(what)] if self.told[place][0] == "end" else ("completed" if what is not None else "released")

    @property
    def started(self) -> bool:
        return self.last("start")[0] > self.last("claim")[0]

    @property
    def parked(self) -> bool:
        place, _, what = self.last("end", "settle", "claim")
        return self.told[place][0] == "end" and isinstance(what, Unknown) and what.parked

    @property
    def doubt(self) -> bool:
        """Something unsettling happened after the last thing that settles."""
        unsettling = [place for place, _, what in self.all("end") if isinstance(what, Unknown)]
        unsettling += [place for place, _, _ in self.all("takeover")]
        settling = [place for place, _, what in self.all("end") if isinstance(what, Complete)]
        settling += [place for place, _, _ in self.all("start", "settle")]
        return max(unsettling, default=-1) > max(settling, default=-1)

    def opened(self) -> int:
        """Where the budget that counts now was opened: after the last closing that another claim followed."""
        claims = [place for place, _, _ in self.all("claim")]
        closings = [place for place, _, what in self.all("end") if isinstance(what, Fail) and what.closes_budget]
        closings += [place for place, _, what in self.all("settle") if what is None]
        return max((place for place in closings if any(claim > place for claim in claims)), default=-1)

    @property
    def budget_closed(self) -> bool:
        place, _, what = self.last("end", "settle", "claim")
        kind = self.told[place][0]
        return (kind == "settle" and what is None) or (kind == "end" and isinstance(what, Fail) and what.closes_budget)

    def attempts(self, since: int) -> int:
        return len([1 for place, _, _ in self.all("start") if place > since]) - len(
            [1 for place, _, _ in self.all("refund") if place > since]
        )

    def crashes(self, since: int) -> int:
        ended = [place for place, _, what in self.all("end") if isinstance(what, Unknown) and what.crashed]
        return len([1 for place in [*ended, *(at for at, _, _ in self.all("takeover", "asking"))] if place > since])

    @property
    def lease_until_ms(self) -> int:
        return self.last("claim", "renew")[2][2]

    @property
    def expires_at_ms(self) -> int | None:
        place, _, what = self.last("claim", "end", "settle")
        kind = self.told[place][0]
        if self.parked:
            return None
        return (
            self.ask.expires_at_ms if kind == "claim" else what.expires_at_ms if kind == "end" else self.settled_until()
        )

    def settled_until(self) -> int:
        return self.last("settled-until")[2]

    @property
    def failure(self) -> Any:
        """The last failure that was told, unless it completed after that."""
        told = [
            (place, what.failure) for place, _, what in self.all("end") if getattr(what, "failure", None) is not None
        ]
        place, failure = told[-1] if told else (-1, None)
        done = [at for at, _, what in self.all("settle") if what is not None]
        done += [at for at, _, what in self.all("end") if isinstance(what, Complete)]
        return None if max(done, default=-1) > place else failure

    @property
    def result(self) -> bytes | None:
        if self.status != "completed":
            return None
        _, _, what = self.last("end", "settle")
        return what.result if isinstance(what, Complete) else what

    @property
    def outbox(self) -> list[OutboxItem]:
        place, _, what = self.last("end")
        cleared = self.last("cleared")[0] > place
        return [] if cleared or not isinstance(what, Complete) or self.status != "completed" else what.outbox

    @property
    def hold(self) -> Hold:
        return Hold(self.ask.key, self.ask.owner, self.fence)

    def record(self) -> Record:
        start, claim = self.last("start"), self.last("claim")
        start_fences = [what for _, _, what in self.all("start")]
        return Record(
            key=self.ask.key,
            status=self.status,
            fence=self.fence,
            owner=self.ask.owner,
            lease_until_ms=self.lease_until_ms,
            fingerprint=self.ask.fingerprint,
            parked=self.parked,
            doubt=self.doubt,
            started_fence=start_fences[-1] if start_fences else 0,
            attempts=self.attempts(self.opened()),
            attempts_total=self.attempts(-1),
            crashes=self.crashes(self.opened()),
            crashes_total=self.crashes(-1),
            budget_closed=self.budget_closed,
            created_at_ms=self.all("claim")[0][1],
            started_at_ms=start[1] if start[0] >= 0 else None,
            updated_at_ms=self.last("claim", "start", "end", "settle")[1],
            expires_at_ms=self.expires_at_ms,
            result=self.result,
            failure=self.failure,
            outbox=self.outbox,
            message_id=claim[2][0].message_id,
            sent_at_ms=claim[2][0].sent_at_ms,
        )


class Model:
    """The store. Same verbs, one item at a time."""

    def __init__(self) -> None:
        self.stories: dict[RecordKey, Story] = {}
        self.dead: set[str] = set()

    def alive(self, key: RecordKey, now_ms: int) -> Story | None:
        """The story of a key that is not absent."""
        story = self.stories.get(key)
        if story is None or (story.status == "in_progress" and now_ms < story.lease_until_ms):
            return story  # who runs under a lease does not expire
        return None if story.expires_at_ms is not None and story.expires_at_ms <= now_ms else story

    def claim(self, ask: Ask, now_ms: int) -> Answer:
        """One claim."""
        story = self.alive(ask.key, now_ms)
        if story is None:
            forgotten = self.stories.get(ask.key)
            story = self.stories[ask.key] = Story()
            return self._take(story, ask, now_ms, "absent", 1 if forgotten is None else forgotten.fence + 1)
        status = story.status
        known = story.ask.fingerprint
        if known != ask.fingerprint and (status == "completed" or ask.amends != known):
            return Conflict(fingerprint=known, status=status, message_id=story.ask.message_id)
        if status == "completed":
            return Completed(
                result=story.result,
                completed_at_ms=story.last("end", "settle")[1],
                hold=story.hold,
                outbox=story.outbox,
                message_id=story.ask.message_id,
            )
        if story.parked:
            return Held(since_ms=story.last("end")[1])
        if status == "in_progress" and now_ms < story.lease_until_ms and story.ask.owner not in self.dead:
            return Running(until_ms=story.lease_until_ms, owner=story.ask.owner, fence=story.fence)
        return self._take(story, ask, now_ms, status, story.fence + 1)

    def _take(self, story: Story, ask: Ask, now_ms: int, found: str, fence: int) -> Claimed:
        before = story.ask.owner if found in ("in_progress", "unknown") else None
        crashed = found == "in_progress" and story.started
        if crashed:
            story.told.append(("takeover", now_ms, None))
        elif found == "in_progress" and story.doubt and ask.probes_now:
            story.told.append(("asking", now_ms, None))
        story.told.append(("claim", now_ms, (ask, fence, ask.lease_until_ms)))
        doubt = story.doubt
        if ask.start and not doubt:
            story.told.append(("start", now_ms, fence))
        return Claimed(
            hold=story.hold,
            found=found,
            doubt=doubt,
            started=ask.start and not doubt,
            attempts=story.attempts(story.opened()),
            crashes=story.crashes(story.opened()),
            first_at_ms=story.all("claim")[0][1],
            crashed=crashed,
            previous_owner=before,
            failure=story.failure,
        )

    def _held(self, hold: Hold) -> Story | None:
        story = self.stories.get(hold.key)
        return story if story is not None and story.hold == hold else None

    def start(self, hold: Hold, now_ms: int) -> bool:
        """One start."""
        story = self._held(hold)
        if story is None or story.status != "in_progress":
            return False
        if not story.started:
            story.told.append(("start", now_ms, hold.fence))
        return True

    def renew(self, hold: Hold, lease_until_ms: int) -> bool:
        """One renewal."""
        story = self._held(hold)
        if story is None or story.status != "in_progress":
            return False
        story.told.append(("renew", 0, (None, None, lease_until_ms)))
        return True

    def write(self, hold: Hold, outcome: Outcome, now_ms: int) -> bool:
        """One outcome."""
        story = self._held(hold)
        if story is None:
            return False
        if story.status == "completed" and isinstance(outcome, Complete):
            return outcome.result == story.result
        if story.status != "in_progress":
            return False
        if isinstance(outcome, Release) and outcome.refund and story.started:
            story.told.append(("refund", now_ms, None))
        story.told.append(("end", now_ms, outcome))
        return True

    def clear_outbox(self, hold: Hold) -> bool:
        """One outbox."""
        story = self._held(hold)
        if story is None or story.status != "completed":
            return False
        story.told.append(("cleared", 0, None))
        return True

    def settle(self, key: RecordKey, result: bytes | None, now_ms: int, expires_at_ms: int) -> bool:
        """A person's word: the result when it was done, None when not."""
        story = self.stories.get(key)
        if story is None or not story.parked:
            return False
        story.told.append(("settled-until", now_ms, expires_at_ms))
        story.told.append(("settle", now_ms, result))
        return True

    def sweep(self, now_ms: int) -> None:
        """Forget what has expired, fences and all."""
        for key in [key for key in self.stories if self.alive(key, now_ms) is None]:
            del self.stories[key]
