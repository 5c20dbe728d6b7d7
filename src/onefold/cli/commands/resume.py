"""`onefold resume`: let a job go on that its circuit breaker has paused, without waiting for its next try.

Never here: when a job pauses (`decide/breaker.py`). Invariant: a job that was not paused is left as it is, and that is said.
"""

from __future__ import annotations

import click

from onefold.cli import options, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import line
from onefold.service import jobs


@declared("resume", example="onefold resume book_courier shop:app --reason-text 'new API key is in'")
@click.argument("words", metavar="JOB [APP]", nargs=-1)
@target.by_url
@options.reason_text
def command(words: tuple[str, ...], url: str | None, reason_text: str | None) -> Answer:
    """Let a paused job go on now.

    A job pauses when its dependency refuses everything (a rotated key, a closed account); no attempts are used up meanwhile.
    Messages that are hidden until its next try, or until a retry, come back at once; on SQS, which cannot do that, when they
    were due.
    """
    app, (job,) = target.split(words, 1, names="JOB", url=url)
    found = target.find(app, url)
    resumed = jobs.resume(found.desk, job, reason_text=reason_text)
    text = f"{job} is resumed." if resumed else f"{job} was not paused; nothing was changed."
    if not resumed and found.app is None:
        text += " Only the app knows whether there is such a job: name it as module:attribute."
    return Answer({"job": job, "resumed": resumed}, draw=lambda: line(text))
