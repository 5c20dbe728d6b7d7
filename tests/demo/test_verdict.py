"""The judge passes what is right and catches each thing that can be planted."""

from __future__ import annotations

from onefold.demo.figures import Figures, work_out
from onefold.demo.partner_books import Booking, BookingOrder
from onefold.demo.verdict import JudgedDeadLetter, judge_dead_letters, judge_effects

FIGURES: Figures = work_out(
    [
        "InvoiceNo,InvoiceDate,CustomerID,Country,Quantity,UnitPrice",
        "1,d,c,UK,2,3.5",
        "2,d,c,UK,7,0",
        "C3,d,c,UK,-1,2.25",
        "4,d,c,UK,-5,0",
        "5,d,c,UK,1,1.5",
        "5,e,c,UK,9,1.75",
        "6,d,c,UK,1,1.5",
        "6,e,c,UK,-9,0",
    ]
)
FIRST = BookingOrder("1", "ship", 2, "3.5")
RIGHT = [
    FIRST,
    BookingOrder("2", "ship-free", 7, "0"),
    BookingOrder("C3", "refund", -1, "2.25"),
    BookingOrder("5", "ship", 9, "1.75"),
    BookingOrder("6", "ship", 1, "1.5"),
]
LEFT = [
    JudgedDeadLetter("4", "refused", -5, "0"),
    JudgedDeadLetter("5", "conflict", 1, "1.5"),
    JudgedDeadLetter("6", "conflict", -9, "0"),
]


def booked(*orders: BookingOrder) -> list[Booking]:
    return [Booking(number, order) for number, order in enumerate(orders, start=1)]


def test_a_right_run_passes() -> None:
    effects = judge_effects(FIGURES, booked(*RIGHT))
    assert effects.right
    assert (effects.bookings, effects.twice, effects.never, effects.unexpected) == (5, (), (), ())
    dead = judge_dead_letters(FIGURES, booked(*RIGHT), LEFT)
    assert dead.right
    assert (dead.refused, dead.conflicts) == (1, 2)


def test_a_planted_double_is_caught() -> None:
    effects = judge_effects(FIGURES, booked(*RIGHT, FIRST))
    assert not effects.right
    assert (effects.twice, effects.never) == (("1",), ())


def test_both_rows_of_one_number_booked_is_a_double() -> None:
    effects = judge_effects(FIGURES, booked(*RIGHT, BookingOrder("5", "ship", 1, "1.5")))
    assert (effects.twice, effects.never, effects.unexpected) == (("5",), (), ())


def test_a_planted_missing_row_is_caught() -> None:
    effects = judge_effects(FIGURES, booked(*RIGHT[1:]))
    assert not effects.right
    assert (effects.twice, effects.never) == ((), ("1",))


def test_nothing_booked_at_all_is_caught() -> None:
    assert judge_effects(FIGURES, []).never == ("1", "2", "5", "C3")


def test_the_wrong_figures_are_unexpected_and_the_right_ones_missing() -> None:
    effects = judge_effects(FIGURES, booked(BookingOrder("1", "ship", 3, "3.5"), *RIGHT[1:]))
    assert [booking.number for booking in effects.unexpected] == [1]
    assert effects.never == ("1",)


def test_the_wrong_kind_is_unexpected() -> None:
    effects = judge_effects(FIGURES, booked(BookingOrder("C3", "ship", -1, "2.25")))
    assert [booking.order.reference for booking in effects.unexpected] == ["C3"]


def test_a_booked_refused_row_and_an_unknown_number_are_unexpected() -> None:
    effects = judge_effects(
        FIGURES, booked(*RIGHT, BookingOrder("4", "ship-free", -5, "0"), BookingOrder("9", "ship", 1, "1"))
    )
    assert [booking.order.reference for booking in effects.unexpected] == ["4", "9"]
    assert not effects.right


def test_a_refused_row_may_win_its_number() -> None:
    bookings = booked(*RIGHT[:4])
    left = [*LEFT[:2], JudgedDeadLetter("6", "refused", -9, "0"), JudgedDeadLetter("6", "conflict", 1, "1.5")]
    assert judge_effects(FIGURES, bookings).right
    assert judge_dead_letters(FIGURES, bookings, left).right


def test_a_duplicate_of_a_dead_letter_says_nothing_new() -> None:
    dead = judge_dead_letters(FIGURES, booked(*RIGHT), [*LEFT, *LEFT])
    assert dead.right
    assert (dead.refused, dead.conflicts) == (1, 2)


def test_a_missing_dead_letter_is_caught() -> None:
    dead = judge_dead_letters(FIGURES, booked(*RIGHT), LEFT[1:])
    assert dead.missing == (LEFT[0],)
    assert not dead.right


def test_the_conflict_of_the_winner_itself_is_caught() -> None:
    planted = JudgedDeadLetter("5", "conflict", 9, "1.75")
    dead = judge_dead_letters(FIGURES, booked(*RIGHT), [LEFT[0], planted, LEFT[2]])
    assert (dead.missing, dead.unexpected) == ((LEFT[1],), (planted,))


def test_another_reason_and_an_unknown_number_are_caught() -> None:
    planted = [JudgedDeadLetter("1", "attempts", 2, "3.5"), JudgedDeadLetter("9", "refused", 1, "1")]
    dead = judge_dead_letters(FIGURES, booked(*RIGHT), [*LEFT, *planted])
    assert (dead.missing, dead.unexpected) == ((), tuple(planted))
