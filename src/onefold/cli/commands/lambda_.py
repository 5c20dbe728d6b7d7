"""`onefold lambda`: run a Lambda function on a queue, with an event source mapping as on AWS, until stopped.

The function's log goes to standard error: what the handler writes, each line with the start of its request id, and around it
the lines that Lambda writes. SIGTERM or Ctrl-C finishes the invocations in flight, a second one ends them.
Never here: how it is built (`local/run_function.py`), how batches are made (`local/batching.py`).
Invariant: standard output has only the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import msgspec

from onefold import redact
from onefold.cli import options, render
from onefold.cli.program import Answer, declared
from onefold.clock import SystemClock
from onefold.contracts.settings import QueueSettings
from onefold.duration import to_text
from onefold.entropy import SystemEntropy
from onefold.local import outcomes as log_output
from onefold.local import run_function as functions
from onefold.local import serving
from onefold.local.fault_rules import parse_faults
from onefold.local.outcomes import LogLine
from onefold.local.run_function import RunReport, RunSettings
from onefold.local.settings import FunctionSettings, MappingSettings

_NAME_CHARS_MAX = 64
_ID_CHARS = 8  # of a request id in front of a line; its START line has all of it
_STYLES: Final = {"stdout": None, "stderr": "yellow"}
_FUNCTION = FunctionSettings(name="-", handler="-", code_dir=".")
_MAPPING = MappingSettings(uuid="-", queue="-", function="-")


@declared(
    "lambda",
    example="onefold lambda orders:handler --queue orders --create-queue\n"
    "onefold lambda src/orders.handler --queue orders.fifo --report-batch-item-failures --reload\n"
    "onefold lambda orders:handler --queue orders --once --fault kill-after=10%",
)
@click.argument("handler", metavar="MODULE:FUNCTION")
@click.option("--queue", required=True, metavar="NAME", help="The queue it works on.")
@click.option("--data", default=serving.DATA, show_default=True, metavar="FILE", help="The file that holds the queue.")
@click.option("--create-queue", is_flag=True, help="Create the queue if it does not exist.")
@click.option("--name", metavar="NAME", help="The function's name; by default made from the handler.")
@click.option("--code-dir", default=".", show_default=True, metavar="DIR", help="The folder of the handler's module.")
@click.option(
    "--timeout", type=options.DURATION, default="3s", show_default=True, help="After this, an invocation is killed."
)
@click.option(
    "--memory",
    "memory_mib",
    type=int,
    default=_FUNCTION.memory_mib,
    show_default=True,
    help="MB; an invocation that uses more is killed.",
)
@click.option("--env", metavar="KEY=VALUE", multiple=True, help="An environment variable; it may be repeated.")
@click.option("--env-file", metavar="FILE", help="Environment variables, one KEY=VALUE per line.")
@click.option("--reload", is_flag=True, help="Take new code as soon as a .py file in the folder is saved.")
@click.option("--batch-size", type=int, default=_MAPPING.batch_size, show_default=True, help="Messages per event.")
@click.option("--window", type=options.DURATION, default="0s", show_default=True, help="How long a batch is collected.")
@click.option("--max-concurrency", type=int, help="Invocations at a time; by default scaled as on AWS.")
@click.option("--filter", "filters", metavar="JSON", multiple=True, help='A pattern such as {"body": {"kind": ["a"]}}.')
@click.option("--report-batch-item-failures", is_flag=True, help="Use the answer's batchItemFailures.")
@click.option("--region", default=serving.REGION, show_default=True, help="Region in ARNs.")
@click.option("--account", default=serving.ACCOUNT, show_default=True, help="Account id in ARNs.")
@click.option(
    "--fault", "faults", metavar="KEY=VALUE", multiple=True, help="Inject a fault, for example kill-after=0.1."
)
@click.option("--seed", type=options.WholeType(0), help="Inject the same faults again.")
@click.option("--once", is_flag=True, help="End when the queue is empty.")
@click.option(
    "--log",
    type=click.Choice(["plain", "json", "none"]),
    default="plain",
    show_default=True,
    help="The function's log.",
)
def command(
    handler: str,
    queue: str,
    data: str,
    create_queue: bool,
    name: str | None,
    code_dir: str,
    timeout: int,
    memory_mib: int,
    env: tuple[str, ...],
    env_file: str | None,
    reload: bool,
    batch_size: int,
    window: int,
    max_concurrency: int | None,
    filters: tuple[str, ...],
    report_batch_item_failures: bool,
    region: str,
    account: str,
    faults: tuple[str, ...],
    seed: int | None,
    once: bool,
    log: str,
) -> Answer:
    """Run a Lambda function on a queue, as an event source mapping does.

    Every concurrent invocation has its own process, which is killed at the timeout. What AWS would refuse is refused;
    `onefold serve` can serve the queue at the same time.
    """
    entropy = SystemEntropy()
    function = FunctionSettings(
        name=name or _name_of(handler),
        handler=handler,
        code_dir=str(Path(code_dir).resolve()),
        timeout_ms=timeout,
        memory_mib=memory_mib,
        env=(functions.read_env_file(env_file) if env_file is not None else {})
        | dict(functions.pair(text, f"--env {text}") for text in env),
        region=region,
        account=account,
    )
    mapping = MappingSettings(
        uuid=entropy.token(),
        queue=queue,
        function=function.name,
        batch_size=batch_size,
        window_ms=window,
        concurrency_max=max_concurrency,
        filters=filters,
        reports_failures=report_batch_item_failures,
    )
    settings = RunSettings(
        data=data,
        function=function,
        mapping=mapping,
        create_queue=create_queue,
        reload=reload,
        once=once,
        faults=parse_faults([*faults, *([] if seed is None else [f"seed={seed}"])]),
    )
    say = log_output.to_standard_error(render.note)
    report = functions.run(
        settings,
        clock=SystemClock(),
        entropy=entropy,
        on_line=_log_writer(log, say),
        ready=lambda found: say(_working(settings, found)),
        note=say,
    )
    return Answer(report, draw=lambda: _draw(report), code=report.code)


def _name_of(handler: str) -> str:
    """A function's name made from its handler: `orders-handler` from `src/orders.handler`."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", handler.rpartition("/")[2])[-_NAME_CHARS_MAX:]


def _working(settings: RunSettings, queue: QueueSettings) -> str:
    function, mapping = settings.function, settings.mapping
    return (
        f"{function.name} ({function.handler}) works on {queue.name} of {settings.data}: batches of up to "
        f"{mapping.batch_size}, timeout {to_text(function.timeout_ms)}, visibility {to_text(queue.visibility_ms)}, "
        f"{function.memory_mib} MB. Ctrl-C drains."
    )


def _log_writer(log: str, say: Callable[[str], None]) -> Callable[[LogLine], None]:
    """Returns what writes each line of the function's log; escape sequences reach only terminals."""
    if log == "none":
        return lambda _line: None
    if log == "json":
        return lambda line: say(redact.printable_json(msgspec.json.encode(line).decode()))
    if log_output.is_terminal():
        return lambda line: say(_plain(line))
    return lambda line: say(click.unstyle(_plain(line)))


def _plain(line: LogLine) -> str:
    if line.stream == "platform":
        return click.style(redact.printable(line.text), dim=True)
    text = redact.printable(line.text, colours=True)
    return f"{line.request_id[:_ID_CHARS]} | {click.style(text, fg=_STYLES[line.stream])}"


def _draw(report: RunReport) -> None:
    messages = [f"{name} {count}" for name, count in report.messages.items() if count]
    calls = [f"invocations {report.invocations}", f"errors {report.errors}", f"containers {report.cold_starts}"]
    render.line(f"ended: {', '.join(messages) or 'nothing came'}; {', '.join(calls)}")
