"""The parts of docs/alarms.md that the list of alarms says: the table, and a runbook for each. `make reference` writes them.

The rest of the page is written by hand; a part stands between two marks, and only what is between them is replaced.
A test compares, so that the page cannot fall behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from onefold import duration
from onefold.observe.alarms import ALARMS, Alarm

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "alarms.md"
_OF: Final = {
    "queue": "queue", "job": "job", "schedule": "schedule", "runs": "schedule or map", "function": "function",
    "group": "group of schedules", "map": "map", "rule": "rule of an event bus",
    "table": "table",
    "worker": "worker",
}  # fmt: skip
_SIDES: Final = {"embedded": "onefold", "cloudwatch": "CloudWatch", "prometheus": "Prometheus"}


def page(text: str) -> str:
    """The page with its written parts as the list says them now.

    Args:
        text: the page as it is.
    """
    for name, part in (("table", table()), ("runbooks", runbooks())):
        begin, end = f"<!-- {name}: written by `make reference` -->", f"<!-- end of {name} -->"
        before, begun, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        assert begun, name
        assert ended, name
        text = f"{before}{begin}\n\n{part}\n\n{end}{after}"
    return text


def table() -> str:
    """Every alarm: from when on, for how long, until when, how often it is repeated, and who evaluates it."""
    rows = [
        "| alarm | severity | begins at | holds for | ends at | for | again after | evaluated by |",
        "|" + "---|" * 8,
    ]
    for one in ALARMS.values():
        cells = (
            f"[{one.name}](#{one.name})", one.severity, f"{one.condition}: {one.threshold}", _time(one.for_ms), one.clear,
            _time(_clear_ms(one)), duration.to_text(one.again_ms) if one.again_ms else "not at all",
            ", ".join(_SIDES[side] for side in one.sides),
        )  # fmt: skip
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _clear_ms(one: Alarm) -> int:
    """How long its value has to be good; only onefold itself waits for that."""
    return one.clear_ms if "embedded" in one.sides else 0


def _time(ms: int) -> str:
    return duration.to_text(ms) if ms else ""


def runbooks() -> str:
    """A section for each alarm, under the anchor that `Alarm.runbook` names."""
    return "\n\n".join(map(_runbook, ALARMS.values()))


def _runbook(one: Alarm) -> str:
    held = f", for {duration.to_text(one.for_ms)}" if one.for_ms else ""
    good = f", for {duration.to_text(_clear_ms(one))}" if _clear_ms(one) else ""
    command = one.command("APP", one.of.upper())
    lines = [
        f"### {one.name} {{ #{one.name} }}",
        "",
        f"**{one.severity.capitalize()}**, for each {_OF[one.of]}. {one.meaning}",
        "",
        f"- **First command:** `{command}`",
        f"- **Usual causes:** {one.causes}",
        f"- **What to do:** {one.steps}",
        f"- **It begins at:** {one.condition}: {one.threshold}{held}.",
        f"- **It ends at:** {one.clear}{good}.",
        f"- **On AWS:** {one.aws}.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Write the parts into the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
