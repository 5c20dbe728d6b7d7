"""The pages about alarms: what is written from the list is up to date, and what a reader types does what they say."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import markdown  # type: ignore[import-untyped]
import msgspec
import pytest

from onefold.observe import alarm_targets, alarms
from onefold.observe.alarm_targets import AlarmMessage, send
from onefold.observe.incidents import Report
from onefold.options import AlarmTargets
from tests.docs.test_pages import ROOT, blocks, shell, write_files
from tests.observe import receivers
from tools import alarm_page

PAGE, HOUR = "docs/alarms.md", "docs/how-to/first-hour-after-an-alarm.md"
AT_MS = 1_767_225_600_000
MESSAGE = AlarmMessage(
    target="webhook",
    app="shop",
    report=Report(
        incident=f"dlq-not-empty/orders/{AT_MS}", number=1, kind="began", alarm="dlq-not-empty", subject="orders",
        severity="page", at_ms=AT_MS, since_ms=AT_MS, text="1 dead letter in orders-dead", owner="fulfilment",
    ),
)  # fmt: skip


def text() -> str:
    return (ROOT / PAGE).read_text(encoding="utf-8")


def test_the_table_and_the_runbooks_are_those_of_the_list() -> None:
    assert text() == alarm_page.page(text()), "run `make reference`"


def test_what_stands_beside_them_is_left_as_it_is() -> None:
    older = re.sub(r"\| \[dlq-not-empty\].*\n", "", text()).replace("# Alarms", "# Alarm bells")
    assert alarm_page.page(older) == text().replace("# Alarms", "# Alarm bells")


def test_each_alarm_has_its_runbook_where_it_says() -> None:
    html = markdown.markdown(text(), extensions=["attr_list", "tables", "fenced_code"])
    ids = set(re.findall(r'<h3 id="([^"]+)"', html))
    assert {f"{Path(PAGE).stem}.html#{one}" for one in ids} == {one.runbook for one in alarms.ALARMS.values()}


def test_every_runbook_says_what_to_do() -> None:
    for one in alarms.ALARMS.values():
        section = text().partition(f"### {one.name} {{")[2].partition("\n### ")[0]
        for said in (one.meaning, one.causes, one.steps, one.clear, one.condition):
            assert said in section, (one.name, said)
        assert f"**First command:** `{one.command('APP', one.of.upper())}`" in section


def test_the_json_of_the_page_is_what_a_webhook_gets() -> None:
    (shown,) = [body for language, _, body in blocks(PAGE) if language == "json"]
    assert json.loads(shown) == alarm_targets.document(MESSAGE)
    assert list(json.loads(shown)) == list(alarm_targets.document(MESSAGE))


@pytest.fixture
def receiver(tmp_path: Path) -> ModuleType:
    write_files(PAGE, tmp_path)
    spec = importlib.util.spec_from_file_location("receiver", tmp_path / "receiver.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_receiver_takes_what_is_signed_and_nothing_else(
    receiver: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(alarm_targets.SECRET, "s" * 32)
    monkeypatch.setattr("time.time", lambda: AT_MS / 1000 + 200)
    with receivers.webhook() as hook:
        for _ in range(2):
            send(AlarmTargets(webhook=hook.url), MESSAGE, AT_MS)
    headers, body = hook.headers[0], hook.bodies[0]
    assert receiver.is_from_onefold(headers, body)
    assert not receiver.is_from_onefold(headers, body + b" ")
    assert not receiver.is_from_onefold({**headers, "Onefold-Timestamp": str(AT_MS // 1000 + 1)}, body)
    assert not receiver.is_from_onefold({}, body)
    monkeypatch.setenv(alarm_targets.SECRET, "t" * 32)
    assert not receiver.is_from_onefold(headers, body)
    monkeypatch.setenv(alarm_targets.SECRET, "s" * 32)
    monkeypatch.setattr("time.time", lambda: AT_MS / 1000 + 301)
    assert not receiver.is_from_onefold(headers, body), "somebody sends it again later"
    assert [receiver.is_new(one) for one in hook.headers] == [True, False]


@pytest.mark.slow
def test_the_pages_commands_do_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(PAGE, tmp_path)
    tried, looked, silenced = [body for language, _, body in blocks(PAGE) if language == "sh"]
    with receivers.webhook() as hook, receivers.mail_server() as mails:
        for name in ("SLACK_WEBHOOK_URL", "ALARM_WEBHOOK_URL"):
            monkeypatch.setenv(name, hook.url)
        server = f"export ONEFOLD_SMTP_URL={shlex.quote(mails.url)}\n"
        assert "sent to slack, webhook, email, command: 8 messages" in shell(server + tried, tmp_path)
    assert len(mails.found) == 2
    assert len(hook.bodies) == 4
    lines = (tmp_path / "alarms.jsonl").read_text().splitlines()
    assert [msgspec.json.decode(line)["kind"] for line in lines] == ["began", "ended"]
    shell("onefold send shop:app book_courier " + shlex.quote('{"order_id": "o-1", "kg": 3}'), tmp_path)
    assert "dlq-expiring" in shell(looked, tmp_path)
    assert "is not silenced any more" in shell(silenced, tmp_path)


@pytest.mark.slow
def test_the_first_hour_leads_from_the_alarm_to_its_end(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    app = tmp_path / "shop.py"
    app.write_text(re.sub(r"    (slack|webhook|email)=.*\n", "", app.read_text()), encoding="utf-8")
    now, quiet, look, why, redrive, over, lift = [body for language, _, body in blocks(HOUR) if language == "sh"]
    shell("onefold send shop:app book_courier " + shlex.quote('{"order_id": "o-1", "kg": 31}'), tmp_path)
    shell("onefold worker shop:app --until-empty --no-progress", tmp_path)
    shell("onefold watch shop:app --once", tmp_path)
    assert "dlq-not-empty of orders" in shell(now, tmp_path)
    assert "is silenced until" in shell(quiet, tmp_path)
    assert "the courier takes no parcel of 31 kg" in shell(look, tmp_path)
    assert "dead-letter queue" in shell(why, tmp_path)
    app.write_text(app.read_text().replace("> 30", "> 40"), encoding="utf-8")  # the cause
    shell(redrive.replace("--all\n", "--all --no-watch\n"), tmp_path)
    shell("onefold worker shop:app --until-empty --no-progress", tmp_path)
    assert "dlq-not-empty" in shell(over, tmp_path)
    assert "is not silenced any more" in shell(lift, tmp_path)
