"""Where reports of alarms go: what each target gets, what is tried again, what is signed, escaped and kept secret."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.observe import alarm_targets, outbound
from onefold.observe.alarm_targets import AlarmMessage, asked, checked_targets, send
from onefold.observe.incidents import Report
from onefold.options import AlarmTargets
from onefold.testing.alarm_drills import drill
from tests.observe import receivers
from tests.observe.receivers import Mails, SlackApi, Webhook

NOW_MS = 1_767_225_600_000


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with receivers.webhook() as made:
        yield made


@pytest.fixture
def mails(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mails]:
    with receivers.mail_server() as made:
        monkeypatch.setenv(alarm_targets.SMTP, made.url)
        yield made


def message(target: str, **changes: Any) -> AlarmMessage:
    facts: dict[str, Any] = {
        "incident": "dlq-not-empty/orders/1", "number": 1, "kind": "began", "alarm": "dlq-not-empty", "subject": "orders",
        "severity": "page", "at_ms": NOW_MS, "since_ms": NOW_MS, "text": "1 dead letter in orders-dead", "owner": "billing",
    }  # fmt: skip
    return AlarmMessage(target=target, app="shop", report=Report(**{**facts, **changes}))


def test_every_target_of_an_app_gets_each_report_once(
    hook: Webhook, mails: Mails, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACK_WEBHOOK_URL", hook.url)
    script = "import sys, os; open(sys.argv[1], 'a').write(os.environ['ONEFOLD_ALARM_ID'] + '\\n')"
    targets = checked_targets(
        "env:SLACK_WEBHOOK_URL", hook.url, "a@example.com, b@example.com",
        [sys.executable, "-c", script, str(tmp_path / "ids")], "billing",
    )  # fmt: skip
    result = drill("held-not-empty", targets)
    assert [one.kind for one in result.reports] == ["began", "ended"]
    ids = [one.id for one in result.reports]
    assert result.sent == 4 * len(ids)
    assert (tmp_path / "ids").read_text().split("\n")[:-1] == ids
    assert [str(one["Subject"]).split(":")[0] for one in mails.found] == ["TEST, TICKET began", "TEST, TICKET ended"]
    assert all(one["To"] == "a@example.com, b@example.com" for one in mails.found)
    documents = [one for one in hook.documents() if "id" in one]
    assert [(one["id"], one["drill"], one["owner"]) for one in documents] == [(one, True, "billing") for one in ids]
    slack = [one for one in hook.documents() if "blocks" in one]
    assert len(slack) == len(ids)
    assert slack[0]["blocks"][0]["text"]["text"] == "TEST, TICKET began: held-not-empty of drill (drill)"


# -- a channel of Slack that can be asked ------------------------------------------------------------------------------

CHANNEL = AlarmTargets(slack="env:SLACK_BOT_TOKEN", slack_channel="C0123ABCD")


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlackApi]:
    with receivers.slack_api() as made:
        monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-1")
        monkeypatch.setenv(alarm_targets.SLACK_API, made.url)
        yield made


def test_a_channel_is_asked_for_the_reports_name_page_by_page(slack: SlackApi) -> None:
    assert not asked(CHANNEL, message("slack"))
    send(CHANNEL, message("slack"), NOW_MS)
    (posted,) = slack.messages
    assert (posted["channel"], posted["unfurl_links"]) == ("C0123ABCD", False)
    assert posted["blocks"][0]["text"]["text"].startswith("PAGE began: dlq-not-empty of orders")
    slack.messages += [{"text": "of a person"}] * 4  # newer, so that it is on the second page of three
    slack.messages[2] = {"text": "of another app", "metadata": {"event_type": "deploy", "event_payload": {"id": "x"}}}
    slack.asked.clear()
    assert asked(CHANNEL, message("slack"))
    assert [one.get("cursor") for one in slack.asked] == [None, "3"]
    assert slack.asked[0]["oldest"] == str(NOW_MS // 1_000 - 60)
    assert not asked(CHANNEL, message("slack", number=2))
    assert not asked(AlarmTargets(slack="env:HOOK"), message("slack")), "a webhook cannot be asked"
    assert not asked(CHANNEL, message("webhook"))


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ((200, {"ok": False, "error": "channel_not_found"}), errors.PermanentError, "channel_not_found.*chat:write"),
        ((200, {"ok": False, "error": "ratelimited"}), errors.TransientError, "for now: ratelimited"),
        ((429, {}), errors.TransientError, "status 429"),
        ((503, {}), errors.OutcomeUnknown, "status 503"),  # it may have been posted: the channel is asked
        ((200, {"strange": True}), errors.OutcomeUnknown, "not JSON of the expected form"),
    ],
)
def test_what_slack_answers_decides(
    slack: SlackApi, answer: tuple[int, dict[str, Any]], error: type[Exception], said: str
) -> None:
    slack.answers = [answer]
    with pytest.raises(error, match=f"(?s){said}"):
        send(CHANNEL, message("slack"), NOW_MS)
    assert slack.messages == []


def test_a_channel_that_cannot_be_asked_is_asked_later_or_sent_to_again(
    slack: SlackApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    slack.answers = [(200, {"ok": False, "error": "missing_scope"})]
    assert not asked(CHANNEL, message("slack"))
    slack.answers = [(500, {})]
    with pytest.raises(errors.TransientError, match="not known whether Slack has the report"):
        asked(CHANNEL, message("slack"))
    slack.close()
    with pytest.raises(errors.TransientError, match="cannot be reached"):  # refused: it has nothing
        send(CHANNEL, message("slack"), NOW_MS)
    monkeypatch.setenv(alarm_targets.SLACK_API, "ftp://slack")
    with pytest.raises(errors.PermanentError, match="ONEFOLD_SLACK_API is not"):
        send(CHANNEL, message("slack"), NOW_MS)
    monkeypatch.delenv("SLACK_BOT_TOKEN")
    monkeypatch.delenv(alarm_targets.SLACK_API)
    with pytest.raises(errors.PermanentError, match="env:SLACK_BOT_TOKEN, and nothing is there"):
        send(CHANNEL, message("slack"), NOW_MS)


@pytest.mark.parametrize(
    ("slack", "channel", "said"),
    [
        (None, "C0123ABCD", "without the place of a token"),
        ("https://hooks.slack.com/x", "C0123ABCD", "without the place of a token"),
        ("xoxb-1", "C0123ABCD", "without the place of a token"),
        ("env:SLACK_BOT_TOKEN", "#alerts", "is not the id of a channel"),
        ("env:SLACK_BOT_TOKEN", 5, "is not the id of a channel"),
    ],
)
def test_a_channel_needs_its_id_and_the_place_of_a_token(slack: Any, channel: Any, said: str) -> None:
    with pytest.raises(errors.UsageError, match=said) as caught:
        onefold.App("shop").alarms(slack=slack, slack_channel=channel)
    assert "xoxb-1" not in str(caught.value)


# -- webhooks --------------------------------------------------------------------------------------------------------


def test_a_webhook_can_check_who_sent_and_when(hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(alarm_targets.SECRET, "s" * 32)
    send(AlarmTargets(webhook=hook.url), message("webhook"), NOW_MS)
    headers, body = hook.headers[0], hook.bodies[0]
    assert headers["Onefold-Timestamp"] == str(NOW_MS // 1000)
    signed = headers["Onefold-Timestamp"].encode() + b"." + body
    assert headers["Onefold-Signature"] == "v1=" + hmac.new(b"s" * 32, signed, hashlib.sha256).hexdigest()
    assert headers["Idempotency-Key"] == "dlq-not-empty/orders/1#1"
    document = json.loads(body)
    assert document["first"] == "onefold dlq list APP"
    assert document["runbook"] == "alarms.html#dlq-not-empty"
    assert b"sss" not in body


def test_without_a_secret_nothing_claims_to_be_signed(hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(alarm_targets.SECRET, raising=False)
    send(AlarmTargets(webhook=hook.url), message("webhook", incident="stalled/bücher/1"), NOW_MS)
    assert "Onefold-Signature" not in hook.headers[0]
    assert len(hook.headers[0]["Idempotency-Key"]) == 64  # a header takes no umlauts


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_an_answer_that_may_pass_is_tried_again(hook: Webhook, status: int) -> None:
    hook.answers = [(status, {"Retry-After": "17"})]
    with pytest.raises(errors.TransientError, match=f"status {status}") as caught:
        send(AlarmTargets(webhook=hook.url), message("webhook"), NOW_MS)
    assert caught.value.retry_in_ms == 17_000


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 404, 410])
def test_a_refusal_is_for_a_person_and_nothing_is_followed(hook: Webhook, status: int) -> None:
    hook.answers = [(status, {"Location": hook.url})]
    with pytest.raises(errors.PermanentError, match=f"status {status}"):
        send(AlarmTargets(webhook=hook.url), message("webhook"), NOW_MS)
    assert len(hook.bodies) == 1


@pytest.mark.parametrize("after", ["soon", "-1", "9" * 30, ""])
def test_a_retry_after_that_is_no_number_is_left_to_the_policy(hook: Webhook, after: str) -> None:
    hook.answers = [(503, {"Retry-After": after})]
    with pytest.raises(errors.TransientError) as caught:
        send(AlarmTargets(webhook=hook.url), message("webhook"), NOW_MS)
    assert caught.value.retry_in_ms is None


def test_nobody_there_is_tried_again_and_the_url_is_not_in_the_error(hook: Webhook) -> None:
    hook.close()
    with pytest.raises(errors.TransientError, match="cannot be reached") as caught:
        send(AlarmTargets(slack=hook.url + "/T0/B0/hidden-token"), message("slack"), NOW_MS)
    assert "hidden" not in str(caught.value)
    hook.__init__()  # type: ignore[misc]  # for the fixture's end


def test_what_is_down_for_a_while_gets_its_report_afterwards(hook: Webhook) -> None:
    hook.answers = [(503, {})] * 5
    result = drill("dlq-not-empty", AlarmTargets(webhook=hook.url))
    assert [one["id"] for one in hook.documents()[-1:]] == [result.reports[-1].id]
    assert {one["id"] for one in hook.documents()} == {one.id for one in result.reports}


# -- Slack, mail, a command ------------------------------------------------------------------------------------------


def test_a_name_can_neither_call_nor_link_nor_end_the_code_in_slack(hook: Webhook) -> None:
    evil = "<!channel>`</>\u202e&"
    send(AlarmTargets(slack=hook.url), message("slack", subject=evil, text=evil, owner=evil), NOW_MS)
    (document,) = hook.documents()
    header, *rest = document["blocks"]
    assert header["text"]["type"] == "plain_text"  # where nothing is a link
    text = json.dumps([document["text"], rest], ensure_ascii=False)
    assert "<" not in text
    assert "&lt;!channel&gt;'&lt;/&gt;" in text
    assert "\u202e" not in hook.bodies[0].decode()


def test_a_mail_has_one_name_and_no_lines_of_a_stranger(mails: Mails) -> None:
    evil = "orders\nBcc: thief@example.com"
    for _ in range(2):
        send(AlarmTargets(email=("a@example.com",)), message("email", subject=evil), NOW_MS)
    first, second = mails.found
    assert first["Message-ID"] == second["Message-ID"]
    assert first["Bcc"] is None
    assert "Bcc: thief" in str(first["Subject"])
    assert first["From"] == "onefold@example.com"
    assert "first: onefold dlq list APP" in first.get_payload()


def test_a_mail_server_that_is_busy_is_asked_again(mails: Mails) -> None:
    mails.refuses = 1
    with pytest.raises(errors.TransientError, match="did not take"):
        send(AlarmTargets(email=("a@example.com",)), message("email"), NOW_MS)
    send(AlarmTargets(email=("a@example.com",)), message("email"), NOW_MS)
    assert len(mails.found) == 1


def test_a_password_never_crosses_the_network_in_clear(mails: Mails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(alarm_targets.SMTP, mails.url.replace("//", "//user:pass@"))
    monkeypatch.setattr(outbound, "_HERE", ())
    with pytest.raises(errors.PermanentError, match="offers no STARTTLS"):
        send(AlarmTargets(email=("a@example.com",)), message("email"), NOW_MS)
    assert mails.found == []


@pytest.mark.parametrize("url", ["http://x", "smtp://", "smtp://host:port", "nothing"])
def test_a_mail_server_that_is_none(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv(alarm_targets.SMTP, url)
    with pytest.raises(errors.PermanentError, match="is not the URL of a mail server"):
        send(AlarmTargets(email=("a@example.com",)), message("email"), NOW_MS)


def test_a_sender_that_would_add_a_header_is_refused(mails: Mails, monkeypatch: pytest.MonkeyPatch) -> None:
    url = mails.url.partition("?")[0]
    monkeypatch.setenv(alarm_targets.SMTP, f"{url}?from=a@example.com%0ABcc:%20b@example.com")
    with pytest.raises(errors.PermanentError, match="cannot be written into a mail"):
        send(AlarmTargets(email=("a@example.com",)), message("email"), NOW_MS)
    assert mails.found == []


def test_a_command_gets_the_report_and_not_the_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (alarm_targets.SECRET, alarm_targets.SMTP, "ONEFOLD_SECRET", "ONEFOLD_WEB_TOKEN", "HOOK"):
        monkeypatch.setenv(name, "s" * 32)
    script = "import sys, os, json; json.dump([json.load(sys.stdin), dict(os.environ)], open(sys.argv[1], 'w'))"
    command = (sys.executable, "-c", script, str(tmp_path / "got"))
    send(AlarmTargets(webhook="env:HOOK", command=command), message("command"), NOW_MS)
    document, environment = json.loads((tmp_path / "got").read_text())
    assert document["id"] == environment["ONEFOLD_ALARM_ID"] == "dlq-not-empty/orders/1#1"
    assert environment["ONEFOLD_ALARM_SEVERITY"] == "page"
    assert environment["PATH"] == os.environ["PATH"]
    assert "s" * 32 not in environment.values()


def test_a_command_that_fails_is_tried_again_and_one_that_is_not_there_is_not() -> None:
    with pytest.raises(errors.TransientError, match="ended with code 3"):
        send(AlarmTargets(command=(sys.executable, "-c", "raise SystemExit(3)")), message("command"), NOW_MS)
    with pytest.raises(errors.PermanentError, match="There is no program"):
        send(AlarmTargets(command=("/nowhere/notify",)), message("command"), NOW_MS)


# -- what is declared ------------------------------------------------------------------------------------------------


def test_a_secret_is_read_when_it_is_needed(hook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "url").write_text(f"{hook.url}\n")
    send(AlarmTargets(slack=f"file:{tmp_path}/url"), message("slack"), NOW_MS)
    assert len(hook.bodies) == 1
    monkeypatch.delenv("NOT_THERE", raising=False)
    for place in ("env:NOT_THERE", f"file:{tmp_path}/none"):
        with pytest.raises(errors.PermanentError, match="nothing is there"):
            send(AlarmTargets(slack=place), message("slack"), NOW_MS)
    monkeypatch.setenv("NOT_THERE", "hello")
    with pytest.raises(errors.PermanentError, match="not an http"):
        send(AlarmTargets(slack="env:NOT_THERE"), message("slack"), NOW_MS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"slack": "hooks.slack.com/x"}, "slack="),
        ({"slack": 7}, "slack="),
        ({"webhook": "ftp://x"}, "webhook="),
        ({"webhook": "env:"}, "webhook="),
        ({"email": "oncall"}, "email="),
        ({"email": ["a@b", 3]}, "email="),
        ({"email": "a@b\nBcc: c@d"}, "email="),
        ({"command": ""}, "command="),
        ({"command": 3}, "command="),
        ({"command": "x", "command_env": "A=B"}, "command_env="),
        ({"webhook": "http://[::1"}, "webhook="),
        ({"owner": ""}, "owner"),
        ({"pager": "x"}, "pager"),
    ],
)
def test_what_cannot_be_sent_to_is_refused_and_declares_nothing(given: dict[str, Any], said: str) -> None:
    app = onefold.App("shop")
    with pytest.raises(errors.UsageError, match=said):
        app.alarms(**given)
    assert app.registry.alarms is None
    assert app.queues == {}


def test_a_url_with_a_secret_is_not_quoted_in_an_error() -> None:
    with pytest.raises(errors.UsageError) as caught:
        onefold.App("shop").alarms(slack="htps://user:hidden-word@hooks.example.com/T0")
    assert "hidden" not in str(caught.value)


def test_an_app_says_once_where_its_alarms_go() -> None:
    app = onefold.App("shop")
    app.alarms(command="logger -t alarms", owner="billing")
    assert app.registry.alarms == AlarmTargets(command=("logger", "-t", "alarms"), owner="billing")
    assert sorted(app.queues) == [alarm_targets.QUEUE]
    with pytest.raises(errors.ConflictError, match="twice"):
        app.alarms(email="a@example.com")
