"""The fields of log lines: each event's details are in the table, loggers of all kinds take them, and keys are hashed."""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

import onefold
from onefold.contracts.ledger import COUNT_PREFIX
from onefold.contracts.store import RecordKey
from onefold.observe import log_fields
from onefold.observe.log_fields import FIELDS, PRIVATE, fields_of, json_line, plain_line
from onefold.observe.sinks import LogSink
from onefold.runner.worker_setup import _engine_location
from onefold.runtime.events import EVENTS, Event
from tests.docs.test_pages import environment, shell, write_files

SRC = Path(onefold.__file__).parent
MAKERS = {"Note", "Event", "of_process", "of_run", "event", "report", "report_own", "_emit", "waits_for_job"}
TRACE = "\n".join(
    [
        "Traceback (most recent call last):",
        *(f'  File "/srv/shop/step{number}.py", line {number}, in step' for number in range(20)),
        "ValueError: no such order",
        "    line two",
    ]
)
EVENT = Event(
    at_ms=0,
    name="dead-letter",
    key=RecordKey("acme", "ship", "o-17"),
    queue="orders",
    message_id="m-1",
    group="customer-9",
    took_ms=12,
    request_id="r-1",
    detail={"reason": "attempts", "error": "ValueError", "summary": "no such order [+1 line]", "where": "a.py:1 in x",
            "trace": TRACE, "count.parcels": 2},
)  # fmt: skip


def details(tree: ast.AST) -> Iterator[str]:
    """Names in dictionaries that are made into an event's detail."""
    for node in ast.walk(tree):
        made: list[ast.expr] = []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            made = [*node.args] if name in MAKERS else []
            made += [one.value for one in node.keywords if one.arg in ("detail", "about")]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Name) and "detail" in one.id for one in targets):
                made = [node.value]
        for one in made:
            for found in ast.walk(one):
                if isinstance(found, ast.Dict):
                    yield from (str(key.value) for key in found.keys if isinstance(key, ast.Constant))


def test_every_detail_that_the_code_writes_is_a_field() -> None:
    rooms = [path for path in SRC.rglob("*.py") if path.relative_to(SRC).parts[0] not in ("engines", "testing")]
    rooms.remove(SRC / "observe" / "timeline.py")  # these make rows of the history, which are no events
    found = {name for path in rooms for name in details(ast.parse(path.read_text(encoding="utf-8")))}
    assert {"attempt", "summary", "late_ms", "lease_left_ms", "given_back", "place"} <= found  # it finds what is there
    named = {log_fields._RENAMED.get(name, name) for name in found if not name.startswith(COUNT_PREFIX)}
    assert not named - FIELDS.keys()


def test_a_line_has_its_fields_in_the_order_of_the_table_whatever_the_event() -> None:
    for name in EVENTS:
        fields = fields_of(Event(at_ms=0, name=name, detail={"from": "w-2", "thread": "t", "why": "y", "count": 1}))
        assert list(fields) == [one for one in FIELDS if one in fields]
        assert (fields["event"], fields["level"]) == (name, EVENTS[name].severity)


def test_no_field_is_named_like_something_that_a_log_record_has_itself() -> None:
    taken = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "_record", "_from_structlog"}
    assert not taken & FIELDS.keys()


def test_keys_tenants_and_groups_are_hashes_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed, shown = fields_of(EVENT), fields_of(EVENT, keys="shown")
    assert [shown[name] for name in PRIVATE] == ["o-17", "acme", "customer-9"]
    digest = hashlib.sha256(b"o-17").hexdigest()[:16]  # as `printf %s o-17 | sha256sum | cut -c1-16` says
    assert hashed["key"] == f"sha256:{digest}"
    for line in (json_line(hashed), plain_line(hashed)):
        assert digest in line
        assert not any(name in line for name in ("o-17", "acme", "customer-9"))
    assert written(LogSink) == [json_line(hashed)]
    monkeypatch.setenv("ONEFOLD_LOG_KEYS", "shown")
    assert written(LogSink) == [json_line(shown)]
    assert written(LogSink, keys="hashed") == [json_line(hashed)]
    monkeypatch.setenv("ONEFOLD_LOG_KEYS", "all")
    with pytest.raises(onefold.errors.UsageError, match=r"ONEFOLD_LOG_KEYS='all' is not known.*hashed .* or shown"):
        LogSink()


def written(make: Any, **settings: object) -> list[str]:
    """What a sink writes of EVENT."""
    records: list[logging.LogRecord] = []
    logger = logging.getLogger("onefold-test-fields")
    logger.handlers, logger.propagate = [handler := logging.Handler()], False
    logger.setLevel(logging.DEBUG)
    handler.emit = records.append  # type: ignore[method-assign,assignment]
    make(logger, **settings).emit(EVENT)
    return [one.getMessage() for one in records]


def test_an_error_in_words_has_its_place_its_text_and_its_last_frames() -> None:
    line = plain_line(fields_of(EVENT, keys="shown"))
    assert line == (
        "1970-01-01T00:00:00.000Z ERROR dead-letter ship acme/o-17 on orders message m-1: rule=attempts, error=ValueError, "
        "summary=no such order | line two, where=a.py:1 in x, duration_ms=12, counts={'parcels': 2}, frames="
        + " > ".join(f"step{number}.py:{number} in step" for number in range(12, 20))
    )
    retry = Event(at_ms=0, name="retry", detail=EVENT.detail)
    assert "frames" not in plain_line(fields_of(retry))
    assert "trace" in fields_of(retry)


def test_a_sink_names_its_app_and_none_where_there_are_several() -> None:
    sink = LogSink(logging.getLogger("onefold-test-apps"))
    onefold.App("shop", sinks=[sink])
    assert sink._base == {"app": "shop"}
    onefold.App("shop", sinks=[sink])
    assert sink._base == {"app": "shop"}
    onefold.App("billing", sinks=[sink])
    assert sink._base == {}


def test_lines_of_a_function_say_where_its_log_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "shop-orders")
    monkeypatch.setenv("AWS_LAMBDA_LOG_STREAM_NAME", "2026/11/23/[1]abc")
    (line,) = written(LogSink)
    said = json.loads(line)
    assert (said["function"], said["log_stream"], said["aws_request_id"]) == ("shop-orders", "2026/11/23/[1]abc", "r-1")


def test_structlogs_formatter_gets_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("onefold-test-structlog")
    logger.propagate = False
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        LogSink(logger, form="fields").emit(EVENT)
    finally:
        logger.handlers.clear()
    assert json.loads(capsys.readouterr().out) == fields_of(EVENT)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["with_logging", "with_structlog"])
def test_the_pages_formatters_write_the_fields_of_a_real_failure(tmp_path: Path, module: str) -> None:
    write_files("docs/logs.md", tmp_path)
    shell(f"""onefold send {module}:app ship '{{"name": "o-17"}}'""", tmp_path)
    script = f"onefold worker {module}:app --until-empty"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment(), text=True, capture_output=True, check=True, timeout=60
    )
    lines = [json.loads(one) for one in done.stderr.splitlines() if one.startswith("{")]
    (dead,) = [one for one in lines if one["event"] == "dead-letter"]
    assert (dead["app"], dead["job"], dead["error"], dead["level"]) == ("shop", "ship", "PermanentError", "error")
    assert dead["where"].startswith(f"{module}.py:")
    assert dead["where"].endswith("in ship")
    assert dead["trace"].endswith("PermanentError: no such address")
    if module == "with_logging":  # structlog has the name of the event where others have a message
        assert dead["message"].startswith("dead-letter ship sha256:")
    (start,) = [one for one in lines if one["event"] == "worker-started"]
    assert (start["queues"], start["jobs"], start["version"]) == ("orders", "ship", onefold.__version__)
    assert start["place"] == str(tmp_path / ".onefold/shop.db")
    assert "o-17" not in done.stderr
    assert not [one for one in done.stderr.splitlines() if "dead-letter" in one and not one.startswith("{")]


def test_the_start_does_not_say_a_password() -> None:
    assert _engine_location("aws://eu-west-1?records=redis://:pw@host") == "aws://eu-west-1..."
    assert _engine_location("sqlite:///x.db") == str(Path("x.db").absolute())


def test_an_error_that_quotes_its_key_has_the_hash_too() -> None:
    event = Event(
        at_ms=0,
        name="record-unreadable",
        key=EVENT.key,
        detail={"summary": "The value of ship 'o-17' is not a record."},
    )
    digest = log_fields.hashed("o-17")
    assert fields_of(event)["summary"] == f"The value of ship {digest} is not a record."
    assert fields_of(event, keys="shown")["summary"] == event.detail["summary"]
