"""`onefold send`: one message to one job; `onefold resume`: let a job that its circuit breaker has paused go on now.

Never here: making messages, when a job pauses (`record/breaker.py`).
Invariants: what `send` prints was accepted durably, and checked against the job's type before; a job that was not paused is
left as it is, and `resume` says so.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from onefold import redact
from onefold.admin import jobs
from onefold.cli import options, render, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import line
from onefold.errors import NotFoundError
from onefold.runtime.outgoing import Receipt


def _draw_receipt(receipt: Receipt, *, looks: bool) -> None:
    if receipt.duplicate:
        render.line(f"already known ({receipt.found}): {receipt.job} {receipt.key}; nothing was added")
        if not looks and receipt.found in ("waiting", "failed"):
            render.line(
                "Its record says so: on these queues nobody can look whether its message is still there. "
                f"See `{redact.command('onefold why', receipt.key)}`."
            )
    else:
        render.line(f"sent: {receipt.job} {receipt.key} as message {receipt.message_id}")


@declared(
    "send",
    example="""onefold send shop:app book_courier '{"order_id": "o-17"}'
               echo '{"order_id": "o-18"}' | onefold send shop:app book_courier - --delay 10m""",
)
@click.argument("words", metavar="[APP] JOB PAYLOAD", nargs=-1)
@click.option("--delay", metavar="DURATION", help="Not before so long from now, for example 10m.")
@click.option("--run-at", metavar="INSTANT", help="Not before that instant, for example 2026-12-24T06:00:00+01:00.")
@click.option("--key", metavar="KEY", help="Instead of the key that the job's rule gives.")
def send(words: tuple[str, ...], delay: str | None, run_at: str | None, key: str | None) -> Answer:
    """Send one message to a job.

    PAYLOAD is JSON, or - to read it from standard input, or @FILE. When the command returns, the message is durable.
    """
    if len(words) == 2 and target.is_app(words[0]) and "ONEFOLD_APP" not in os.environ:
        raise click.UsageError("PAYLOAD is missing: JSON, - for standard input, or @FILE.")
    app, (name, payload) = target.split(words, 2, names="JOB PAYLOAD")
    found = target.find_app(app)
    assert found.app is not None
    job = found.app.jobs.get(name)
    if job is None:
        raise jobs.no_job(found.app.jobs, name)
    receipt = jobs.send_text(job, _text(payload), delay=delay, run_at=run_at, key=key)
    looks = found.app.runtime().engine.commit is not None
    return Answer(receipt, draw=lambda: _draw_receipt(receipt, looks=looks))


def _text(payload: str) -> str:
    if payload == "-":
        return sys.stdin.read()
    if payload.startswith("@"):
        return read_file(payload[1:])
    return payload


def read_file(name: str) -> str:
    """The text of a file that a person named.

    Raises:
        NotFoundError: it cannot be read.
    """
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise NotFoundError(f"The file {name} cannot be read: {why}.", todo="Check its name and rights.") from error


@declared("resume", example="onefold resume book_courier shop:app --reason-text 'new API key is in'")
@click.argument("words", metavar="JOB [APP]", nargs=-1)
@target.by_url
@options.reason_text
def resume(words: tuple[str, ...], url: str | None, reason_text: str | None) -> Answer:
    """Let a paused job go on now.

    A job pauses when its dependency refuses everything (a rotated key, a closed account); no attempts are used up meanwhile.
    Messages that are hidden until its next try, or until a retry, come back at once; on SQS, which cannot do that, when they
    were due.
    """
    app, (job,) = target.split(words, 1, names="JOB", url=url)
    found = target.find(app, url)
    resumed = jobs.resume(found.session, job, reason_text=reason_text)
    text = f"{job} is resumed." if resumed else f"{job} was not paused; nothing was changed."
    if not resumed and found.app is None:
        text += " Only the app knows whether there is such a job: name it as module:attribute."
    return Answer({"job": job, "resumed": resumed}, draw=lambda: line(text))
