"""Where reports of alarms go: Slack, any webhook, mail, a command; declared by `App.alarms`, sent by an internal job.

For each report there is one message per target on the queue `onefold-alarms`, under the key `<report> to <target>`. So
it is retried with pauses for some five hours, is dead-lettered and not lost if a target refuses it for good, and is not
sent again once its record shows that it was sent. If a process is killed between sending and recording, nobody knows:
Slack's channel is asked whether it has the report (`asked`), where the app has a token for it. To the others it is sent a
second time under the same name: a webhook gets it as `Idempotency-Key`, mail as `Message-ID`, a command in
ONEFOLD_ALARM_ID. Slack's webhooks have nothing like it, so there a message can come twice after a kill at that moment.
Never here: which reports there are. Invariants: a secret is read from the environment or a file when something is sent,
and is in no message, error, record, or environment of a command; an alarm's text is escaped for its target.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import re
import shlex
import smtplib
import socket
import subprocess
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from email.message import EmailMessage
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlencode

import msgspec
from msgspec import Struct

from onefold import errors, limits, redact
from onefold.interrupts import let_through
from onefold.observe import outbound
from onefold.observe.alarms import ALARMS
from onefold.observe.incidents import Report
from onefold.observe.wording import instant, one_line
from onefold.options import AlarmTargets, DeadLetter, Retry
from onefold.runner.declaring import declare_job, queue_of
from onefold.runner.handlers import Done, NotDone

if TYPE_CHECKING:
    from onefold.runtime.outgoing import Outgoing
    from onefold.runtime.runtime import Runtime

QUEUE: Final = "onefold-alarms"
JOB: Final = "onefold-alarm"
SECRET: Final = "ONEFOLD_ALARM_SECRET"  # noqa: S105 - the name of a variable
SMTP: Final = "ONEFOLD_SMTP_URL"
TIMEOUT_S: Final = 20  # for one whole call of a target
_RETRY: Final = Retry(attempts=40, base="2s", cap="10m", jitter="half")
_RETRY_AFTER_MS_MAX: Final = limits.HOUR_MS
_SECRET_BYTES_MAX: Final = 16 * 1024
_SLACK_TITLE_CHARS_MAX: Final = 150  # Slack, "Block Kit": header block
SLACK_API: Final = "ONEFOLD_SLACK_API"
_SLACK_API_DEFAULT: Final = "https://slack.com/api"
_SLACK_CHANNEL: Final = r"[CGD][A-Z0-9]{2,30}"
_SLACK_EVENT: Final = "onefold_alarm"  # Slack, "Using message metadata": event_type, of letters, digits and underscores
_SLACK_ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024  # a page of the channel's history
_SLACK_PAGES_MAX: Final = 10  # ours: of 100 messages, that came to the channel since the report was made
_SLACK_LATER: Final = ("ratelimited", "internal_error", "fatal_error", "service_unavailable", "request_timeout")
_HTTP: Final = ("http", "https")
_SMTP_SCHEMES: Final = ("smtp", "smtps")
_VARIABLE: Final = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
# The part of the worker's environment that a command gets: what programs need to be found, for their language, and to
# reach a server. Not a deny list: a worker's environment holds the secrets of its app, under names not known here.
_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
KEPT: Final = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR",
    *_PROXIES, *(name.lower() for name in _PROXIES),
)  # fmt: skip
_KEPT_PREFIX: Final = "LC_"
_WORDS: Final[Mapping[str, str]] = {"began": "began", "goes-on": "goes on", "ended": "ended"}


class AlarmMessage(Struct, frozen=True, kw_only=True):
    """The payload of the job that sends a report.

    Args:
        target: `slack`, `webhook`, `email` or `command`. app: the app whose alarm it is. report: what is sent.
    """

    target: str
    app: str
    report: Report


# -- declaring -------------------------------------------------------------------------------------------------------


def checked_targets(
    slack: object,
    webhook: object,
    email: object,
    command: object,
    owner: str | None,
    command_env: object = None,
    slack_channel: object = None,
) -> AlarmTargets:
    """The arguments of `App.alarms`, checked.

    Raises:
        UsageError: an invalid target; the error says what to write.
    """
    words = shlex.split(command) if isinstance(command, str) else command
    addresses = email.split(",") if isinstance(email, str) else email
    variables = command_env.split(",") if isinstance(command_env, str) else command_env
    if slack_channel is not None and not (isinstance(slack, str) and _reference(slack)):
        raise errors.UsageError(
            "alarms(slack_channel=...) is given without the place of a token.",
            meaning="With a channel, slack= says where the token of a Slack app is stored; tokens do not belong in code.",
            todo='Write slack="env:SLACK_BOT_TOKEN", slack_channel="C0123ABCD".',
        )
    if slack_channel is not None and not (
        isinstance(slack_channel, str) and re.fullmatch(_SLACK_CHANNEL, slack_channel)
    ):
        raise errors.UsageError(
            f"alarms(slack_channel={slack_channel!r:.80}) is not the id of a channel.",
            todo='Write slack_channel="C0123ABCD": Slack shows it in the details of the channel.',
        )
    return AlarmTargets(
        slack=_checked_address(slack, "slack", "env:SLACK_WEBHOOK_URL"),
        slack_channel=slack_channel,
        webhook=_checked_address(webhook, "webhook", "https://alerts.example.com/onefold"),
        email=_texts(addresses, "email", "oncall@example.com", lambda one: "@" in one and one.isprintable()),
        command=_texts(words, "command", "/usr/local/bin/notify", bool),
        command_env=_texts(variables, "command_env", "PAGER_TOKEN", lambda one: re.fullmatch(_VARIABLE, one)),
        owner=owner,
    )


def _checked_address(value: object, what: str, example: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and (outbound.url_parts(value, _HTTP) or _reference(value) is not None):
        return value
    shown = redact.shown_url(value) if isinstance(value, str) else repr(type(value))
    raise errors.UsageError(
        f"alarms({what}={shown}) is not a place to send to.",
        meaning="It is a URL, or says where the URL is kept: env:NAME or file:/PATH.",
        todo=f'Write {what}="{example}".',
    )


def _texts(value: object, what: str, example: str, fits: Callable[[str], object]) -> tuple[str, ...]:
    if value is None:
        return ()
    found = tuple(one.strip() if isinstance(one, str) else one for one in value) if isinstance(value, Sequence) else ()
    if found and all(isinstance(one, str) and fits(one) for one in found):
        return found
    raise errors.UsageError(f"alarms({what}={value!r:.80}) cannot be used.", todo=f'Write {what}="{example}".')


def declare_alarms(runtime: Runtime, targets: AlarmTargets) -> None:
    """Declare the queue and the job that send reports.

    Raises:
        ConflictError: the app has already declared where its alarms go.
    """
    registry = runtime.registry
    if registry.alarms is not None:
        raise errors.ConflictError(
            f"App {registry.name} says twice where its alarms go.", todo="Call app.alarms(...) once, with all targets."
        )
    queue = registry.add_queue(queue_of(QUEUE, internal=True, function=None, dead_letter=DeadLetter(after=100)))

    def send_alarm(message: AlarmMessage) -> dict[str, str]:
        send(targets, message, runtime.now_ms())
        return {"sent": message.target}

    def asked_target(message: AlarmMessage) -> Done | NotDone:
        return Done({"sent": message.target}) if asked(targets, message) else NotDone()

    job = declare_job(
        runtime, queue, key=_key_of, name=JOB, timeout="2m", retry=_RETRY, on_unknown=asked_target, owner=targets.owner
    )
    job(send_alarm)
    registry.alarms = targets


def names(targets: AlarmTargets) -> list[str]:
    """The names of the targets that are given."""
    given = {"slack": targets.slack, "webhook": targets.webhook, "email": targets.email, "command": targets.command}
    return [name for name, value in given.items() if value]


def unreadable(targets: AlarmTargets) -> list[str]:
    """Warnings that this process cannot send reports, for each variable or file that should name a target and does not."""
    found = []
    try:
        if targets.slack and targets.slack_channel is not None:
            value_of(targets.slack, "The token of slack")
        elif targets.slack:
            _url(targets.slack, "slack")
    except errors.PermanentError as error:
        found.append(error.what)
    try:
        if targets.webhook:
            _url(targets.webhook, "webhook")
    except errors.PermanentError as error:
        found.append(error.what)
    return [f"{one} Reports of alarms cannot be sent." for one in found]


def outgoing(runtime: Runtime, targets: AlarmTargets, report: Report) -> list[Outgoing]:
    """The messages that send a report, one for each target."""
    job = runtime.registry.jobs[JOB]
    app = runtime.registry.name
    return [job.outgoing(AlarmMessage(target=name, app=app, report=report)) for name in names(targets)]


def _key_of(message: AlarmMessage) -> str:
    return f"{message.report.id} to {message.target}"


# -- what is sent ----------------------------------------------------------------------------------------------------


def send(targets: AlarmTargets, message: AlarmMessage, now_ms: int) -> None:
    """Send one report to one target.

    Args:
        now_ms: wall time; part of the signature.

    Raises:
        TransientError: the target did not accept it now. PermanentError: it never will, unless something is changed.
    """
    {"slack": _slack, "webhook": _webhook, "email": _mail, "command": _command}[message.target](
        targets, message, now_ms
    )


def document(message: AlarmMessage) -> dict[str, Any]:
    """A report as webhooks and commands get it."""
    report = message.report
    alarm = ALARMS.get(report.alarm)
    return {
        "id": report.id,
        "incident": report.incident,
        "number": report.number,
        "kind": report.kind,
        "app": message.app,
        "alarm": report.alarm,
        "subject": report.subject,
        "severity": report.severity,
        "text": report.text,
        "at": instant(report.at_ms),
        "since": instant(report.since_ms),
        "owner": report.owner,
        "meaning": alarm.meaning if alarm is not None else "",
        "first": alarm.command("APP", report.subject) if alarm is not None else "",
        "runbook": alarm.runbook if alarm is not None else "",
        "drill": report.drill,
    }


def title(message: AlarmMessage) -> str:
    """`PAGE began: dlq-not-empty of orders (shop)`, in one line."""
    report = message.report
    drill = "TEST, " if report.drill else ""
    said = f"{drill}{report.severity.upper()} {_WORDS[report.kind]}: {report.alarm} of {report.subject} ({message.app})"
    return one_line(said, _SLACK_TITLE_CHARS_MAX)


def slack_message(message: AlarmMessage) -> dict[str, Any]:
    """A report as a message with blocks (Slack, "Block Kit")."""
    facts = document(message)
    fields = [("Value", facts["text"]), ("Since", facts["since"]), ("Owner", facts["owner"] or "nobody named")]
    return {
        "text": _escaped(title(message)),
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": title(message), "emoji": False}},
            {
                "type": "section",
                "fields": [
                    {"type": "mrkdwn", "text": f"*{name}*\n{_escaped(one_line(value))}"} for name, value in fields
                ],
            },
            {
                "type": "section",
                "text": {"type": "mrkdwn", "text": f"{_escaped(facts['meaning'])}\n```{_escaped(facts['first'])}```"},
            },
            {"type": "context", "elements": [{"type": "mrkdwn", "text": _escaped(facts["id"])}]},
        ],
    }


def _escaped(text: str) -> str:
    """Slack, "Formatting text for app surfaces": these three, so that no name becomes a link or calls a person."""
    shown = redact.printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return shown.replace("`", "'")


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """The value of the header `Onefold-Signature`.

    Args:
        timestamp: seconds since the epoch, as in `Onefold-Timestamp`.
    """
    text = str(timestamp).encode() + b"." + body
    return f"v1={hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()}"


def _slack(targets: AlarmTargets, message: AlarmMessage, _now_ms: int) -> None:
    if targets.slack_channel is None:
        _post(_url(targets.slack, "slack"), msgspec.json.encode(slack_message(message)), {}, "Slack")
        return
    metadata = {"event_type": _SLACK_EVENT, "event_payload": {"id": message.report.id}}
    said = {**slack_message(message), "channel": targets.slack_channel, "metadata": metadata, "unfurl_links": False}
    _call_slack(targets, "chat.postMessage", msgspec.json.encode(said), "application/json; charset=utf-8")


def asked(targets: AlarmTargets, message: AlarmMessage) -> bool:
    """Whether a target has a report of which nobody knows; False too if the target cannot be asked: it is sent again.

    Slack's history of the channel is read from a minute before the report was made (methods `chat.postMessage` and
    `conversations.history`, argument `include_all_metadata`).

    Raises:
        TransientError: Slack cannot be asked now.
    """
    if message.target != "slack" or targets.slack_channel is None:
        return False
    since_s = (message.report.at_ms - limits.MINUTE_MS) // limits.SECOND_MS
    wanted = {"channel": targets.slack_channel, "oldest": str(since_s), "include_all_metadata": "true", "limit": "100"}
    cursor = ""
    for _ in range(_SLACK_PAGES_MAX):
        form = urlencode({**wanted, "cursor": cursor} if cursor else wanted).encode()
        try:
            page = _call_slack(targets, "conversations.history", form, "application/x-www-form-urlencoded")
        except errors.OutcomeUnknown as error:
            raise errors.TransientError(f"It is not known whether Slack has the report. {error.what}") from None
        except errors.PermanentError:  # no right to read the channel: twice is better than never
            return False
        for one in page.messages:
            if one.metadata.event_type == _SLACK_EVENT and one.metadata.event_payload.get("id") == message.report.id:
                return True
        cursor = page.response_metadata.next_cursor
        if not cursor:
            return False
    return False


class _Metadata(Struct):
    event_type: str = ""
    event_payload: dict[str, Any] = {}


class _SlackMessage(Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Cursor(Struct):
    next_cursor: str = ""


class _SlackAnswer(Struct):
    ok: bool
    error: str = ""
    messages: list[_SlackMessage] = []
    response_metadata: _Cursor = msgspec.field(default_factory=_Cursor)


def _call_slack(targets: AlarmTargets, method: str, body: bytes, content_type: str) -> _SlackAnswer:
    """Call a method of Slack's Web API.

    Raises:
        TransientError, PermanentError: Slack refuses it, for now or for good. OutcomeUnknown: no answer came.
    """
    base = value_of(os.environ.get(SLACK_API, _SLACK_API_DEFAULT), SLACK_API)
    if outbound.url_parts(base, _HTTP) is None:
        raise errors.PermanentError(f"{SLACK_API} is not an http(s) URL.", todo="Leave it out for slack.com.")
    token = value_of(targets.slack or "", "The token of slack")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": content_type}
    try:
        status, after, read = outbound.post(
            f"{base.rstrip('/')}/{method}", body, headers, TIMEOUT_S, most=_SLACK_ANSWER_BYTES_MAX
        )
    except (OSError, ValueError, http.client.HTTPException) as error:
        let_through(error)
        if isinstance(error, urllib.error.URLError) and isinstance(
            error.reason, ConnectionRefusedError | socket.gaierror
        ):
            raise errors.TransientError(f"Slack cannot be reached: {type(error).__name__}.") from None
        raise errors.OutcomeUnknown(f"Slack did not answer {method}: {type(error).__name__}.") from None
    if status >= 500:
        raise errors.OutcomeUnknown(f"Slack answers {method} with status {status}.")
    _check_status(status, after, "Slack")
    try:
        answer = msgspec.json.decode(read, type=_SlackAnswer)
    except msgspec.MsgspecError:
        raise errors.OutcomeUnknown(f"Slack's answer to {method} is not JSON of the expected form.") from None
    if answer.ok:
        return answer
    if answer.error in _SLACK_LATER:
        raise errors.TransientError(f"Slack refuses {method} for now: {answer.error}.")
    raise errors.PermanentError(
        f"Slack refuses {method}: {answer.error:.100}.",
        todo="Check the token, the channel's id, that the app is in the channel, and its scopes: chat:write, and for the"
        " channel's kind channels:history or groups:history. Then: onefold dlq redrive.",
    )


def _webhook(targets: AlarmTargets, message: AlarmMessage, now_ms: int) -> None:
    body = msgspec.json.encode(document(message))
    headers = {"Idempotency-Key": _ascii(message.report.id)}
    secret = value_of(os.environ.get(SECRET, ""), SECRET)
    if secret:
        timestamp = now_ms // limits.SECOND_MS
        headers |= {"Onefold-Timestamp": str(timestamp), "Onefold-Signature": signature(secret, timestamp, body)}
    _post(_url(targets.webhook, "webhook"), body, headers, "The webhook")


def _ascii(text: str) -> str:
    return text if text.isascii() and text.isprintable() else hashlib.sha256(text.encode()).hexdigest()


def _mail(targets: AlarmTargets, message: AlarmMessage, now_ms: int) -> None:
    parts = outbound.url_parts(value_of(os.environ.get(SMTP, "smtp://localhost:25"), SMTP), _SMTP_SCHEMES)
    if parts is None:
        raise errors.PermanentError(
            f"{SMTP} is not the URL of a mail server.", todo="Write smtp://USER:PASSWORD@HOST:587 or smtps://HOST."
        )
    host = parts.hostname
    facts, mail = document(message), EmailMessage()
    sender = parse_qs(parts.query).get("from", [f"onefold@{host}"])[0]
    try:
        mail["Subject"], mail["From"], mail["To"] = title(message), sender, ", ".join(targets.email)
    except (ValueError, IndexError) as error:  # a line end in `from=`, or an address that it cannot write
        raise errors.PermanentError(
            f"The addresses of the report cannot be written into a mail: {type(error).__name__}.",
            todo=f"Check {SMTP}, its option from, and the addresses of app.alarms(email=...).",
        ) from None
    mail["Date"] = formatdate(now_ms / limits.SECOND_MS)
    mail["Message-ID"] = f"<{hashlib.sha256(message.report.id.encode()).hexdigest()[:32]}@onefold.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content("".join(f"{name}: {redact.printable(str(value))}\n" for name, value in facts.items()))
    try:
        refused = outbound.mail(parts, mail, TIMEOUT_S)
    except outbound.UnsafeServerError:
        raise errors.PermanentError(
            f"The mail server {host} offers no STARTTLS.",
            meaning=f"The password of {SMTP} would cross the network in clear. Nothing was sent.",
            todo="Use a server with STARTTLS or smtps://, or leave the password out.",
        ) from None
    except (OSError, smtplib.SMTPException) as error:
        let_through(error)
        if outbound.is_refusal(error):
            raise errors.PermanentError(
                f"The mail server {host} refuses the report: {type(error).__name__}.",
                todo=f"Check {SMTP} and the addresses.",
            ) from None
        raise errors.TransientError(
            f"The mail server {host} did not take the report: {type(error).__name__}."
        ) from None
    if refused:  # the other addresses have it, and a retry would send it to them twice
        raise errors.PermanentError(
            f"The mail server {host} refuses {refused} of {len(targets.email)} addresses.", todo="Correct them."
        )


def _command(targets: AlarmTargets, message: AlarmMessage, _now_ms: int) -> None:
    report, program = message.report, targets.command[0]
    about = {
        "ID": report.id,
        "NAME": report.alarm,
        "SUBJECT": report.subject,
        "SEVERITY": report.severity,
        "KIND": report.kind,
    }
    environment = environment_of(targets, os.environ)
    environment |= {f"ONEFOLD_ALARM_{name}": value.replace("\0", "") for name, value in about.items()}
    try:
        code = outbound.run(targets.command, msgspec.json.encode(document(message)), environment, TIMEOUT_S)
    except FileNotFoundError:
        raise errors.PermanentError(f"There is no program {program!r:.200}.", todo="Write its whole path.") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        let_through(error)
        raise errors.TransientError(f"{program!r:.200} did not end well: {type(error).__name__}.") from None
    if code:
        raise errors.TransientError(f"{program!r:.200} ended with code {code}.")


def environment_of(targets: AlarmTargets, whole: Mapping[str, str]) -> dict[str, str]:
    """The part of a worker's environment that a command can see: `KEPT`, the language, and what the app names.

    Args:
        whole: the worker's environment.
    """
    wanted = {*KEPT, *targets.command_env}
    return {name: value for name, value in whole.items() if name in wanted or name.startswith(_KEPT_PREFIX)}


# -- secrets and HTTP ------------------------------------------------------------------------------------------------


def _reference(value: str) -> tuple[str, str] | None:
    kind, _, where = value.partition(":")
    return (kind, where) if kind in ("env", "file") and where else None


def value_of(value: str, what: str) -> str:
    """The value itself, or the content of the variable or file that it names: `env:NAME`, `file:/PATH`.

    Raises:
        PermanentError: the variable or file does not exist, cannot be read, or is empty.
    """
    found = _reference(value)
    if found is None:
        return value
    kind, where = found
    if kind == "env":
        read = os.environ.get(where, "")
    else:
        try:
            with open(where, "rb") as file:
                read = file.read(_SECRET_BYTES_MAX).decode()
        except (OSError, ValueError):
            read = ""
    if not read.strip():
        raise errors.PermanentError(
            f"{what} is to be read from {kind}:{where:.200}, and nothing is there.",
            todo="Set it where the worker runs, then redrive the report: onefold dlq redrive.",
        )
    return read.strip()


def _url(value: str | None, what: str) -> str:
    url = value_of(value or "", f"The URL of {what}")
    if outbound.url_parts(url, _HTTP) is None:
        raise errors.PermanentError(f"What {what} names is not an http(s) URL.", todo="Check the variable or file.")
    return url


def _post(url: str, body: bytes, headers: Mapping[str, str], who: str) -> None:
    try:
        answer = outbound.post(url, body, {"Content-Type": "application/json", **headers}, TIMEOUT_S)
    except (OSError, ValueError, http.client.HTTPException) as error:  # its text may hold the URL
        let_through(error)
        raise errors.TransientError(f"{who} cannot be reached: {type(error).__name__}.") from None
    _check_status(answer.status, answer.retry_after, who)


def _check_status(status: int, after: str, who: str) -> None:
    if 200 <= status < 300:
        return
    if status not in (408, 425, 429) and status < 500:
        raise errors.PermanentError(
            f"{who} refuses the report with status {status}.", todo="Check its URL, then: onefold dlq redrive."
        )
    wait_ms = int(after) * limits.SECOND_MS if after.isascii() and after.isdecimal() and len(after) < 8 else None
    raise errors.TransientError(
        f"{who} answers with status {status}.",
        retry_in_ms=None if wait_ms is None else min(wait_ms, _RETRY_AFTER_MS_MAX),
    )
