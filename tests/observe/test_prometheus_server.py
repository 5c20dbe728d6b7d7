"""A worker with --metrics, scraped by a real Prometheus server with a rule of ours that fires."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.clock import SystemClock
from tests.emulators.servers import free_port
from tests.faces.processes import PATIENCE_S, Commands

pytestmark = pytest.mark.slow

APP = """
import onefold

app = onefold.App("shop")
orders = app.queue("orders")


@app.job(orders, key="{name}")
def ship(payload: dict[str, str]) -> None:
    if payload["name"] == "bad":
        raise onefold.PermanentError("no such address")
"""
CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: onefold
    static_configs: [{{targets: ["{target}"]}}]
"""
RULES = """
groups:
  - name: onefold
    rules:
      - alert: DeadLetters
        expr: max by (queue) (onefold_queue_messages{state="dead"}) >= 1
"""


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    (tmp_path / "shop.py").write_text(APP)
    made = Commands(tmp_path)
    yield made
    made.end()


def wait_for(url: str, found: Any) -> Any:
    """What `found` makes of an answer, asked for until it is true."""
    clock = SystemClock()
    for _ in range(10 * PATIENCE_S):
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if result := found(answer.read().decode()):
                    return result
        except OSError:
            pass
        clock.wait(threading.Event(), 100)
    raise AssertionError(url)


def test_prometheus_scrapes_a_worker_and_its_rule_fires(commands: Commands) -> None:
    program = shutil.which("prometheus")
    assert program is not None, "apt install prometheus"
    for name in ("good", "bad"):
        sent = commands.run("send", "shop:app", "ship", json.dumps({"name": name}))
        assert sent.returncode == 0, sent.stderr
    port, own = free_port(), free_port()
    commands.start("worker", "shop:app", "--metrics", f":{port}", "--no-progress", "--processes", "1")
    url = f"http://127.0.0.1:{port}"
    done = 'onefold_messages_settled_total{failure_class="",job="ship",outcome="completed",queue="orders"} 1.0'
    text = wait_for(f"{url}/metrics", lambda text: text if done in text and 'outcome="dead"' in text else None)
    assert 'onefold_queue_messages{queue="orders",state="dead"} 1.0' in wait_for(
        f"{url}/metrics", lambda text: text if 'state="dead"} 1.0' in text else None
    )
    assert "no such address" not in text
    assert wait_for(f"{url}/readyz", str.strip) == "ok"
    (commands.folder / "prometheus.yml").write_text(CONFIGURATION.format(target=f"127.0.0.1:{port}"))
    (commands.folder / "rules.yml").write_text(RULES)
    server = subprocess.Popen(
        [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{own}"],
        cwd=commands.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        fired = wait_for(f"http://127.0.0.1:{own}/api/v1/alerts", lambda text: json.loads(text)["data"]["alerts"])
        assert {(one["labels"]["alertname"], one["labels"]["queue"]) for one in fired} == {("DeadLetters", "orders")}
    finally:
        server.terminate()
        server.wait(PATIENCE_S)
