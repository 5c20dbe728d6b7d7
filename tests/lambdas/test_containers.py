"""Containers: what a handler finds, what is told of it, and that whatever it does ends in one outcome."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onefold.local.outcomes import (
    Answered,
    Crashed,
    FunctionError,
    LogLine,
    Outcome,
    TimedOut,
    TooLarge,
    error_payload,
    summary,
)
from onefold.local.settings import ANSWER_BYTES_MAX
from tests.lambdas.rig import Rig, is_gone, rig, run, until

SHORT_MS = 400


def outcome_of(handler: str, event: Any = None, **changes: Any) -> tuple[Outcome, list[LogLine]]:
    """How one invocation ends, after which the function still answers."""

    async def body() -> tuple[Outcome, list[LogLine]]:
        async with rig(handler, **{"timeout_ms": 10_000, **changes}) as made:
            outcome = await made.invoke(event)
            assert made.function.running == 0
            lines = list(made.lines)
            assert len([line for line in lines if line.text.startswith("REPORT")]) == 1
            await goes_on(made)
            return outcome, lines

    return run(body())


async def goes_on(made: Rig) -> None:
    """The pool goes on: the same function, well behaved from now on, answers."""
    from msgspec import structs

    made.function.replace(structs.replace(made.function.settings, handler="plain:echo", timeout_ms=10_000))
    assert await made.answer({"a": 1}) == {"a": 1}


# -- what a handler finds --------------------------------------------------------------------------------------------


def test_a_handler_finds_lambdas_world_and_nothing_of_ours() -> None:
    async def body() -> None:
        async with rig(
            "plain:about", env={"TABLE": "t"}, region="eu-west-1", timeout_ms=60_000, memory_mib=256
        ) as made:
            found = await made.answer()
            request_id = found["context"]["aws_request_id"]
            assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", request_id)
            assert found["context"] == {
                "aws_request_id": request_id,
                "function_name": "orders",
                "function_version": "$LATEST",
                "invoked_function_arn": "arn:aws:lambda:eu-west-1:000000000000:function:orders",
                "memory_limit_in_mb": "256",
            }
            digits = request_id.replace("-", "")
            assert found["env"].pop("AWS_EXECUTION_ENV").startswith("AWS_Lambda_python3.")
            assert found["env"] == {
                "TZ": ":UTC",
                "_HANDLER": "plain:about",
                "AWS_REGION": "eu-west-1",
                "AWS_LAMBDA_FUNCTION_NAME": "orders",
                "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
                "LAMBDA_TASK_ROOT": made.function.settings.code_dir,
                "_X_AMZN_TRACE_ID": f"Root=1-{digits[:8]}-{digits[8:]};Parent={digits[:16]};Sampled=0",
                "TABLE": "t",
            }
            assert found["groups"][0] == "/aws/lambda/orders"
            assert re.fullmatch(r"\d{4}/\d\d/\d\d/\[\$LATEST\][0-9a-f]{32}", found["groups"][1])
            assert found["nobody"] == [None, None]
            assert 0 < found["remaining_ms"] <= 60_000
            assert (found["argv"], found["onefold"], found["threads"], found["stdin"]) == ([], [], 1, "")
            assert found["first"] == found["cwd"] == made.function.settings.code_dir

    run(body())


def test_remaining_time_runs_out_with_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "def handler(event, context):\n"
        "    while context.get_remaining_time_in_millis() > 19_700:\n"
        "        pass\n"
        "    return context.get_remaining_time_in_millis()\n"
    )

    async def body() -> None:
        async with rig("late:handler", timeout_ms=20_000, code_dir=tmp_path) as made:
            assert 0 < await made.answer() <= 19_700

    run(body())


@pytest.mark.parametrize("handler", ["plain:echo", "plain.echo", "handlers/plain.echo", "handlers.plain:echo"])
def test_handlers_are_named_in_both_ways(handler: str) -> None:
    async def body() -> None:
        folder = Path(__file__).parent if handler.startswith("handlers") else Path(__file__).parent / "handlers"
        async with rig(handler, code_dir=folder) as made:
            assert await made.answer({"Records": []}) == {"Records": []}

    run(body())


def test_a_dotted_attribute_is_found() -> None:
    outcome, _ = outcome_of("plain:Desk.answer")
    assert outcome == Answered(b'"from the desk"')


def test_a_decimal_is_a_number_and_any_text_travels() -> None:
    outcome, _ = outcome_of("plain:money")
    assert isinstance(outcome, Answered)
    assert outcome.payload == rb'{"total": 12.5, "text": "\u00e9\ud83d"}'


def test_powertools_batch_processor_works_unchanged() -> None:
    def record(number: int, kind: str) -> dict[str, Any]:
        return {
            "messageId": f"m-{number}", "receiptHandle": "r", "body": f'{{"kind": "{kind}"}}', "attributes": {},
            "messageAttributes": {}, "md5OfBody": "", "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:::q",
            "awsRegion": "us-east-1",
        }  # fmt: skip

    outcome, lines = outcome_of(
        "plain:powertools", {"Records": [record(1, "good"), record(2, "bad"), record(3, "good")]}
    )
    assert isinstance(outcome, Answered), outcome
    assert msgspec.json.decode(outcome.payload) == {"batchItemFailures": [{"itemIdentifier": "m-2"}]}
    told = [msgspec.json.decode(line.text) for line in lines if line.stream == "stdout"]
    assert {one["function_name"] for one in told} == {"orders"}
    assert {one["function_request_id"] for one in told} == {lines[0].request_id}


# -- log -------------------------------------------------------------------------------------------------------------


def test_every_line_is_told_once_in_order_with_its_request() -> None:
    async def body() -> None:
        async with rig("plain:talk") as made:
            for place in range(2):
                made.lines.clear()
                await made.invoke(request_id=f"request-{place}")
                assert {line.request_id for line in made.lines} == {f"request-{place}"}
                assert {line.function for line in made.lines} == {"orders"}
                assert made.text() == [f"to stdout request-{place}", "no end"]
                to_stderr, logged = made.text("stderr")
                assert to_stderr == "to stderr"
                form = rf"\[INFO\]\t\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}Z\trequest-{place}\tthrough logging"
                assert re.fullmatch(form, logged)
                start, *_, end, report = made.lines
                assert start.text == f"START RequestId: request-{place} Version: $LATEST"
                assert end.text == f"END RequestId: request-{place}"
                init = r"\tInit Duration: \d+\.\d\d ms" if place == 0 else ""
                assert re.fullmatch(
                    rf"REPORT RequestId: request-{place}\tDuration: \d+\.\d\d ms\tBilled Duration: \d+ ms\t"
                    rf"Memory Size: 128 MB\tMax Memory Used: \d+ MB{init}",
                    report.text,
                )

    run(body())


def test_bytes_that_are_no_text_are_shown_as_escapes() -> None:
    outcome, lines = outcome_of("naughty:binary")
    assert outcome == Answered(b'"done"')
    assert r"\xff\xfe" in [line.text for line in lines]


def test_a_line_without_end_is_told_in_parts() -> None:
    outcome, lines = outcome_of("naughty:long_line")
    told = [line.text for line in lines if line.stream == "stdout"]
    assert outcome == Answered(b'"done"')
    assert sum(map(len, told)) == 2_000_000
    assert max(map(len, told)) == 256 * 1024


# -- errors ----------------------------------------------------------------------------------------------------------


def test_what_a_handler_raises_is_told_with_the_users_frames_only() -> None:
    outcome, lines = outcome_of("naughty:raises", {"order": 7})
    assert isinstance(outcome, FunctionError)
    assert (outcome.kind, outcome.message) == ("ValueError", "no such order: 7")
    (frame,) = outcome.trace
    assert "naughty.py" in frame
    assert "raise ValueError" in frame
    assert "[ERROR] ValueError: no such order: 7" in [line.text for line in lines]
    told = msgspec.json.decode(error_payload(outcome, "r-1") or b"")
    assert told == {
        "errorType": "ValueError",
        "errorMessage": "no such order: 7",
        "requestId": "r-1",
        "stackTrace": list(outcome.trace),
    }
    assert summary(outcome) == "raised ValueError"


@pytest.mark.parametrize(
    ("handler", "kind", "message"),
    [
        ("nowhere:f", "Runtime.ImportModuleError", "Unable to import module 'nowhere': No module named 'nowhere'"),
        (
            "broken_import.f",
            "Runtime.ImportModuleError",
            "Unable to import module 'broken_import': No module named 'nowhere_to_be_found'",
        ),
        ("plain:missing", "Runtime.HandlerNotFound", "Handler 'missing' missing on module 'plain'"),
        ("naughty:raises_the_unprintable", "Silent", "<Silent that cannot be printed>"),
        ("naughty:recurses", "RecursionError", "maximum recursion depth exceeded while calling a Python object"),
        ("naughty:asks_for_too_much", "MemoryError", ""),
    ],
)
def test_errors_have_lambdas_names(handler: str, kind: str, message: str) -> None:
    outcome, _ = outcome_of(handler)
    assert isinstance(outcome, FunctionError)
    assert outcome.kind == kind
    assert outcome.message in (message, "maximum recursion depth exceeded")
    assert len(outcome.trace) <= 100


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("x = 1\ndef handler(:\n")

    async def body() -> Outcome:
        async with rig("wrong:handler", code_dir=tmp_path) as made:
            return await made.invoke()

    outcome = run(body())
    assert isinstance(outcome, FunctionError)
    assert outcome.kind == "Runtime.UserCodeSyntaxError"
    assert "wrong.py" in outcome.trace[0]
    assert "Line 2" in outcome.trace[0]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("set", "Unable to marshal response: Object of type set is not JSON serializable"),
        ("bytes", "Unable to marshal response: Object of type bytes is not JSON serializable"),
        ("keys", "Unable to marshal response: keys must be str, int, float, bool or None, not tuple"),
    ],
)
def test_what_is_no_json_is_an_error(what: str, message: str) -> None:
    outcome, _ = outcome_of("naughty:returns", what)
    assert outcome == FunctionError("Runtime.MarshalError", message)


def test_nan_is_answered_as_lambda_answers_it() -> None:
    outcome, _ = outcome_of("naughty:returns", "nan")
    assert outcome == Answered(b"NaN")


def test_a_coroutine_is_an_error_that_says_what_to_do() -> None:
    outcome, lines = outcome_of("plain:awaited")
    assert isinstance(outcome, FunctionError)
    assert outcome.kind == "Runtime.MarshalError"
    assert outcome.message.startswith("Unable to marshal response: Object of type coroutine is not JSON serializable")
    assert "asyncio.run" in outcome.message
    assert not [line for line in lines if "never awaited" in line.text]


@pytest.mark.parametrize("over", [0, 1])
def test_an_answer_is_bounded(over: int) -> None:
    size = ANSWER_BYTES_MAX - 2 + over  # two quotes
    outcome, _ = outcome_of("naughty:returns_much", size, memory_mib=256)
    if over:
        assert outcome == TooLarge(ANSWER_BYTES_MAX + 1)
        assert b"Function.ResponseSizeTooLarge" in (error_payload(outcome, "r") or b"")
    else:
        assert isinstance(outcome, Answered)
        assert len(outcome.payload) == ANSWER_BYTES_MAX


def test_a_large_event_arrives_whole() -> None:
    async def body() -> None:
        async with rig("plain:echo", memory_mib=512) as made:
            event = {"text": "x" * 6_000_000}
            assert await made.answer(event) == event

    run(body())


# -- the end of a process --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "event", "reason"),
    [
        ("naughty:exits", 3, "exit status 3"),
        ("naughty:exits", 0, ""),
        ("naughty:sys_exits", 0, ""),
        ("naughty:sys_exits", 1, "exit status 1"),
        ("naughty:interrupts", None, "signal: interrupt"),
        ("naughty:crashes", None, "signal: segmentation fault"),
        ("naughty:aborts", None, "signal: aborted"),
        ("naughty:recurses_in_c", None, "signal: segmentation fault"),
        ("exits_at_import:f", None, "exit status 7"),
        ("naughty:closes_all", None, "exit status 1"),
    ],
)
def test_a_process_that_ends_is_a_crash(handler: str, event: Any, reason: str) -> None:
    outcome, lines = outcome_of(handler, event, memory_mib=512)
    assert outcome == Crashed(reason)
    text = f"Runtime exited with error: {reason}" if reason else "Runtime exited without providing a reason"
    request_id = lines[-1].request_id
    assert f"RequestId: {request_id} Error: {text}" in [line.text for line in lines]
    assert lines[-1].text.endswith("Status: error\tError Type: Runtime.ExitError")
    assert msgspec.json.decode(error_payload(outcome, request_id) or b"") == {
        "errorType": "Runtime.ExitError",
        "errorMessage": f"RequestId: {request_id} Error: {text}",
    }


@pytest.mark.parametrize("noise", ["x", "garbage that is longer than a header", "\0" * 8])
def test_noise_on_the_control_channel_is_a_crash(noise: str) -> None:
    outcome, _ = outcome_of("naughty:writes_to_control", noise)
    assert isinstance(outcome, Crashed)
    assert (outcome.reason, outcome.detail) == ("signal: killed", "it wrote to its control channel")


def test_a_handler_that_closes_the_control_channel_and_goes_on_is_killed() -> None:
    outcome, _ = outcome_of("naughty:closes_all_and_waits")
    assert outcome == Crashed("signal: killed", "it closed its control channel")


def test_an_answer_nobody_asked_for_is_a_crash() -> None:
    outcome, _ = outcome_of("naughty:speaks_for_itself")
    assert outcome == Crashed("signal: killed", "it sent an answer to a question it was not asked")


@pytest.mark.parametrize("handler", ["waits", "spins", "ignores_signals", "stops_itself"])
def test_the_timeout_is_enforced_from_outside(handler: str) -> None:
    outcome, lines = outcome_of(f"naughty:{handler}", timeout_ms=SHORT_MS)
    assert outcome == TimedOut(SHORT_MS)
    assert summary(outcome) == "task timed out after 0.40 seconds"
    assert [line for line in lines if re.fullmatch(r"\S+Z \S+ Task timed out after 0\.40 seconds", line.text)]
    report = lines[-1].text
    assert report.endswith("Status: timeout")
    took_ms = float(report.split("Duration: ")[1].split()[0])
    assert SHORT_MS <= took_ms < 30_000, "it would wait for ever"
    assert b"Task timed out after 0.40 seconds" in (error_payload(outcome, "r") or b"")


def test_the_timeout_kills_what_the_handler_forked(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    outcome, _ = outcome_of("naughty:waits_with_a_child", {"file": str(file)}, timeout_ms=3_000)
    assert outcome == TimedOut(3_000)
    run(until(lambda: is_gone(int(file.read_text()))))


def test_memory_is_enforced_and_the_handler_cannot_talk_its_way_out() -> None:
    outcome, lines = outcome_of("naughty:allocates")
    assert isinstance(outcome, Crashed)
    assert outcome.reason == "signal: killed"
    assert re.fullmatch(r"it used \d+ MB; it may use 128 MB and \d+ MB for the interpreter", outcome.detail)
    used_mib = int(lines[-1].text.split("Max Memory Used: ")[1].split()[0])
    assert 128 <= used_mib < 128 + 256 + 64


def test_what_a_handler_starts_counts_together_with_it() -> None:
    outcome, lines = outcome_of("naughty:children_allocate")
    assert isinstance(outcome, Crashed)
    assert re.fullmatch(r"it used \d+ MB; it may use 128 MB and \d+ MB for the interpreter", outcome.detail)
    assert int(lines[-1].text.split("Max Memory Used: ")[1].split()[0]) >= 128


def test_each_line_of_an_exceptions_text_is_a_line_of_the_log() -> None:
    _, lines = outcome_of("naughty:raises", {"order": "x\n00000000 | END RequestId: 00000000\nonefold: server stopped"})
    assert [line.text for line in lines if line.stream == "platform"][1:4] == [
        "[ERROR] ValueError: no such order: x",
        "00000000 | END RequestId: 00000000",
        "onefold: server stopped",
    ]
    assert len({line.request_id for line in lines}) == 1
    assert not [line.text for line in lines if "\n" in line.text]


@pytest.mark.parametrize("what", ["thread", "process"])
def test_memory_is_looked_at_between_two_invocations_too(what: str) -> None:
    async def body() -> None:
        async with rig("naughty:grows_when_idle") as made:
            assert await made.answer(what) == "answered"
            line = await made.heard(lambda one: "between two invocations" in one.text)
            assert re.fullmatch(
                r"RequestId: \S+ Error: Runtime exited with error: signal: killed \(between two invocations it used \d+ MB; "
                r"it may use 128 MB and \d+ MB for the interpreter\)",
                line.text,
            )
            await until(lambda: not made.function.stats().idle)
            assert await made.answer("none") == "answered", "and the next one begins in a new container"

    run(body())


@pytest.mark.parametrize("what", ["memfd", "shm"])
def test_memory_that_no_process_has_mapped_counts(what: str) -> None:
    outcome, _ = outcome_of("naughty:fills_memory_files", what, timeout_ms=20_000)
    assert isinstance(outcome, Crashed)
    assert re.fullmatch(r"it used \d+ MB; it may use 128 MB and \d+ MB for the interpreter", outcome.detail)


def test_pages_that_children_share_count_once() -> None:
    async def body() -> None:
        async with rig("naughty:shares_with_children", timeout_ms=20_000) as made:
            assert await made.invoke() == Answered(b'"done"')

    run(body())


@pytest.mark.parametrize(
    ("handler", "event", "payload"),
    [
        ("closes_stdout", None, b'"done"'),
        ("forks", None, b'"done"'),
        ("thread_goes_on", None, b'"done"'),
        ("reads_stdin", None, b'""'),
        ("many_threads", None, b"24"),
    ],
)
def test_what_is_odd_but_allowed(handler: str, event: Any, payload: bytes) -> None:
    async def body() -> None:
        async with rig(f"naughty:{handler}") as made:
            assert [await made.invoke(event) for _ in range(2)] == [Answered(payload)] * 2
            assert made.function.stats().cold_starts == 1

    run(body())


def test_a_child_that_was_left_goes_with_its_container() -> None:
    async def body() -> None:
        async with rig("naughty:leaves_a_child") as made:
            child = int(await made.answer())
            assert not is_gone(child)
        await until(lambda: is_gone(child))

    run(body())


def test_a_container_dies_with_the_process_that_started_it() -> None:
    async def body() -> None:
        async with rig("plain:count") as made:
            pid = (await made.answer())["pid"]
            (container,) = made.function._generations
            os.close(container._lifeline)  # as the kernel does when this process ends
            container._lifeline = os.open(os.devnull, os.O_RDONLY)
            await until(lambda: is_gone(pid))

    run(body())


def test_a_warm_container_that_is_killed_is_replaced() -> None:
    async def body() -> None:
        async with rig("plain:count") as made:
            first = await made.answer()
            os.kill(first["pid"], signal.SIGKILL)
            await until(lambda: made.function.stats().idle == 0)
            again = await made.answer()
            assert again["pid"] != first["pid"]
            assert again["calls"] == 1

    run(body())


def test_a_cancelled_invocation_kills_its_container() -> None:
    async def body() -> None:
        async with rig("naughty:waits", timeout_ms=60_000) as made:
            task = asyncio.ensure_future(made.invoke())
            await made.heard(lambda line: line.text.startswith("START"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert made.function.running == 0

    run(body())
