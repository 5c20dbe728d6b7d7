"""The rules for Prometheus: over metrics that there are, and firing when they should, as Prometheus's own tester says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import onefold
from onefold.observe import alarm_rules, alarms
from onefold.observe.metrics import METRICS

NOW_MS = 1_767_225_600_000
UP = {"series": 'up{instance="a"}', "values": "1x4000"}
OTHERS = [
    {"series": f'onefold_queue_messages{{queue="{queue}",state="visible"}}', "values": "0x4000"}
    for queue in ("onefold-alarms", "onefold-reconcile", "shop-schedules")
]


def make_app() -> onefold.App:
    app = onefold.App("shop")
    orders = app.queue("orders", retention="1h")

    @app.job(orders, key="{id}")
    def book(payload: dict[str, str]) -> None:
        """Nothing."""

    @app.schedule("cron(0 2 * * ? *)")
    def nightly(tick: onefold.Tick) -> None:
        """Nothing."""

    @app.schedule("cron(0 2 1 1 ? *)")
    def yearly(tick: onefold.Tick) -> None:
        """Nothing."""

    app.reconcile(nightly, after="1h")
    app.alarms(email="a@example.com", owner="billing")
    return app


@pytest.fixture(scope="module")
def written() -> str:
    return alarm_rules.prometheus(make_app().registry, target="shop:app", now_ms=NOW_MS)


def rules_of(written: str) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(written)["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_every_alarm_of_this_side_has_a_rule_and_no_other(written: str) -> None:
    assert {one["labels"]["alarm"] for one in rules_of(written)} == {one.name for one in alarms.on("prometheus")}


def test_a_rule_says_what_to_do(written: str) -> None:
    for one in rules_of(written):
        alarm = alarms.ALARMS[one["labels"]["alarm"]]
        assert one["labels"]["severity"] == alarm.severity
        assert one["labels"]["owner"] == "billing"
        assert alarm.meaning in one["annotations"]["description"]
        assert "shop:app" in one["annotations"]["description"] or "{app}" not in alarm.first
        assert one["annotations"]["runbook"].endswith(alarm.name)


def test_rules_are_over_metrics_that_there_are(written: str) -> None:
    known = {one.prometheus for one in METRICS.values()} | {f"{one.prometheus}_bucket" for one in METRICS.values()}
    used = {name for one in rules_of(written) for name in re.findall(r"\b(?:onefold|messaging)_[a-z_]+", one["expr"])}
    assert used <= known


def test_a_schedule_whose_gap_no_server_remembers_has_no_rule(written: str) -> None:
    assert [one["labels"]["job"] for one in rules_of(written) if one["labels"]["alarm"] == "no-tick"] == ["nightly"]


MESSAGES = 'onefold_queue_messages{queue="orders",state="%s",instance="%s"}'
OLDEST = 'onefold_queue_oldest_age_seconds{queue="orders"}'
DONE = 'onefold_messages_settled_total{queue="orders",job="book",outcome="completed",instance="a"}'
TICKS = 'onefold_schedule_ticks_total{job="nightly",outcome="%s"}'
RUN = 'onefold_run_items{job="monthly",state="%s"}'
COMPANION = 'onefold_queue_companion_age_seconds{queue="orders",state="%s"}'
RUNS = 'onefold_runs{job="nightly",state="%s"}'
AGE = 'onefold_reconcile_age_seconds{job="nightly"}'
Series = list[tuple[str, str]]

# Of each alarm: samples a minute apart, and at which minutes its rule fires, and does not.
CASES: list[tuple[str, Series, list[int], list[int]]] = [
    ("completion-failed", [('onefold_completion_failed_total{job="book",queue="orders"}', "_x10 1x60")], [10, 20], [9, 40]),
    ("completion-failed", [('onefold_completion_failed_total{job="book",queue="orders"}', "0x9 1x60")], [10, 20], [9, 40]),
    ("lease-lost", [('onefold_lease_lost_total{job="book",queue="orders"}', "0x9 1x60")], [10, 20], [9, 40]),
    ("lease-lost-often", [('onefold_lease_lost_total{job="book",queue="orders"}', "0x9 1 2 3 4 5x90")], [16, 60], [9, 90]),
    ("dlq-not-empty", [(MESSAGES % ("dead", "a"), "0x5 1x5 0x5"), (MESSAGES % ("dead", "b"), "0x5 1x5 0x5")], [7], [4, 14]),
    ("held-not-empty", [(MESSAGES % ("held", "a"), "0x5 2x5 0x5")], [7], [4, 14]),
    ("oldest", [('onefold_queue_oldest_age_seconds{queue="orders"}', "0x5 900x30")], [20, 30], [5, 14]),
    ("in-flight-cap", [('onefold_queue_in_flight_ratio{queue="orders"}', "0.7x5 0.8x30")], [12], [5, 9]),
    ("receives", [
        ('onefold_message_receives_bucket{queue="orders",job="book",le="1"}', "0+1x60"),
        ('onefold_message_receives_bucket{queue="orders",job="book",le="3"}', "0+1x60"),
        ('onefold_message_receives_bucket{queue="orders",job="book",le="5"}', "0+2x60"),
        ('onefold_message_receives_bucket{queue="orders",job="book",le="+Inf"}', "0+2x60"),
    ], [30], [5]),
    ("engine-unreachable", [('onefold_engine_failing_age_seconds{instance="a"}', "0x9 60+60x20 0x5")], [12, 28],
     [9, 10, 33]),
    ("breaker-open", [('onefold_breaker_open{job="book"}', "0x5 1x20")], [12], [5, 9]),
    ("missing", [(RUN % "missing", "0x5 3x20 0x5")], [10], [5, 28]),
    ("duplicate-effects", [(RUN % "duplicate", "0x5 1x20 0x5")], [10], [5, 28]),
    ("tick-dropped", [(TICKS % "dropped", "_x10 1x60")], [10], [9, 40]),
    ("tick-refused", [(TICKS % "refused", "0x9 1 2 3 4x60")], [14], [9, 60]),
    ("no-tick", [(TICKS % "sent", "0x120 1x4000")], [1_600], [121, 1_400]),
    ("no-tick", [('up{instance="a"}', "1x2000")], [1_500], [1_000]),
    ("drain", [(MESSAGES % ("visible", "a"), "100x90"), (DONE, "0+1x90")], [60], [5]),
    ("stalled", [(MESSAGES % ("visible", "a"), "5x90"), (OLDEST, "0+60x90"), (DONE, "0+1x20 20x70")], [60], [10, 45]),
    ("dlq-expiring", [(COMPANION % "dead", "1036799x9 1036800x9 0x9")], [12, 18], [8, 24]),
    ("held-old", [(COMPANION % "held", "86399x9 86400x9 0x9")], [12, 18], [8, 24]),
    ("map-failed", [(RUNS % "stopped", "0x9 1x20 0x9")], [16, 28], [8, 14, 35]),
    ("reconcile-failed", [(RUNS % "disagrees", "0x9 1x20 0x9")], [12, 28], [8, 35]),
    ("reconcile-late", [(AGE, "93600x9 93601x9 0x9")], [12, 18], [8, 24]),  # a day, and twice the hour
    ("stalled", [(MESSAGES % ("visible", "a"), "5x90"), (OLDEST, "0+60x90"), (DONE, "_x40 1x70")], [35], [10, 41]),
    ("stalled", [(MESSAGES % ("visible", "a"), "5x20 _x70")], [60], [10, 45]),
]  # fmt: skip


def test_each_rule_of_the_file_is_tried() -> None:
    assert {one[0] for one in CASES} == {one.name for one in alarms.on("prometheus")}


@pytest.mark.slow
def test_prometheus_itself_says_that_each_fires_and_ends(written: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(written)
    tests = []
    for alarm, series, fires, rests in CASES:
        (name,) = {one["alert"] for one in rules_of(written) if one["labels"]["alarm"] == alarm}
        inputs = [*OTHERS, *([] if any("up{" in one for one, _ in series) else [UP])]
        inputs += [{"series": one, "values": values} for one, values in series]
        firing = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
        expected = [(minute, [{"labels": "{}", "value": 1}]) for minute in fires] + [(minute, []) for minute in rests]
        checks = [{"expr": firing, "eval_time": f"{at}m", "exp_samples": found} for at, found in expected]
        tests.append({"name": alarm, "interval": "1m", "input_series": inputs, "promql_expr_test": checks})
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(document))
    promtool = shutil.which("promtool")
    assert promtool is not None, "install Debian's package prometheus"
    for command in (["check", "rules", "rules.yml"], ["test", "rules", "tests.yml"]):
        done = subprocess.run(
            [promtool, *command], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
