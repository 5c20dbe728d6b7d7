"""Writes `grafana/onefold.json`, a dashboard for Grafana over Prometheus, from the table of metrics: `make dashboard`.

Every metric has a panel in the row of its layer, in the order of the table; the first panel is no metric of the table but
the question that a dashboard is for: does anything wait that nobody works on? A test compares the file with this.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from onefold.observe.metrics import METRICS, Layer, Metric

FILE: Final = Path(__file__).resolve().parents[1] / "grafana" / "onefold.json"
SCHEMA_VERSION: Final = 39
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 24
_PANEL: Final = (8, 8)  # width, height
_LAYERS: Final[tuple[tuple[Layer, str], ...]] = (
    ("trigger", "What was triggered"),
    ("transport", "What is travelling"),
    ("business", "What really happened"),
)
_UNITS: Final = {"s": "s", "1": "percentunit"}
_FILTERS: Final = ("queue", "job")
UNWORKED: Final = (
    'max by (queue) (onefold_queue_messages{state="visible"}) > 0 '
    "unless on (queue) sum by (queue) (increase(onefold_messages_settled_total[30m])) > 0"
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "__inputs": [],
        "__requires": [
            {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.4.0"},
            {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
        ],
        "uid": "onefold",
        "title": "onefold",
        "description": "Jobs whose effect happens once: what was triggered, what is travelling, what really happened.",
        "tags": ["onefold"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource(), *(_variable(name) for name in _FILTERS)]},
        "annotations": {"list": []},
        "panels": list(_numbered(_panels())),
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}


def _variable(name: str) -> dict[str, Any]:
    metric = "onefold_queue_messages" if name == "queue" else "onefold_messages_settled_total"
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {name})", "refId": name},
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    yield _unworked()
    y = 6
    for layer, title in _LAYERS:
        yield {"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _at(0, y, _WIDTH, 1)}
        y += 1
        x = 0
        for metric in METRICS.values():
            if metric.layer == layer and "operation" not in metric.labels:  # those are by OpenTelemetry alone
                if x == _WIDTH:
                    x, y = 0, y + _PANEL[1]
                yield _panel(metric, _at(x, y, *_PANEL))
                x += _PANEL[0]
        y += _PANEL[1]


def _unworked() -> dict[str, Any]:
    return {
        "type": "stat",
        "title": "Is anything waiting that nobody works on?",
        "description": "Queues in which messages are visible and of which nothing was settled for 30 minutes.",
        "datasource": _SOURCE,
        "gridPos": _at(0, 0, _WIDTH, 6),
        "targets": [{"refId": "A", "expr": UNWORKED, "legendFormat": "{{queue}}", "datasource": _SOURCE}],
        "fieldConfig": {
            "defaults": {
                "noValue": "no",
                "unit": "short",
                "color": {"mode": "thresholds"},
                "thresholds": {
                    "mode": "absolute",
                    "steps": [{"color": "green", "value": None}, {"color": "red", "value": 1}],
                },
            },
            "overrides": [],
        },
        "options": {
            "reduceOptions": {"calcs": ["lastNotNull"]},
            "textMode": "value_and_name",
            "colorMode": "background",
        },
    }


def _panel(metric: Metric, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": metric.name,
        "description": metric.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [
            {"refId": ref, "expr": query, "legendFormat": legend, "datasource": _SOURCE}
            for ref, (query, legend) in zip("AB", queries(metric), strict=False)
        ],
        "fieldConfig": {"defaults": {"unit": _UNITS.get(metric.unit, "short"), "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }


def queries(metric: Metric) -> list[tuple[str, str]]:
    """PromQL and legend of a metric's lines: rates of counters, the middle and the slow end of times, gauges as they are."""
    chosen = ", ".join(
        f'{name}=~"${name}"' for name in _FILTERS if name in metric.labels and metric.layer == "transport"
    )
    series = f"{{{chosen}}}" if chosen else ""
    by = [name for name in metric.labels if name != "failure_class"]
    legend = " ".join(f"{{{{{name}}}}}" for name in by)
    if metric.instrument == "histogram":
        within = ", ".join(["le", *by])
        rate = f"sum by ({within}) (rate({metric.prometheus}_bucket{series}[$__rate_interval]))"
        return [(f"histogram_quantile({part}, {rate})", f"p{round(part * 100)} {legend}") for part in (0.5, 0.95)]
    if metric.instrument == "counter":
        return [(f"sum{_by(by)} (rate({metric.prometheus}{series}[$__rate_interval]))", legend or metric.prometheus)]
    return [(f"max{_by(by)} ({metric.prometheus}{series})", legend or metric.prometheus)]


def _by(names: list[str]) -> str:
    return f" by ({', '.join(names)})" if names else ""


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _numbered(panels: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return ({"id": number, **one} for number, one in enumerate(panels, 1))


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2) + "\n"


def main() -> None:
    """Write it."""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
