"""An app that fails in every way there is, with messages whose bodies and keys hold words that can be found again.

Used by `test_marker.py`. `TEXT` is what an exception of the user's own says, which is kept where the documentation says so.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

import onefold
from onefold.contracts.entries import Entry
from onefold.events import EventEntry, InputTransformer
from onefold.observe import OpenTelemetry
from onefold.runtime.events import Sink

BODY, KEY, TEXT = "zbodyqmarker", "zkeyqmarker", "ztextqmarker"


def to_file(name: str) -> logging.Logger:
    """A logger of everything, to a file of the working directory."""
    logger = logging.getLogger(f"marked-{name}")
    if not logger.handlers:
        logger.addHandler(logging.FileHandler(f"{name}.log", delay=True))
    logger.handlers[0].setFormatter(AllOfIt() if name == "fields" else None)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    return logger


class AllOfIt(logging.Formatter):
    """Every attribute that a record has."""

    def format(self, record: logging.LogRecord) -> str:
        return repr(vars(record))


class Beside:
    """A log that the worker does not take for the app's own, so that it writes its plain lines, too."""

    def __init__(self, form: Literal["json", "plain", "fields"]) -> None:
        sink = onefold.LogSink(to_file(form), form=form, level="debug")
        self.emit, self.for_app = sink.emit, sink.for_app


class SpanFile(io.StringIO):
    """`spans.json` of the working directory, which is made by the first span that ends."""

    def write(self, text: str) -> int:
        with Path("spans.json").open("a", encoding="utf-8") as file:
            return file.write(text)


def spans_to_file() -> OpenTelemetry:
    """Every span that ends, with all it has."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=SpanFile())))
    return OpenTelemetry(metrics=False, tracer_provider=provider)


SINKS: list[Sink] = [Beside("json"), Beside("plain"), Beside("fields"), spans_to_file()]
app = onefold.App("marked", sinks=SINKS, history="full")
once = onefold.Retry(attempts=1)
twice = onefold.Retry(attempts=2, base="10ms", jitter="none")
work, lines, dying, items, later = (
    app.queue("work"), app.queue("lines", fifo=True), app.queue("dying"), app.queue("items"), app.queue("later")
)  # fmt: skip


@dataclass
class Order:
    id: str
    secret: str = BODY
    kind: Literal["a", "b"] = "a"
    amount: int = 1


class Odd:
    """Something that has no JSON form, and says what it holds."""

    def __repr__(self) -> str:
        return BODY


@app.job(work, key="{id}", retry=once)
def good(order: Order) -> dict[str, str]:
    return {"answer": order.secret}


@app.job(work, key="{id}", retry=twice)
def raising(order: Order) -> None:
    secret = order.secret  # a traceback has no values of variables
    raise ValueError(f"{TEXT} {len(secret)}")


@app.job(work, key="{id}", retry=twice)
def refused(order: Order) -> None:
    raise onefold.PermanentError(TEXT)


@app.job(work, key="{id}", retry=twice)
def down(order: Order) -> None:
    raise ConnectionError(TEXT)


@app.job(work, key="{id}", on_unknown="hold")
def doubtful(order: Order) -> None:
    raise onefold.OutcomeUnknown(TEXT)


@app.job(work, key="{id}", on_unknown=lambda order: onefold.NotDone())
def probed(order: Order, ctx: onefold.Context) -> None:
    if ctx.attempt == 1:
        raise onefold.OutcomeUnknown(TEXT)


@app.job(work, key="{id}", timeout="1s", retry=once)
def slow(order: Order) -> None:
    threading.Event().wait(60)


@app.job(work, key="{id}", retry=onefold.Retry(attempts=5, base="10ms", jitter="none"))
def killer(order: Order) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(work, key="{id}")
def large(order: Order) -> str:
    return BODY * 100_000


@app.job(work, key="{id}")
def strange(order: Order) -> Any:
    return Odd()


@app.job(work, key="{id}", retry=once)
def sending(order: Order) -> None:
    raising.send(Order(f"{order.id}-outbox"))
    refused.send(Order(f"{order.id}-outbox"))


@app.job(lines, key="{id}:{amount}", group="{id}", retry=once)
def stopping(order: Order) -> None:
    raise onefold.PermanentError(TEXT)


@app.job(dying, key="{id}")
def dies_once(order: Order) -> None:
    if not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


@app.map(items, key="{id}", tolerated_count=9, name="mapped")
def mapped(row: Order) -> None:
    if row.kind == "b":
        raise onefold.PermanentError(TEXT)


bus = app.bus("shop")
bus.rule("bill", {"detail-type": ["Placed"]}, to=work, input_path="$.detail")
bus.rule(
    "broken",
    {"detail-type": ["Placed"]},
    to=later,
    input_transformer=InputTransformer(
        paths={"id": "$.detail.id", "secret": "$.detail.secret"}, template='{"secret": <secret>, "x": "<id>"}'
    ),
)


@app.job(later, key="{x}", retry=once)
def from_event(payload: dict[str, str]) -> None:
    raise onefold.PermanentError(TEXT)


@app.schedule("at(2026-01-01T00:00:00)", job_retry=once)
def nightly(tick: onefold.Tick) -> Iterator[object]:
    yield raising.message(Order(f"{KEY}-tick"))
    raise onefold.PermanentError(TEXT)


BAD_BODIES = (
    f'{{"id": "{KEY}-cut", "secret": "{BODY}',
    f'{{"id": "{KEY}-type", "amount": "{BODY}"}}',
    f'{{"id": "{KEY}-enum", "kind": "{BODY}"}}',
    f'{{"id": "{KEY}-list", "secret": ["{BODY}", {{"{BODY}": 1}}]}}',
    f'{{"id": {{"{BODY}": "{KEY}"}}}}',
    f'["{BODY}", "{KEY}"]',
    f'{{"secret": "{BODY}"}}',
    BODY,
)


def main() -> None:
    """Send everything, in the working directory."""
    jobs = (good, raising, refused, down, doubtful, probed, slow, killer, large, strange, sending, stopping, dies_once)
    for job in jobs:
        job.send(Order(f"{KEY}-{job.name}"))
    stopping.send(Order(f"{KEY}-stopping", amount=2))  # behind the one that stops its group
    good.send(Order(f"{KEY}-good"))
    good.send(Order(f"{KEY}-good", amount=2))  # the same key with another payload
    doubtful.send(Order(f"{KEY}-doubtful"))
    queues = app.runtime().engine.queues
    entry = good.message(Order(f"{KEY}-other")).entry
    queues.open("work").send([replace(entry, body=body) for body in BAD_BODIES])
    queues.open("work").send([Entry(body=f'{{"id": "{KEY}", "secret": "{BODY}"}}')])  # of which job?
    queues.open("later").send([Entry(body=body) for body in BAD_BODIES])
    detail = {"id": f"{KEY}-event", "secret": BODY}
    bus.put([EventEntry(source="shop", detail_type="Placed", detail=detail)])
    bus.put([EventEntry(source="shop", detail_type="Placed", detail=BODY)])
    rows = [f"{KEY}-{number},{BODY},{kind},{amount}" for number, (kind, amount) in enumerate(ROWS)]
    Path("rows.csv").write_text("\n".join(["id,secret,kind,amount", *rows, f"{BODY},{KEY}"]) + "\n")
    app.close()


ROWS = (("a", 1), ("b", 1), (BODY, 1), ("a", BODY))

if __name__ == "__main__":
    main()
