"""The dashboard for Grafana: what the table of metrics says, importable, and with queries that Prometheus reads.

Grafana itself is in no package index that the tests may use; what is checked is its dashboard model as documented (its page
"JSON model"), and the queries by Prometheus's own promtool.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.observe.metrics import METRICS
from tools import grafana


@pytest.fixture
def made() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(grafana.FILE.read_text(encoding="utf-8"))
    return found


def panels(made: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in made["panels"] if one["type"] != "row"]


def expressions(made: dict[str, Any]) -> Iterator[str]:
    for panel in panels(made):
        for target in panel["targets"]:
            yield target["expr"]


def test_the_file_is_what_the_table_says() -> None:
    assert grafana.FILE.read_text(encoding="utf-8") == grafana.text(), "run `make dashboard`"


def test_the_first_panel_asks_whether_anything_waits_that_nobody_works_on(made: dict[str, Any]) -> None:
    first = min(made["panels"], key=lambda one: (one["gridPos"]["y"], one["gridPos"]["x"]))
    assert first is made["panels"][0]
    assert first["title"] == "Is anything waiting that nobody works on?"


def test_it_has_what_an_import_needs(made: dict[str, Any]) -> None:
    assert made["schemaVersion"] >= 39
    assert "id" not in made, "an id is another dashboard's"
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", made["uid"])
    variables = {one["name"]: one for one in made["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    sources = [one["datasource"] for one in panels(made)] + [
        target["datasource"] for one in panels(made) for target in one["targets"]
    ]
    assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in sources)
    used = {name for text in expressions(made) for name in re.findall(r"\$(?!__)(\w+)", text)}
    assert used == variables.keys() - {"datasource"}
    ids = [one["id"] for one in made["panels"]]
    assert len(set(ids)) == len(ids)
    for one in panels(made):
        refs = [target["refId"] for target in one["targets"]]
        assert (len(set(refs)), bool(one["title"]), bool(one["description"])) == (len(refs), True, True)


def test_no_two_panels_lie_on_one_another(made: dict[str, Any]) -> None:
    places = [one["gridPos"] for one in made["panels"]]
    for one in places:
        assert 0 <= one["x"] < one["x"] + one["w"] <= 24
    for a, b in itertools.combinations(places, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, (a, b)


def test_every_metric_is_asked_for_and_no_other(made: dict[str, Any]) -> None:
    asked = {name for text in expressions(made) for name in re.findall(r"\b(?:onefold|messaging)_\w+", text)}
    known = {
        f"{one.prometheus}_bucket" if one.instrument == "histogram" else one.prometheus
        for one in METRICS.values()
        if "operation" not in one.labels  # by OpenTelemetry alone
    }
    assert asked == known


def test_queries_group_by_labels_that_the_metric_has() -> None:
    for metric in METRICS.values():
        for text, legend in grafana.queries(metric):
            grouped = {one for group in re.findall(r"by \(([^)]*)\)", text) for one in group.split(", ")}
            filtered = set(re.findall(r"(\w+)=~", text))
            assert grouped | filtered <= {*metric.labels, "le"}, text
            assert set(re.findall(r"{{(\w+)}}", legend)) <= grouped


@pytest.mark.slow
def test_prometheus_reads_every_query(made: dict[str, Any], tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "install Debian's package prometheus"
    queries = [
        text.replace("$__rate_interval", "5m").replace("$queue", ".*").replace("$job", ".*")
        for text in expressions(made)
    ]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(queries)]
    file = tmp_path / "rules.yml"
    for some, is_good in ((rules, True), ([*rules, {"record": "panel:bad", "expr": "sum by (x (y)"}], False)):
        file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": some}]}))  # JSON is YAML
        done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == is_good, done.stdout + done.stderr
