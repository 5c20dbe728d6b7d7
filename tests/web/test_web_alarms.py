"""Alarms on the page: which are on and what to do, silences with who and why, what was reported; /metrics and /readyz."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from onefold import errors
from onefold.admin import alarms as admin
from onefold.admin.session import AdminSession, jobs_of
from onefold.observe import incidents
from onefold.observe.metrics import METRICS
from onefold.testing.alarm_drills import WORK, Drill
from onefold.web.application import Page
from onefold.web.safety import Access
from tests.faces.office import Open
from tests.web.browsing import TOKEN, Reader


@dataclasses.dataclass
class Watched:
    """An engine whose alarms are evaluated, and its page."""

    drill: Drill
    session: AdminSession
    reader: Reader

    def dead_letter(self) -> None:
        """Have an alarm begin."""
        self.drill.send("a")
        queues = self.session.engine.queues
        queues.move([(one.message_id, f"{WORK}-dead", None) for one in queues.peek(WORK)])
        assert [one.alarm for one in self.drill.watch.look()] == ["dlq-not-empty"]


@pytest.fixture
def watched() -> Iterator[Watched]:
    drill = Drill()
    with drill.running():
        session = AdminSession(drill.app.runtime(), actor="person:ada", jobs=jobs_of(drill.app))
        access = Access(token=TOKEN, actor="person:ada")
        yield Watched(drill, session, Reader(Page(session, access=access, app=drill.app)))


def test_an_engine_that_nobody_watches_says_so(there: Open, reader: Reader) -> None:
    got = reader.get("/alarms")
    assert "Nobody evaluates alarms here" in got.words
    assert "Whether an alarm is on is not known." in got.words
    assert "No alarm is on." not in got.words
    assert "onefold alarms test" in got.words
    assert reader.get("/api/alarms").json()["reports"] == []


def test_an_alarm_that_is_on_says_what_it_means_and_what_to_do(watched: Watched) -> None:
    watched.dead_letter()
    got = watched.reader.get("/alarms")
    (one,) = admin.now(watched.session).alarms
    for text in (one.alarm, one.subject, one.meaning, one.first):
        assert text in got.words
    assert "Nobody evaluates" not in got.words
    found = watched.reader.get("/api/alarms").json()
    assert found["alarms"] == msgspec.json.decode(msgspec.json.encode([one]))
    assert [one["kind"] for one in found["reports"]] == ["began"]
    assert [one["alarm"] for one in watched.reader.get("/api/status").json()["alarms"]] == ["dlq-not-empty"]
    assert "dlq not empty" not in watched.reader.get("/").words  # "dead letters" says the same
    watched.drill.emit("completion-failed")
    watched.drill.watch.look()
    assert "completion failed" in watched.reader.get("/").words


def test_a_silence_is_previewed_needs_a_reason_and_is_audited(watched: Watched) -> None:
    watched.dead_letter()
    (one,) = admin.now(watched.session).alarms
    address = f"/alarms/silence?name=dlq-not-empty%2F{one.subject}"
    shown = watched.reader.get(address)
    assert f"dlq-not-empty of {one.subject}" in shown.words
    fields = {"name": shown.field("name"), "seen": shown.field("seen"), "for": "2h"}
    assert watched.reader.post("/alarms/silence", {**fields, "why": " "}).status == 400
    assert incidents.silences(watched.session.engine.state, watched.session.now_ms()) == []
    assert watched.reader.post("/alarms/silence", {**fields, "why": "they know"}).status == 303
    assert "silenced, 2h left" in watched.reader.get("/alarms").words
    assert watched.reader.get("/api/status").json()["alarms"] == []
    assert "Nothing needs" not in watched.reader.get("/").words  # the dead letter itself does
    assert f"alarm-silenced dlq-not-empty/{one.subject} they know" in watched.reader.get("/audit").words
    (deed,) = watched.reader.get("/api/audit").json()["deeds"]
    assert (deed["event"], deed["actor"], deed["reason"]) == ("alarm-silenced", "person:ada", "they know")
    assert watched.reader.post("/alarms/silence", {**fields, "why": "again"}).status == 409  # the form is older
    lifting = watched.reader.get(f"{address}&for=0s")
    assert "End the silence of" in lifting.words
    fields = {"name": lifting.field("name"), "seen": lifting.field("seen"), "for": "0s", "why": "it is back"}
    assert watched.reader.post("/alarms/silence", fields).status == 303
    assert incidents.silences(watched.session.engine.state, watched.session.now_ms()) == []
    again = watched.reader.get(f"{address}&for=0s")
    got = watched.reader.post("/alarms/silence", {**fields, "seen": again.field("seen")})
    assert (got.status, "is not silenced" in got.words) == (404, True)


@pytest.mark.parametrize("text", ["31d", "-1s", "x", ""])
def test_a_silence_of_no_length_or_too_long_is_refused(watched: Watched, text: str) -> None:
    seen = watched.reader.get("/alarms/silence?name=%2A").field("seen")
    got = watched.reader.post("/alarms/silence", {"name": "*", "seen": seen, "for": text, "why": "x"})
    assert got.status == 400
    assert incidents.silences(watched.session.engine.state, watched.session.now_ms()) == []


def test_there_is_no_silence_of_what_is_not_an_alarm(watched: Watched) -> None:
    assert watched.reader.get("/alarms/silence?name=%3Cb%3E").status == 404


def test_metrics_are_those_of_the_engine_for_who_has_the_token(watched: Watched) -> None:
    watched.drill.send("a")
    got = watched.reader.get("/metrics")
    assert got.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {one.name: one for one in text_string_to_metric_families(got.text)}
    depth = METRICS["onefold.queue.depth"]
    assert found[depth.prometheus].documentation == depth.text
    by_state = {
        one.labels["state"]: one.value for one in found[depth.prometheus].samples if one.labels["queue"] == WORK
    }
    assert by_state == {"visible": 1, "in_flight": 0, "delayed": 0, "dead": 0, "held": 0}
    assert watched.reader.get("/metrics", authorization="").status == 401
    assert watched.reader.get("/metrics", host="evil.example").status == 421


def test_readiness_is_that_the_engine_answers(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = Reader(Page(there.session, access=Access(token=TOKEN)), {"authorization": ""})
    assert (stranger.get("/readyz").status, stranger.get("/readyz").text) == (200, "ok\n")

    def busy(*_: object) -> None:
        raise errors.StorageBusy("The file /srv/secret.db is locked.", todo="Try again.")

    monkeypatch.setattr(type(there.session.engine.state), "get", busy)
    got = stranger.get("/readyz")
    assert (got.status, "secret" in got.text) == (503, False)
    monkeypatch.setattr(type(there.session.engine.queues), "settings", busy)
    metrics = stranger.get("/metrics", authorization=f"Bearer {TOKEN}")
    assert (metrics.status, "locked" in metrics.text) == (503, True)
    assert stranger.get("/healthz").status == 200
