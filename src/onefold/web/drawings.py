"""The page's pictures, as inline SVG: a sparkline, a bar of a run's outcomes, a timeline with idle time shortened, a week.

Numbers and texts go in, escaped markup comes out. Colours are classes in the style sheet, so that each colour
scheme has its own and nothing is styled inline. Never here: reading data.
Invariant: every picture has an equivalent text for people who cannot see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from onefold import limits
from onefold.observe.timeline import Line
from onefold.observe.wording import age, pause
from onefold.redact import one_line

if TYPE_CHECKING:
    from markupsafe import Markup

_SPARK: Final = (96, 22)  # width, height
_BAR_WIDTH: Final = 600
_LINE_WIDTH: Final = 760
_EVENTS_MAX: Final = 60
_WEEK: Final = (760, 76, 24)  # width, width of the day names, height of a day
_DAYS: Final = 7
_BAD: Final = frozenset(
    {
        "failed",
        "retry",
        "dead-letter",
        "quarantine",
        "conflict",
        "malformed",
        "lease-lost",
        "owner-dead",
        "unknown",
        "held",
        "takeover",
    }
)
_GOOD: Final = frozenset({"completed", "duplicate", "settled"})


def _markup(text: str) -> Markup:
    """One of our own texts as markup; whatever is formatted into it is escaped."""
    from markupsafe import Markup  # from the extra `web`, whose presence was checked when the page was made

    return Markup(text)  # noqa: S704 - only ever our own text


def sparkline(values: Sequence[int], what: str) -> Markup:
    """A small line chart of counts, latest last.

    Args:
        what: what is counted, for example "completed a minute".
    """
    width, height = _SPARK
    top, last = max(values, default=0), values[-1] if values else 0
    label = f"{what}: {last:,} now, {top:,} at most, over {len(values)} minutes"
    step = width / max(len(values) - 1, 1)
    points = " ".join(
        f"{index * step:.1f},{height - 2 - (value / top * (height - 4) if top else 0):.1f}"
        for index, value in enumerate(values)
    )
    return _markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}">'
        '<polygon class="area" points="0,{h} {points} {w},{h}"></polygon>'
        '<polyline class="stroke" points="{points}"></polyline></svg>'
    ).format(w=width, h=height, label=label, points=points)


def bar(parts: Sequence[tuple[str, int]], total: int) -> Markup:
    """A run's outcomes side by side.

    Args:
        parts: each outcome's name, which is its CSS class, and its count. total: all, with or without an outcome.
    """
    shown = [(name, count) for name, count in parts if count]
    label = ", ".join(f"{count:,} {name}" for name, count in shown) or "nothing yet"
    rects, x = _markup(""), 0.0
    for name, count in shown:
        width = count / max(total, 1) * _BAR_WIDTH
        rects += _markup('<rect class="{name}" x="{x}" y="0" width="{width}" height="14"></rect>').format(
            name=name, x=f"{x:.2f}", width=f"{max(width, 1.5):.2f}"
        )
        x += width
    return _markup(
        '<svg class="bar" viewBox="0 0 {w} 14" preserveAspectRatio="none" role="img" aria-label="{label} of {total}">'
        '<rect class="rest" x="0" y="0" width="{w}" height="14"></rect>{rects}</svg>'
    ).format(w=_BAR_WIDTH, label=label, total=f"{total:,}", rects=rects)


def timeline(steps: Sequence[Line]) -> Markup:
    """The steps of one operation over time; a long gap is drawn short and labelled with its length."""
    shown = list(steps)[-_EVENTS_MAX:]
    if len(shown) < 2:
        return _markup("")
    gaps = [max(after.at_ms - before.at_ms, 0) for before, after in pairwise(shown)]
    busy_ms = sorted(gaps)[len(gaps) // 2] * 4 + 1
    drawn = [min(gap, busy_ms) for gap in gaps]
    scale = (_LINE_WIDTH - 20) / max(sum(drawn), 1)
    parts, x = _markup(""), 10.0
    for index, step in enumerate(shown):
        kind = "bad" if step.event in _BAD else "good" if step.event in _GOOD else "plain"
        parts += _markup('<circle class="{kind}" cx="{x}" cy="16" r="5"><title>{title}</title></circle>').format(
            kind=kind, x=f"{x:.1f}", title=f"{step.at} {step.event}: {one_line(step.text)}"
        )
        if index < len(gaps):
            width = drawn[index] * scale
            if gaps[index] > busy_ms:
                parts += _markup(
                    '<line class="idle" x1="{a}" y1="16" x2="{b}" y2="16"></line>'
                    '<text x="{m}" y="36" text-anchor="middle">{text}</text>'
                ).format(a=f"{x + 7:.1f}", b=f"{x + width - 7:.1f}", m=f"{x + width / 2:.1f}", text=age(gaps[index]))
            x += width
    whole_ms = shown[-1].at_ms - shown[0].at_ms
    label = f"{len(shown)} steps in {pause(whole_ms)}; long gaps are drawn short"
    return _markup(
        '<svg class="time" viewBox="0 0 {w} 42" role="img" aria-label="{label}">'
        '<line class="axis" x1="10" y1="16" x2="{end}" y2="16"></line>{parts}</svg>'
    ).format(w=_LINE_WIDTH, label=label, end=_LINE_WIDTH - 10, parts=parts)


def week(ticks: Sequence[tuple[int, str, bool]], now_ms: int) -> Markup:
    """A calendar of the next seven days, with one row of 24 hours in UTC for each.

    Args:
        ticks: instant, name, and whether it will be sent.
    """
    width, left, height = _WEEK
    first_ms = now_ms - now_ms % limits.DAY_MS
    hour, bottom = (width - left - 8) / 24, (_DAYS + 1) * height
    parts = _markup("")
    for at in range(0, 25, 3):
        x = f"{left + at * hour:.1f}"
        parts += _markup('<line class="hour" x1="{x}" y1="0" x2="{x}" y2="{y}"></line>').format(x=x, y=bottom)
        if at < 24:
            parts += _markup('<text x="{x}" y="{y}">{at}</text>').format(
                x=f"{left + at * hour + 3:.1f}", y=bottom + 12, at=f"{at:02}:00"
            )
    for day in range(_DAYS + 1):
        date = datetime.fromtimestamp((first_ms + day * limits.DAY_MS) / limits.SECOND_MS, UTC)
        parts += _markup('<text x="0" y="{y}">{name}</text>').format(y=day * height + 16, name=f"{date:%a %d %b}")
    now_x = f"{left + (now_ms - first_ms) / limits.HOUR_MS * hour:.1f}"
    parts += _markup('<line class="now" x1="{x}" y1="2" x2="{x}" y2="{y}"></line>').format(x=now_x, y=height - 2)
    for at_ms, name, sent in ticks:
        row, within_ms = divmod(at_ms - first_ms, limits.DAY_MS)
        if not 0 <= row <= _DAYS:
            continue
        across, down = left + within_ms / limits.HOUR_MS * hour, row * height + height / 2
        parts += _markup('<circle class="{kind}" cx="{x}" cy="{y}" r="4"><title>{name}</title></circle>').format(
            kind="plain" if sent else "rest", x=f"{across:.1f}", y=f"{down:.0f}", name=one_line(name)
        )
    label = f"{sum(sent for _, _, sent in ticks):,} ticks in the next {_DAYS} days"
    return _markup('<svg class="week" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">{parts}</svg>').format(
        w=width, h=bottom + 16, label=label, parts=parts
    )
