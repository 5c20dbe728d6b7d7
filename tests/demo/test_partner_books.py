"""The partner's decisions in each mode, and its temper."""

from __future__ import annotations

from collections import Counter

import pytest

from onefold.demo.partner_books import (
    ERRORS_IN_A_ROW_MAX,
    MODES,
    BookingOrder,
    Mode,
    Mood,
    PartnerBooks,
    Temper,
    Weather,
)

ORDER = BookingOrder("536365", "ship", 40, "3.91")
OTHER = BookingOrder("536365", "ship", 41, "3.91")


@pytest.mark.parametrize("mode", MODES)
def test_a_booking_is_told(mode: Mode) -> None:
    books = PartnerBooks(mode)
    assert books.look("536365").outcome == "nothing"
    made = books.book(ORDER, "k", 1)
    assert (made.status, made.outcome) == (201, "booked")
    assert made.made is not None
    assert books.look("536365").shown == (made.made,)
    assert books.look("536366").shown == ()


def test_a_repeated_key_is_answered_with_the_first_booking() -> None:
    books = PartnerBooks("honours-keys")
    first = books.book(ORDER, "k", 1)
    again = books.book(ORDER, "k", 2)
    assert (again.status, again.outcome, again.made) == (200, "repeated", None)
    assert again.shown == first.shown
    assert books.bookings_count == 1


def test_a_key_of_another_order_is_refused() -> None:
    books = PartnerBooks("honours-keys")
    books.book(ORDER, "k", 1)
    assert (books.book(OTHER, "k", 1).status, books.bookings_count) == (422, 1)


def test_another_key_or_none_is_another_booking() -> None:
    books = PartnerBooks("honours-keys")
    assert [books.book(ORDER, key, 1).status for key in ("k", "l", None, None)] == [201] * 4


@pytest.mark.parametrize("mode", ["fences", "no-keys"])
def test_without_keys_each_post_is_a_booking(mode: Mode) -> None:
    books = PartnerBooks(mode)
    assert [books.book(ORDER, "k", 1).status for _ in range(2)] == [201, 201]
    assert len(books.look("536365").shown) == 2


def test_a_look_alone_is_overtaken_by_a_late_request() -> None:
    books = PartnerBooks("fences")
    assert books.look("536365").outcome == "nothing"
    books.book(ORDER, None, 2)
    books.book(ORDER, None, 1)
    assert books.bookings_count == 2


def test_a_fence_makes_not_done_final_for_the_older_attempt() -> None:
    books = PartnerBooks("fences")
    assert books.fence("536365", 2).outcome == "nothing"
    late = books.book(ORDER, None, 1)
    assert (late.status, late.outcome) == (409, "fenced")
    assert books.book(ORDER, None, 2).status == 201
    assert books.book(ORDER, None, 1).status == 409
    assert books.bookings_count == 1


def test_a_fence_tells_what_was_made_and_still_cancels_the_rest() -> None:
    books = PartnerBooks("fences")
    first = books.book(ORDER, None, 1)
    assert books.fence("536365", 2).shown == first.shown
    assert books.book(ORDER, None, 1).status == 409


def test_a_fence_may_be_asked_again_but_not_from_behind() -> None:
    books = PartnerBooks("fences")
    assert [books.fence("536365", number).status for number in (2, 2, 3, 2)] == [200, 200, 200, 409]
    assert books.book(ORDER, None, 2).status == 409


def test_a_request_without_number_is_older_than_any_fence() -> None:
    books = PartnerBooks("fences")
    assert books.book(ORDER, None, 0).status == 201
    books.fence("536365", 1)
    assert books.book(ORDER, None, 0).status == 409


def test_a_fence_is_of_one_reference() -> None:
    books = PartnerBooks("fences")
    books.fence("536366", 9)
    assert books.book(ORDER, None, 1).status == 201


@pytest.mark.parametrize("mode", ["honours-keys", "no-keys"])
def test_other_modes_have_no_fences(mode: Mode) -> None:
    books = PartnerBooks(mode)
    assert books.fence("536365", 2).status == 404
    assert books.book(ORDER, None, 1).status == 201


def test_moods_repeat_for_one_seed_and_differ_for_another() -> None:
    def moods(seed: int) -> list[Mood]:
        return [Temper(seed=seed).mood(str(number), 0) for number in range(200)]

    assert moods(1) == moods(1)
    assert moods(1) != moods(2)


def test_moods_come_about_as_often_as_asked() -> None:
    temper = Temper(seed=3, slow_rate=0.1, refuse_rate=0.1, break_rate=0.1)
    moods = [temper.mood(str(number), 0) for number in range(5_000)]
    found: Counter[object] = Counter()
    for mood in moods:
        found["slow before"] += mood.before_ms >= temper.slow_ms_min
        found["slow after"] += mood.after_ms >= temper.slow_ms_min
        found[mood.door_status] += 1
        found[mood.breaks] += 1
    for name in ("slow before", "slow after", 429, 503, "before", "after"):
        assert 150 <= found[name] <= 350, (name, found)
    assert max(mood.before_ms + mood.after_ms for mood in moods) <= temper.slow_ms_max


def test_no_reference_meets_more_errors_in_a_row_than_promised() -> None:
    weather = Weather(Temper(refuse_rate=1.0))
    doors = [weather.next_mood("536365", may_break=True).door_status != 0 for _ in range(6)]
    assert doors == [True, True, False, True, True, False]
    assert ERRORS_IN_A_ROW_MAX == 2


def test_a_break_is_drawn_only_where_it_may() -> None:
    weather = Weather(Temper(refuse_rate=0.0, break_rate=1.0))
    assert weather.next_mood("1", may_break=False).breaks == ""
    assert weather.next_mood("1", may_break=True).breaks != ""


@pytest.mark.parametrize(
    "wrong",
    [{"slow_rate": 1.5}, {"refuse_rate": -0.1}, {"slow_ms_min": 9, "slow_ms_max": 8}, {"fast_ms_max": -1}],
)
def test_a_temper_out_of_bounds_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        Temper(**wrong)  # type: ignore[arg-type]
