"""The mapping's decisions as tables: what an answer means, when a batch is complete, how many at a time, throttling."""

from __future__ import annotations

import json

import pytest

from onefold.local import batching as mapping
from onefold.local.batching import BatchRule, BatchVerdict, Scale, Seen

IDS = ("a", "b", "c")
MIB = 1_048_576


def failures(*ids: object) -> bytes:
    return json.dumps({"batchItemFailures": [{"itemIdentifier": one} for one in ids]}).encode()


@pytest.mark.parametrize(
    ("payload", "wanted"),
    [
        pytest.param(payload, wanted, marks=pytest.mark.conformance(operation="Mapping", case=case, source=source))
        for payload, wanted, case, source in (
            (b'{"batchItemFailures": []}', "done", "answer: no failures", "2.4"),
            (b'{"batchItemFailures": null}', "done", "answer: failures are null", "2.4"),
            (b"{}", "done", "answer: an empty object", "2.4 [O]"),
            (b"null", "done", "answer: null", "2.4"),
            (b"", "done", "answer: nothing", "2.4"),
            (b'{"batchItemFailure": [{"itemIdentifier": "a"}]}', "done", "answer: another top key", "2.4 [D]"),
            (failures("a"), {"a"}, "answer: valid ids stay, the others are deleted", "2.4"),
            (failures("a", "c"), {"a", "c"}, "answer: several valid ids", "2.4"),
            (failures("a", "a"), {"a"}, "answer: one id twice counts as one", "2.4, U13"),
            (b"not json", "none", "answer: not valid JSON", "2.4"),
            (b"NaN", "none", "answer: NaN is not JSON", "2.4"),
            (failures(""), "none", "answer: an empty itemIdentifier", "2.4"),
            (failures(None), "none", "answer: a null itemIdentifier", "2.4"),
            (failures("a", None), "none", "answer: a null itemIdentifier beside a valid one", "2.4"),
            (b'{"batchItemFailures": [{"foo": "a"}]}', "none", "answer: itemIdentifier misspelt", "2.4 [O]"),
            (failures("z"), "none", "answer: an id that is not in the batch", "2.4"),
            (failures(1), "none", "answer: an itemIdentifier that is no text", "2.4"),
            (b'{"batchItemFailures": {"itemIdentifier": "a"}}', "none", "answer: failures are no list", "2.4"),
            (b'{"batchItemFailures": ["a"]}', "none", "answer: failures are no objects", "2.4"),
            (b'"text"', "none", "answer: a text instead of an object", "2.4"),
            (b"[]", "none", "answer: a list instead of an object", "2.4"),
        )
    ],
)
def test_what_an_answer_means(payload: bytes, wanted: str | set[str]) -> None:
    verdict = mapping.read_answer(payload, IDS, reports_failures=True)
    if isinstance(wanted, set):
        assert (verdict.kind, verdict.failed) == ("some", wanted)
    else:
        assert (verdict.kind, verdict.failed) == (wanted, frozenset())
    assert bool(verdict.why) is (verdict.kind != "done")


@pytest.mark.conformance(
    operation="Mapping", case="without ReportBatchItemFailures any answer is a success", source="2.4"
)
def test_without_reports_any_answer_is_a_success() -> None:
    for payload in (b"not json", failures("a"), failures("z"), b"null", b'"text"', b""):
        assert mapping.read_answer(payload, IDS, reports_failures=False) == BatchVerdict("done")


# -- batches -----------------------------------------------------------------------------------------------------------


def rule(size: int, window_ms: int = 0) -> BatchRule:
    return BatchRule(size=size, window_ms=window_ms, event_bytes_max=6 * MIB)


@pytest.mark.parametrize(
    ("batch", "count", "first_at_ms", "now_ms", "wanted"),
    [
        (rule(10), 0, None, 0, (10, 20_000)),
        (rule(3), 0, None, 0, (3, 20_000)),
        (rule(10_000, 5_000), 0, None, 0, (10, 20_000)),
        (rule(10), 1, 0, 0, None),  # no window: what one receive gave is the batch
        (rule(25, 5_000), 10, 0, 1_000, (10, 4_000)),
        (rule(25, 5_000), 20, 0, 1_000, (5, 4_000)),
        (rule(25, 5_000), 25, 0, 1_000, None),
        (rule(25, 5_000), 1, 0, 4_999, (10, 1)),
        (rule(25, 5_000), 1, 0, 5_000, None),
        (rule(25, 300_000), 1, 0, 0, (10, 20_000)),  # one long poll is 20 s at most
    ],
)
def test_when_a_batch_is_complete(
    batch: BatchRule, count: int, first_at_ms: int | None, now_ms: int, wanted: tuple[int, int] | None
) -> None:
    assert mapping.receive_next(batch, count, first_at_ms, now_ms) == wanted


# -- how many at a time ------------------------------------------------------------------------------------------------

BUSY = Seen(busy=True, messages=10, errors=0, throttles=0)
QUIET = Seen(busy=False, messages=0, errors=0, throttles=0)
FAILING = Seen(busy=True, messages=10, errors=1, throttles=0)
THROTTLED = Seen(busy=True, messages=10, errors=0, throttles=3)


def after(
    seen: Seen, seconds: int, concurrency_max: int | None = None, *, start: Scale | None = None, reports: bool = False
) -> float:
    scale = start or mapping.first_scale(0, concurrency_max)
    for _ in range(seconds):
        scale = mapping.next_scale(
            scale, seen, scale.at_ms + 1_000, concurrency_max=concurrency_max, reports_failures=reports
        )
    return scale.concurrency


@pytest.mark.conformance(
    operation="Mapping", case="starts with 5 at a time, grows by 300 a minute to 1,250", source="2.2"
)
def test_growth() -> None:
    assert mapping.first_scale(0, None).concurrency == 5
    assert after(BUSY, 60) == pytest.approx(305)
    assert after(BUSY, 600) == 1_250


@pytest.mark.conformance(operation="Mapping", case="MaximumConcurrency caps it, also at the start", source="2.2")
def test_maximum() -> None:
    assert mapping.first_scale(0, 2).concurrency == 2
    assert after(BUSY, 600, 40) == 40


@pytest.mark.conformance(
    operation="Mapping", case="idle falls back to 5, to 2 after a while without a maximum", source="2.2"
)
def test_idle() -> None:
    grown = Scale(concurrency=305, at_ms=0, quiet_since_ms=0)
    assert after(QUIET, 1, start=grown) == 5
    assert after(QUIET, 120, start=grown) == 2
    assert after(QUIET, 120, 100, start=grown) == 5


@pytest.mark.conformance(
    operation="Mapping",
    case="function errors lower the concurrency gradually, not with ReportBatchItemFailures",
    source="2.5, 9.6",
)
def test_errors() -> None:
    grown = Scale(concurrency=100, at_ms=0, quiet_since_ms=0)
    assert 80 < after(FAILING, 1, start=grown) < 100
    assert after(FAILING, 120, start=grown) == 2
    assert after(FAILING, 10, start=grown, reports=True) > 100


@pytest.mark.conformance(
    operation="Mapping", case="throttled: no growth, pauses that double until the visibility ends", source="2.5"
)
def test_throttling() -> None:
    grown = Scale(concurrency=100, at_ms=0, quiet_since_ms=0)
    assert after(THROTTLED, 10, start=grown) == 100
    pauses = [mapping.throttle_pause_ms(tries, 10**9, 0, 1.0) for tries in range(1, 12)]
    assert pauses[:4] == [100, 200, 400, 800]
    assert pauses[-1] == mapping.THROTTLE_MAX_MS
    assert mapping.throttle_pause_ms(1, 10**9, 0, 0.0) == 50
    assert mapping.throttle_pause_ms(9, 1_030, 1_000, 0.5) == 30  # not beyond the visibility
    assert mapping.throttle_pause_ms(1, 1_000, 1_000, 0.5) is None


@pytest.mark.conformance(
    operation="Mapping", case="FIFO: no growth, as many as groups or the maximum from the start", source="2.2"
)
def test_fifo_does_not_grow() -> None:
    assert mapping.first_scale(0, None, fifo=True).concurrency == 1_250
    assert mapping.first_scale(0, 40, fifo=True).concurrency == 40
    scale = mapping.first_scale(0, 40, fifo=True)
    for seen, wanted in ((QUIET, 40), (FAILING, 36), (BUSY, 40)):
        scale = mapping.next_scale(
            scale, seen, scale.at_ms + 1_000, concurrency_max=40, reports_failures=False, fifo=True
        )
        assert scale.concurrency == wanted


def test_a_window_longer_than_the_visibility_ends_with_it() -> None:
    long = rule(100, 300_000)
    assert mapping.receive_next(long, 1, 0, 0, 30_000) == (10, 20_000)
    assert mapping.receive_next(long, 1, 0, 29_999, 30_000) == (10, 1)
    assert mapping.receive_next(long, 1, 0, 30_000, 30_000) is None
    assert mapping.receive_next(rule(100, 5_000), 1, 0, 5_000, 30_000) is None
