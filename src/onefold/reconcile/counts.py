"""What a user's own check counted, compared with what was dispatched.

A check can answer in three forms:

    {"c-17": 1, "c-18": 2}                       how often each key was found. Each should exist once; a dispatched key
                                                 that is absent was found 0 times; one never dispatched is unexpected
    Totals(expected=4_312, found=4_312)          totals only
    Counted("c-17", found=1), ... (any iterable) expected and found per key, read one by one, so that memory stays flat

Never here: reading rows or records, what is done about a difference. Invariant: only differences are kept, and only the
first few of them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from onefold import errors

DIFFERENCES_MAX: Final = 20  # differences that an outcome names; the others are only counted
_KEY_SHOWN_CHARS: Final = 600  # a key with its tenant is shorter; a key that was never dispatched can have any length


class Totals(Struct, frozen=True, kw_only=True):
    """The totals that a user's own check counted.

    Args:
        expected, found: 0 or more, in any unit, for example rows or pence.
        what: what is counted, for use in a sentence.
    """

    expected: int
    found: int
    what: str = "rows"


class Counted(Struct, frozen=True):
    """How often a user's own check found one key.

    Args:
        key: the business key (`tenant/key` with a tenant).
        found, expected: how often it was found, and how often it should be; 0 or more.
    """

    key: str
    found: int
    expected: int = 1


class Own(Struct, frozen=True, kw_only=True):
    """The result of a user's own check.

    Args:
        what: what it counted.
        expected, found: the totals.
        missing, duplicate: how many are missing, and how many there are too many.
        unexpected: how many keys were found that were never dispatched.
        differences: the first keys that differ.
    """

    what: str
    expected: int
    found: int
    missing: int
    duplicate: int
    unexpected: int
    differences: tuple[Counted, ...]

    def differs(self, unfinished: int) -> bool:
        """Whether anything is wrong apart from work that is not done yet.

        Args:
            unfinished: how many operations are not done according to their records; up to that many may be missing.
        """
        return bool(self.duplicate or self.unexpected or self.missing > unfinished)

    def text(self, unfinished: int) -> str:
        """The differences in one sentence."""
        parts = [
            f"{max(self.missing - unfinished, 0):,} missing" if self.missing > unfinished else "",
            f"{self.duplicate:,} too many" if self.duplicate else "",
            f"{self.unexpected:,} that were never dispatched" if self.unexpected else "",
        ]
        counts = ", ".join(part for part in parts if part)
        return f"Your own check expected {self.expected:,} {self.what} and found {self.found:,}: {counts}."


def compare(answer: Any, pages: Callable[[], Iterator[list[str]]]) -> Own:
    """Compare an answer with the dispatched keys.

    Args:
        answer: in one of the three forms above.
        pages: returns the dispatched keys, a page at a time; called only for a mapping.

    Raises:
        UsageError: the answer has another form, or contains anything but whole numbers of 0 or more.
    """
    if isinstance(answer, Totals):
        return _of_totals(answer)
    if isinstance(answer, Mapping):
        return _of_counts("keys", _joined(answer, pages()))
    if isinstance(answer, Iterable) and not isinstance(answer, str | bytes):
        return _of_counts("keys", map(_as_counted, answer))
    raise _refused(answer)


def _of_totals(answer: Totals) -> Own:
    expected, found = _number(answer.expected), _number(answer.found)
    return Own(
        what=answer.what,
        expected=expected,
        found=found,
        missing=max(expected - found, 0),
        duplicate=max(found - expected, 0),
        unexpected=0,
        differences=(),
    )


def _joined(found: Mapping[Any, Any], pages: Iterator[list[str]]) -> Iterator[Counted]:
    """Each dispatched key with its count, then the found keys that were never dispatched."""
    counts = {str(key): _number(count) for key, count in found.items()}
    rest = dict(counts)
    absent: set[str] = set()
    for page in pages:
        for key in page:
            if key in rest:
                yield Counted(key, rest.pop(key))
            elif (
                key not in counts and key not in absent
            ):  # otherwise it was seen before: dispatched twice, but one operation
                absent.add(key)
                yield Counted(key, 0)
    for key, count in rest.items():
        if count:
            yield Counted(key, count, 0)


def _as_counted(one: Any) -> Counted:
    match one:
        case Counted():
            return Counted(str(one.key), _number(one.found), _number(one.expected))
        case (key, found):
            return Counted(str(key), _number(found))
        case (key, found, expected):
            return Counted(str(key), _number(found), _number(expected))
        case _:
            raise _refused(one)


def _of_counts(what: str, counts: Iterable[Counted]) -> Own:
    expected = found = missing = duplicate = unexpected = 0
    differences: list[Counted] = []
    for one in counts:
        expected += one.expected
        found += one.found
        if one.found == one.expected:
            continue
        missing += max(one.expected - one.found, 0)
        duplicate += max(one.found - one.expected, 0) if one.expected else 0
        unexpected += 0 if one.expected else 1
        if len(differences) < DIFFERENCES_MAX:
            differences.append(Counted(one.key[:_KEY_SHOWN_CHARS], one.found, one.expected))
    return Own(
        what=what,
        expected=expected,
        found=found,
        missing=missing,
        duplicate=duplicate,
        unexpected=unexpected,
        differences=tuple(differences),
    )


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise errors.UsageError(
            f"A check found {value!r}.", todo="Counts are whole numbers of 0 or more; count money in pence or cents."
        )
    return value


def _refused(answer: Any) -> errors.UsageError:
    return errors.UsageError(
        f"A check returned {type(answer).__name__}.",
        meaning="What it found is not known.",
        todo="Return {key: found} or onefold.reconcile.Totals(...), or yield onefold.reconcile.Counted(key, found).",
    )
