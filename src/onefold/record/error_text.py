"""What may be kept of an exception: its name, a summary of one line, a bounded text, and where it was raised.

Passwords, query strings of URLs, private keys and the input values of validation errors are masked; unprintable characters
are escaped. A traceback contains file, line and function of each frame, and the text of each exception of the chain as
`text_of` permits, with lines after the first indented. The first frames, which are onefold's own, are left out.
Never here: what a failure means (`failures.py`), values of variables, reading source files. Invariant: no function here
raises, whatever the exception does, and every text is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, cast

from msgspec import Struct

from onefold import redact
from onefold.errors import OnefoldError, UsageError
from onefold.payload_errors import COMPLAINTS_MAX, is_pydantic

_QUERY = r"\?[^\s'\"()=?]+=[^\s'\")]*"
_PRIVATE_KEY = "-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-]{0,8192}(?:-----END[^-]{0,60}-----)?"
_LINE_END = "\x1f"  # separator while lines are masked together
_INDENT_MAX = 8
_TEXT_CHARS_MAX = 8_192  # of an exception's own text, before anything reads it
_PARTS_MAX = 20  # exceptions of a group, or errors of one validation
_GROUPS_MAX = 2  # exception groups inside one another
SUMMARY_CHARS_MAX = 500  # contracts.store.Failure
TEXT_CHARS_MAX = 2_000  # of an exception's text in its trace
TEXT_LINES_MAX = 8  # lines of that text
TRACE_CHARS_MAX = 4_000
_FRAMES_MAX = 24  # of one exception: half of these are its first frames, half its last
_CHAIN_MAX = 4  # exceptions of a chain, beginning with the one that was caught
_WALKED_MAX = 10_000  # frames of a runaway recursion that are counted
_PATH_CHARS_MAX = 160
_NAME_CHARS_MAX = 80


class Trace(Struct, frozen=True, gc=False):
    """Where a failure happened.

    Args:
        at: the last frame of the user's own code, for a log line: `shop.py:12 in book`; empty if there is none.
        text: as Python prints it, without source lines; at most TRACE_CHARS_MAX characters.
    """

    at: str
    text: str


class _Frame(Struct, frozen=True, gc=False):
    file: str
    line: int
    name: str
    ours: bool


_CAUSES_MAX = 50  # of one error, that are looked at for keys


def quote_key(error: BaseException, key: str) -> None:
    """Note that an error's texts quote a business key, so that log lines have a hash in its place."""
    if isinstance(error, OnefoldError):
        error._keys = (*error._keys, key)  # noqa: SLF001 - private to onefold


def quoted_keys(error: BaseException | None) -> set[str]:
    """The business keys that an error, its causes and what was handled meanwhile quote."""
    found, waiting, seen = set[str](), [error], set[int]()
    while waiting and len(seen) < _CAUSES_MAX:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            found.update(getattr(one, "_keys", ()) if isinstance(one, OnefoldError) else ())
            waiting += [one.__cause__, one.__context__]
    return found


def trace_of(error: BaseException, text_of: Callable[[BaseException], str]) -> Trace:
    """The frames of an exception and of its causes, each cause before its consequence, as Python prints them.

    Args:
        text_of: returns an exception's own text as it may be shown; empty for its class alone.
    """
    try:
        return _trace_of(error, text_of)
    except Exception:  # noqa: BLE001 - a strange exception object must not hide the failure itself
        return Trace("", "")


def _trace_of(error: BaseException, text_of: Callable[[BaseException], str]) -> Trace:
    parts: list[str] = []
    at, left = "", TRACE_CHARS_MAX
    for one, joint in _chain(error):
        frames = _frames(one.__traceback__)
        own = [frame for frame in frames if not frame.ours]
        if not at and own:
            at = _short(own[-1])
        part = _part(one, frames, text_of(one))
        if len(part) > left:
            part = f"{part[: left // 2 - 20]}\n  ...\n{part[-(left // 2 - 20) :]}" if left > 200 else "  ..."
        parts += [part, joint]
        left -= len(part) + len(joint) + 4
        if left <= 0:
            break
    return Trace(at, "\n\n".join(reversed([part for part in parts if part]))[-TRACE_CHARS_MAX:])


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """The exception, then its causes, each with the sentence that joins it to its cause."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen and len(seen) < _CHAIN_MAX:
        seen.add(id(one))
        cause = one.__cause__
        joint = "The exception above was the direct cause of the following one:"
        if cause is None and not one.__suppress_context__:
            cause, joint = one.__context__, "While the exception above was handled, another one came:"
        known = cause is None or id(cause) in seen or len(seen) == _CHAIN_MAX
        yield one, "" if known else joint
        one = cause


def _frames(trace: TracebackType | None) -> list[_Frame]:
    """The frames from the first one outside onefold; if there are very many, only the first and the last ones."""
    found: list[_Frame] = []
    walked = left_out = 0
    while trace is not None and walked < _WALKED_MAX:
        code, walked = trace.tb_frame.f_code, walked + 1
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        ours = module.partition(".")[0] == "onefold"
        if found or not ours:
            frame = _Frame(
                code.co_filename[-_PATH_CHARS_MAX:], trace.tb_lineno, code.co_qualname[:_NAME_CHARS_MAX], ours
            )
            if len(found) >= _FRAMES_MAX:
                del found[_FRAMES_MAX // 2]
                left_out += 1
            found.append(frame)
        trace = trace.tb_next
    if left_out:
        said = "1 frame is" if left_out == 1 else f"{left_out} frames are"
        found.insert(_FRAMES_MAX // 2, _Frame(f"... {said} left out", 0, "", True))
    return found


def _part(error: BaseException, frames: list[_Frame], text: str) -> str:
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"
    rows = ["Traceback (most recent call last):"] if frames else []
    rows += [
        f'  File "{frame.file}", line {frame.line}, in {frame.name}' if frame.line else f"  {frame.file}"
        for frame in frames
    ]
    first, *more = text.split("\n")
    rows += [f"{name[:200]}: {first}" if first else name[:200], *(f"    {one}" for one in more)]
    return "\n".join(redact.printable(row) for row in rows)


def _short(frame: _Frame) -> str:
    return redact.printable(f"{frame.file.rpartition('/')[2]}:{frame.line} in {frame.name}")


def error_name(error: BaseException) -> str:
    """The class of an exception for people: `TimeoutError`, `httpx.ReadTimeout`, onefold's own without a module."""
    cls = type(error)
    if cls.__module__ in ("builtins", "onefold.errors", "__main__"):
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def summary_of(error: BaseException) -> str:
    """One line about a failure, at most 500 characters, safe to log.

    The first line with a count of the others, without passwords, query strings of URLs and the input values of
    validation errors; control characters are escaped. The handler's own words in the message are not checked further.
    """
    lines = _safe_lines(error, "; ")
    more = f" [+{len(lines) - 1} {'line' if len(lines) == 2 else 'lines'}]" if len(lines) > 1 else ""
    first = " ".join(lines[0].split()).rstrip(":") or type(error).__name__
    room = SUMMARY_CHARS_MAX - len(more)
    return (first if len(first) <= room else f"{first[: room - 3]}...") + more


def text_of(error: BaseException) -> str:
    """The text of an exception, at most 8 lines and 2,000 characters, as safe as `summary_of`.

    Database drivers name the row in the second line, and may quote its values there.
    """
    lines = _safe_lines(error, "\n")
    left_out = len(lines) - TEXT_LINES_MAX + 1
    if left_out > 1:
        lines = [*lines[: TEXT_LINES_MAX - 1], f"... {left_out} more lines"]
    text = "\n".join(lines)
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 3]}..."


def _safe_lines(error: BaseException, between: str) -> list[str]:
    """The lines that are not blank, masked, and escaped where they cannot be printed; at least one, and none empty."""
    try:
        text = re.sub(_PRIVATE_KEY, redact.MASK, _words(error, between)[:_TEXT_CHARS_MAX])
        lines = [
            " " * min(len(one) - len(one.lstrip(" ")), _INDENT_MAX) + " ".join(one.split())
            for one in text.split("\n")
            if one and not one.isspace()
        ]
        # Masked as one text, because a quoted value may continue on the next line. The patterns see the separator as
        # white space.
        text = re.sub(_QUERY, "", redact.masked(_LINE_END.join(lines)))
        lines = [_escaped(one) for one in text.split(_LINE_END) if one and not one.isspace()]
    except Exception:  # noqa: BLE001 - a __str__ that fails, or no stack left, must not hide the failure
        lines = []
    return lines or [type(error).__name__]


def _escaped(line: str) -> str:
    r"""The line with escapes such as `\x1b` for everything that does not print, because terminals obey some of it."""
    if redact.is_plain(line):
        return line
    return "".join(one if redact.is_plain(one) else one.encode("unicode_escape").decode() for one in line)


def _words(error: BaseException, between: str, depth: int = 1) -> str:
    if isinstance(error, UsageError):
        return f"{error.what} {error.todo}"  # `meaning` may show the value
    if isinstance(error, OnefoldError):
        return str(error)
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return f"exit code {error.code}"
    if isinstance(error, BaseExceptionGroup):
        if depth == _GROUPS_MAX:  # members may be shared, so the number of paths can grow exponentially
            return f"{len(error.exceptions)} errors"
        parts = [
            f"{type(one).__name__}: "
            + (_words(one, "; ", depth + 1) if isinstance(one, BaseExceptionGroup) else summary_of(one))
            for one in error.exceptions[:_PARTS_MAX]
        ]
        said = f"{error.message}: " if error.message else ""
        return _listed(f"{said}{len(error.exceptions)} errors", parts, between)
    if is_pydantic(error):
        count = cast(Any, error).error_count()
        if count > COMPLAINTS_MAX:
            return f"{count} validation errors, too many to list"
        complaints = cast(Any, error).errors(include_url=False, include_context=False, include_input=False)
        parts = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in complaints[:_PARTS_MAX]]
        return _listed(f"{len(complaints)} validation error(s)", parts, between)
    return str(error)


def _listed(head: str, parts: list[str], between: str) -> str:
    return f"{head}:{between if between.isspace() else ' '}{between.join(parts)}"
