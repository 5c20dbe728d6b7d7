"""Where a failure happened: frames without locals or source lines, bounded, with the exception's own text bounded.

A traceback is not a body (design 12.6): file, line and function of each frame, and of each exception of the chain its text
as `failures.text_of` lets it pass, lines behind its first one indented. The first frames, which are onefold's own way to the
handler, are left out.
Never here: values of variables, reading source files. Invariant: nothing raises, whatever the exception does, and the text
is at most TRACE_CHARS_MAX characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType

from msgspec import Struct

from onefold import redact

TRACE_CHARS_MAX = 4_000
_FRAMES_MAX = 24  # of one exception: the first and the last half of them
_CHAIN_MAX = 4  # exceptions of a chain, the one that was caught first
_WALKED_MAX = 10_000  # frames of a runaway recursion that are counted
_PATH_CHARS_MAX = 160
_NAME_CHARS_MAX = 80


class Trace(Struct, frozen=True, gc=False):
    """Where a failure happened.

    Args:
        at: the last frame of the user's own code, for a log line: `shop.py:12 in book`; empty where there is none.
        text: as Python prints it, without source lines; at most TRACE_CHARS_MAX characters.
    """

    at: str
    text: str


class _Frame(Struct, frozen=True, gc=False):
    file: str
    line: int
    name: str
    ours: bool


def trace_of(error: BaseException, text_of: Callable[[BaseException], str]) -> Trace:
    """Frames of an exception and of those it came from, the cause before its consequence, as Python has it.

    Args:
        text_of: an exception's own text as it may be shown; empty for its class alone.
    """
    try:
        return _trace_of(error, text_of)
    except Exception:  # noqa: BLE001 - a strange exception object must not hide the failure it stands for
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
    """The exception, then what it came from, each with the words that join it to its cause."""
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
    """The frames from the first that is not onefold's own; of very many the first and the last ones."""
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
