"""What a failure means: from an exception to `Failed`, with the rule that decided.

Asked in this order; the first that knows answers:

    1  the job's own lists (transient=, permanent=, unknown=), and onefold's errors: nearest class of the MRO
    2  what the exception carries: a wrapped exception, an AWS error code, an HTTP status, a SQLSTATE
    3  the table of other libraries' classes (`failure_table.py`), by name along the MRO
    4  anything else is transient: it may be anything, and the attempts run out

A request that was sent and whose answer was lost (read timeout, connection reset) may have been carried out. It is
`unknown`, not transient, so that a job's on_unknown policy decides: with `rerun` it is tried again with backoff and uses an
attempt, as a transient failure does; with `hold` or a probe it is not repeated behind anyone's back (design section 2).
Where the request is known and its method changes nothing (GET), a lost answer is transient.

Never here: importing the libraries it knows, clocks, payloads in summaries.
Invariant: every exception has an answer, and working it out never raises.
"""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from onefold import limits, redact
from onefold.decide import failure_table as table
from onefold.decide.delivery import Failed
from onefold.decide.tracebacks import trace_of
from onefold.errors import (
    DependencyDown,
    InvariantBroken,
    OnefoldError,
    OutcomeUnknown,
    PermanentError,
    StorageError,
    TransientError,
    UsageError,
)

SUMMARY_CHARS_MAX = 500  # contracts.store.Failure
TEXT_CHARS_MAX = 2_000  # of an exception's text in its trace,
TEXT_LINES_MAX = 8  # in so many lines

Kind = Literal["transient", "permanent", "dependency-down", "unknown"]
Classes = Iterable[type[BaseException] | str]

_OWN: dict[type, Kind] = {
    TransientError: "transient",
    PermanentError: "permanent",
    DependencyDown: "dependency-down",
    OutcomeUnknown: "unknown",
    InvariantBroken: "unknown",
    StorageError: "dependency-down",  # the database file as a whole
    UsageError: "permanent",
}
_KINDS: dict[table.Meaning, Kind] = {
    "transient": "transient",
    "permanent": "permanent",
    "down": "dependency-down",
}
_AWS: tuple[tuple[frozenset[str], Kind], ...] = (
    (table.AWS_TRANSIENT, "transient"),
    (table.AWS_DOWN, "dependency-down"),
    (table.AWS_PERMANENT, "permanent"),
)
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_QUERY = r"\?[^\s'\"()=?]+=[^\s'\")]*"
_PRIVATE_KEY = "-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{0,8192}(?:-----END[^-]{0,60}-----)?"
_LINE_END = "\x1f"  # while lines are masked together
_INDENT_MAX = 8
_TEXT_CHARS_MAX = 8_192  # of an exception's own text, before anything looks at it (design 12.3)
_RETRY_AFTER_CHARS_MAX = 100  # an HTTP date has 29
_PARTS_MAX = 20  # of a group, or of the complaints of a validation
_DEPTH_MAX = 8  # wrapped exceptions that are followed


class Ruling(Struct, frozen=True, kw_only=True):
    """What a failure means, and why.

    Args:
        kind: as in `Failed`.
        rule: what decided, for people: `HTTP 429`, `sqlstate 40001`, `permanent= of the job`, `unlisted`...
        retry_in_ms: how long the dependency asked us to wait, 0 to 12 h; None when it did not say.
        listed: some rule knew this failure; False: it is transient for want of better knowledge.
        sent: the request may have been carried out.
    """

    kind: Kind
    rule: str
    retry_in_ms: int | None = None
    listed: bool = True
    sent: bool = False


class Lists(Struct, frozen=True):
    """A job's own exception classes, by what they mean; classes or dotted names (`"stripe.CardError"`)."""

    transient: tuple[type[BaseException] | str, ...] = ()
    permanent: tuple[type[BaseException] | str, ...] = ()
    unknown: tuple[type[BaseException] | str, ...] = ()

    def pairs(self) -> tuple[tuple[Kind, tuple[type[BaseException] | str, ...]], ...]:
        """Each kind with its classes."""
        return (("transient", self.transient), ("permanent", self.permanent), ("unknown", self.unknown))


def classify(
    error: BaseException,
    *,
    now_ms: int,
    transient: Classes = (),
    permanent: Classes = (),
    unknown: Classes = (),
    with_text: bool = True,
) -> Failed:
    """What became of a run whose handler raised `error`. Never raises.

    Args:
        with_text: False: of the exceptions' own texts nothing is kept, only their classes and where they were raised.
        error: what was raised.
        now_ms: wall time; a Retry-After may be a date.
        transient, permanent, unknown: the job's own lists; the class nearest to the error's wins.
    """
    lists = Lists(tuple(transient), tuple(permanent), tuple(unknown))
    ruling = judge(error, now_ms=now_ms, lists=lists)
    summary = summary_of(error) if with_text else ""
    trace = trace_of(error, text_of if with_text else lambda _: "")
    return Failed(
        kind=ruling.kind,
        error=error_name(error),
        summary=summary or f"(its text is switched off){' at ' + trace.at if trace.at else ''}",
        retry_in_ms=ruling.retry_in_ms,
        at=trace.at,
        trace=trace.text,
    )


def judge(error: BaseException, *, now_ms: int, lists: Lists | None = None, sent: Kind = "unknown") -> Ruling:
    """The meaning of a failure with the rule that decided. Never raises.

    Args:
        error: what was raised.
        now_ms: wall time.
        lists: the job's own.
        sent: what a request means that may have been carried out.
    """
    try:
        ruling = _judge(error, now_ms, lists or Lists(), 0)
        if ruling.sent:
            if _method(error) in table.SAFE_METHODS:
                return Ruling(kind="transient", rule=f"{ruling.rule}, and its method changes nothing")
            return Ruling(kind=sent, rule=f"{ruling.rule}, after it was sent", sent=True)
    except Exception:  # noqa: BLE001 - a strange exception object must not hide the failure it stands for
        return Ruling(kind="transient", rule="unlisted", listed=False)
    return ruling


def check_lists(lists: Lists, job: str) -> None:
    """Refuse what can be no exception class.

    Raises:
        UsageError: an entry that is neither an exception class nor a dotted name, or stands in two lists.
    """
    seen: dict[object, str] = {}
    for kind, classes in lists.pairs():
        for one in classes:
            fits = re.fullmatch(_DOTTED, one) if isinstance(one, str) else _is_exception_class(one)
            if not fits:
                raise UsageError(
                    f"{kind}= of {job} has {one!r}, which is not an exception class.",
                    todo='Give the class itself, or its dotted name, for example "stripe.CardError".',
                )
            if isinstance(one, str) and "." not in one and not _is_exception_class(getattr(builtins, one, None)):
                from difflib import get_close_matches  # only a typing error pays for it

                known = [name for name in dir(builtins) if _is_exception_class(getattr(builtins, name))]
                near = get_close_matches(one, known, n=1)
                raise UsageError(
                    f"{kind}= of {job} has {one!r}, and Python has no exception class of that name.",
                    todo=(f"Did you mean {near[0]!r}? " if near else "")
                    + "Name a class of your own or of a library with its module, or give the class itself.",
                )
            if one in seen:
                raise UsageError(
                    f"{one!r} of {job} is in {seen[one]}= and in {kind}=.",
                    todo="Leave it in one of them.",
                )
            seen[one] = kind


def _is_exception_class(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, BaseException)


# ------------------------------------------------------------------------------------------------------------- rules


def _judge(error: BaseException, now_ms: int, lists: Lists, depth: int) -> Ruling:
    return (
        _declared(error, lists)
        or _group(error, now_ms, lists, depth)
        or _wrapped(error, now_ms, lists, depth)
        or _aws(error, now_ms)
        or _http(error, now_ms)
        or _sqlstate(error)
        or _by_name(error)
        or _interrupted(error)
        or Ruling(kind="transient", rule="unlisted", listed=False)
    )


def _interrupted(error: BaseException) -> Ruling | None:
    """A Ctrl-C, `sys.exit()` in a signal's handler and the like end a run from outside, somewhere in its middle."""
    if isinstance(error, Exception):
        return None
    return Ruling(kind="transient", rule=f"{type(error).__name__} ended it from outside", sent=True)


def _declared(error: BaseException, lists: Lists) -> Ruling | None:
    for cls in type(error).__mro__:
        for kind, classes in lists.pairs():
            if any(one is cls or (isinstance(one, str) and is_named(cls, one)) for one in classes):
                return Ruling(kind=kind, rule=f"{kind}= of the job", retry_in_ms=_own_retry_ms(error))
        if cls in _OWN:
            return Ruling(kind=_OWN[cls], rule=f"onefold.{cls.__name__}", retry_in_ms=_own_retry_ms(error))
    return None


def _own_retry_ms(error: BaseException) -> int | None:
    wait_ms = getattr(error, "retry_in_ms", None)
    return _clamped_ms(wait_ms) if isinstance(wait_ms, int) else None


def is_named(cls: type, dotted: str) -> bool:
    """Whether a class is the one named: same name, and its module is the named one or inside it.

    `requests.ReadTimeout` names `requests.exceptions.ReadTimeout`; a name without a dot names a builtin.
    """
    module, _, name = dotted.rpartition(".")
    module = module or "builtins"
    return cls.__qualname__ == name and (cls.__module__ == module or cls.__module__.startswith(module + "."))


def _group(error: BaseException, now_ms: int, lists: Lists, depth: int) -> Ruling | None:
    """A group is as bad as its worst part: unknown, then down, then permanent."""
    if not isinstance(error, BaseExceptionGroup) or depth >= _DEPTH_MAX:
        return None
    rulings = [_judge(one, now_ms, lists, depth + 1) for one in error.exceptions]
    for found in (
        [one for one in rulings if one.kind == "unknown" or one.sent],
        [one for one in rulings if one.kind == "dependency-down"],
        [one for one in rulings if one.kind == "permanent"],
    ):
        if found:
            return found[0]
    return max(rulings, key=lambda one: (one.listed, one.retry_in_ms or 0))


def _wrapped(error: BaseException, now_ms: int, lists: Lists, depth: int) -> Ruling | None:
    if depth >= _DEPTH_MAX:
        return None
    for cls in type(error).__mro__:
        short = _short(cls)
        place = table.WRAPPERS.get(short) or table.WRAPPERS_DOWN.get(short)
        if place is None:
            continue
        inner = (error.args or (None,))[0] if place == "args" else getattr(error, place, None)
        if isinstance(inner, BaseException) and inner is not error:
            ruling = _judge(inner, now_ms, lists, depth + 1)
            useful = ruling.listed if short in table.WRAPPERS else ruling.kind == "dependency-down"
            return ruling if useful else None
    return None


def _aws(error: BaseException, now_ms: int) -> Ruling | None:
    response = getattr(error, "response", None)
    if not isinstance(response, Mapping) or not isinstance(response.get("Error"), Mapping):
        return None
    code = str(response["Error"].get("Code", ""))
    meta = response.get("ResponseMetadata") or {}
    wait_ms = _retry_after_ms(meta.get("HTTPHeaders"), now_ms)
    rule = f"AWS {code}"
    if code == "TransactionCanceledException":
        reasons = {str(one.get("Code", "None")) for one in response.get("CancellationReasons") or ()}
        cured = bool(reasons) and reasons <= table.AWS_CANCELLED_TRANSIENT
        named = f"{rule} ({', '.join(sorted(reasons - {'None'})) or 'no reason'})"
        return Ruling(kind="transient" if cured else "permanent", rule=named)
    for codes, kind in _AWS:
        if code in codes:
            return Ruling(kind=kind, rule=rule, retry_in_ms=wait_ms)
    status = meta.get("HTTPStatusCode")
    return _by_status(status, f"{rule}, HTTP {status}", wait_ms) if isinstance(status, int) else None


def _http(error: BaseException, now_ms: int) -> Ruling | None:
    response = getattr(error, "response", None)
    for holder in (response, error):
        for attribute in ("status_code", "status", "http_status"):
            status = getattr(holder, attribute, None)
            if isinstance(status, int) and 400 <= status <= 599:
                headers = getattr(response, "headers", None) or getattr(error, "headers", None)
                return _by_status(int(status), f"HTTP {int(status)}", _retry_after_ms(headers, now_ms))
    return None


def _by_status(status: int, rule: str, wait_ms: int | None) -> Ruling | None:
    if status in table.HTTP_TRANSIENT or 500 <= status <= 599:
        return Ruling(kind="transient", rule=rule, retry_in_ms=wait_ms)
    if status in table.HTTP_DOWN:
        return Ruling(kind="dependency-down", rule=rule, retry_in_ms=wait_ms)
    return Ruling(kind="permanent", rule=rule) if 400 <= status <= 499 else None


def _retry_after_ms(headers: Any, now_ms: int) -> int | None:
    """Retry-After in milliseconds from now: seconds, or an HTTP date (RFC 9110 section 10.2.3); None when there is none."""
    if headers is None or not hasattr(headers, "get"):
        return None
    value = headers.get("Retry-After") or headers.get("retry-after")
    if value is None:
        return None
    text = str(value)[:_RETRY_AFTER_CHARS_MAX].strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text):
        return _clamped_ms(math.ceil(float(text) * 1000))
    from email.utils import parsedate_to_datetime  # 10 ms to import; only a date pays it

    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    from datetime import UTC

    at_ms = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    return _clamped_ms(at_ms - now_ms)


def _clamped_ms(wait_ms: int) -> int:
    return min(max(wait_ms, 0), limits.VISIBILITY_MS_MAX)


def _sqlstate(error: BaseException) -> Ruling | None:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if not isinstance(state, str) or len(state) != 5:
        return None
    meaning = table.SQLSTATES.get(state) or table.SQLSTATES.get(state[:2])
    return None if meaning is None else _meant(meaning, f"sqlstate {state}")


def _by_name(error: BaseException) -> Ruling | None:
    for cls in type(error).__mro__:
        short = _short(cls)
        meaning = table.CLASSES.get(short)
        if meaning is not None:
            if short in table.NEVER_SENT and re.search(table.NEVER_SENT[short], str(error)[:_TEXT_CHARS_MAX]):
                meaning = "transient"
            return _meant(meaning, ".".join(short))
    return None


def _meant(meaning: table.Meaning, rule: str) -> Ruling:
    if meaning == "sent":
        return Ruling(kind="unknown", rule=rule, sent=True)
    return Ruling(kind=_KINDS[meaning], rule=rule)


def _short(cls: type) -> tuple[str, str]:
    return cls.__module__.partition(".")[0], cls.__name__


def _method(error: BaseException) -> str | None:
    """The HTTP method of the request that failed, where the exception knows it (httpx, requests)."""
    try:
        method = error.request.method  # type: ignore[attr-defined]  # httpx raises RuntimeError when there is none
    except (AttributeError, RuntimeError):
        return None
    return method.upper() if isinstance(method, str) else None


# ------------------------------------------------------------------------------------------------------------- words


def error_name(error: BaseException) -> str:
    """The class of an exception for people: `TimeoutError`, `httpx.ReadTimeout`, `onefold`'s own without module."""
    cls = type(error)
    if cls.__module__ in ("builtins", "onefold.errors", "__main__"):
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def summary_of(error: BaseException) -> str:
    """One line about a failure, at most 500 characters, safe to log.

    The first line with a count of the others, without passwords and query strings of URLs, without the input values of
    validation errors; control characters are escapes. What a handler writes into its own message is its own business.
    """
    lines = _safe_lines(error, "; ")
    more = f" [+{len(lines) - 1} {'line' if len(lines) == 2 else 'lines'}]" if len(lines) > 1 else ""
    first = " ".join(lines[0].split()).rstrip(":") or type(error).__name__
    room = SUMMARY_CHARS_MAX - len(more)
    return (first if len(first) <= room else f"{first[: room - 3]}...") + more


def text_of(error: BaseException) -> str:
    """What an exception says, at most 8 lines and 2,000 characters, as safe as `summary_of`.

    Database drivers say in the second line which row it was, and may quote its values there.
    """
    lines = _safe_lines(error, "\n")
    left_out = len(lines) - TEXT_LINES_MAX + 1
    if left_out > 1:
        lines = [*lines[: TEXT_LINES_MAX - 1], f"... {left_out} more lines"]
    text = "\n".join(lines)
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 3]}..."


def _safe_lines(error: BaseException, between: str) -> list[str]:
    """The lines that are not blank, masked, with escapes for what cannot be printed; at least one, and none is empty."""
    try:
        text = re.sub(_PRIVATE_KEY, redact.MASK, _words(error, between)[:_TEXT_CHARS_MAX])
        lines = [
            " " * min(len(one) - len(one.lstrip(" ")), _INDENT_MAX) + " ".join(one.split())
            for one in text.split("\n")
            if one and not one.isspace()
        ]
        # Masked as one text: a quoted value may go on in the next line. For the patterns its separator is white space.
        text = re.sub(_QUERY, "", redact.masked(_LINE_END.join(lines)))
        lines = [_escaped(one) for one in text.split(_LINE_END) if one and not one.isspace()]
    except Exception:  # noqa: BLE001 - a __str__ that fails, or no stack left, must not hide the failure
        lines = []
    return lines or [type(error).__name__]


def _escaped(line: str) -> str:
    r"""The line with `\x1b` and the like for all that does not print: terminals obey some of it."""
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in line)


def _words(error: BaseException, between: str) -> str:
    if isinstance(error, UsageError):
        return f"{error.what} {error.todo}"  # `meaning` may show the value
    if isinstance(error, OnefoldError):
        return str(error)
    if isinstance(error, BaseExceptionGroup):
        parts = [f"{type(one).__name__}: {summary_of(one)}" for one in error.exceptions[:_PARTS_MAX]]
        return _listed(f"{len(error.exceptions)} errors", parts, between)
    if type(error).__module__.partition(".")[0] == "pydantic_core" and hasattr(error, "errors"):
        complaints = error.errors(include_url=False, include_context=False, include_input=False)
        parts = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in complaints[:_PARTS_MAX]]
        return _listed(f"{len(complaints)} validation error(s)", parts, between)
    return str(error)


def _listed(head: str, parts: list[str], between: str) -> str:
    return f"{head}:{between if between.isspace() else ' '}{between.join(parts)}"
