"""How times, durations, operations and next commands are written for people, in logs, timelines and tables.

Pure: integers and strings in, short strings out. Never here: colours, columns, or a person's time zone (instants are in
UTC here; `cli/render.py` turns them into local time). Invariant: a duration is never overstated by more than its last
unit, and always has a unit.
"""

from __future__ import annotations

from datetime import UTC, datetime

from onefold import duration, limits, redact
from onefold.contracts.store import RecordKey


def age(ms: int) -> str:
    """A duration for a table: whole seconds, at most two units (`3m12s`, `2d4h`); below a second in ms, never negative."""
    ms = max(ms, 0)
    for unit_ms in (limits.DAY_MS, limits.HOUR_MS, limits.MINUTE_MS, limits.SECOND_MS):
        if ms >= unit_ms:
            least_ms = max(_NEXT_BELOW[unit_ms], limits.SECOND_MS)
            return duration.to_text(ms // least_ms * least_ms)
    return duration.to_text(ms)


_NEXT_BELOW = {
    limits.DAY_MS: limits.HOUR_MS,
    limits.HOUR_MS: limits.MINUTE_MS,
    limits.MINUTE_MS: limits.SECOND_MS,
    limits.SECOND_MS: limits.SECOND_MS,
}


def pause(ms: int) -> str:
    """A duration in a sentence: `300 ms`, `4.0 s`, and from a minute as `age` formats it."""
    if ms < limits.SECOND_MS:
        return f"{max(ms, 0)} ms"
    return f"{ms / 1000:.1f} s" if ms < limits.MINUTE_MS else age(ms)


def instant(at_ms: int) -> str:
    """An instant as ISO 8601 in UTC with milliseconds: `2026-11-20T23:47:00.123Z`."""
    try:
        at = datetime.fromtimestamp(at_ms / 1000, tz=UTC)
    except (ValueError, OverflowError):  # of a damaged record
        return f"{at_ms} ms since 1970"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def operation(key: RecordKey) -> str:
    """An operation as job and key: `book_courier o-17`, with its tenant if it has one: `charge acme/2026-11`."""
    return f"{key.job} {key.scope}/{key.key}" if key.scope else f"{key.job} {key.key}"


def cause(error: str | None, summary: str | None) -> str:
    """A failure's class and text in one text; an exception without a text is shown by its class."""
    if not error or not summary or summary == error:
        return error or summary or ""
    return f"{error}: {summary}"


def one_line(text: str, characters_max: int = 500) -> str:
    """A text without line breaks, cut if it is too long."""
    flat = redact.printable(" ".join(text.split()))
    return flat if len(flat) <= characters_max else f"{flat[: characters_max - 3]}..."


def counted(count: int, noun: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def counted_runs(count: int, died: int) -> str:
    """`1 run`, `1 run, which died with its process`, `3 runs, 2 of which died with their processes`."""
    if not died:
        return counted(count, "run")
    which = "which" if count == died == 1 else f"{died:,} of which"
    return f"{counted(count, 'run')}, {which} died with {'its process' if died == 1 else 'their processes'}"


def with_target(step: str, target: str) -> str:
    """Advice with the target of the running command added, if the advice is a command or ends with one."""
    if target and not target.startswith("-") and "://" not in target:
        named = step.replace("<module>:<app>", target).replace("MODULE:APP", target)
        if named != step:
            return named
    if (": onefold resume " in step or ": onefold names give " in step) and target:
        return f"{step} {target}"
    if not step.startswith("onefold ") or not target:
        return step
    command, gap, remark = step.partition("   (")
    before, sign, word = command.partition(" -- ")
    if sign and target.startswith("-"):  # after `--` it would not be an option
        return f"{before} {target} -- {word}{gap}{remark}"
    return f"{command} {target}{gap}{remark}"
