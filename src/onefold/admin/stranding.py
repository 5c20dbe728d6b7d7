"""What a deployment would strand: messages that nothing would work on, or that the new release could not read.

Found on the engine of the deployed stack, with the declarations of the release that would be deployed: queues that leave
the stack and hold messages, names under which the app has worked and that no job has any more, and messages that do not
fit (`payloads.py`). Never here: the stack (`deploying.py`), output. Invariant: nothing is written, and no handler runs. On
SQS the messages of dead-letter and held queues are read by receiving them; those that wait are only counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from onefold.admin import payloads
from onefold.admin.payloads import PayloadSurvey
from onefold.admin.session import SessionJobs, open_session

if TYPE_CHECKING:
    from onefold.deploy.existing import Holder
    from onefold.outside import Clock, Entropy

LOOKED_AT: Final = 1_000  # messages: a comparison takes seconds


class LeavingQueue(Struct, frozen=True, kw_only=True):
    """A queue that leaves the stack with messages in it. `kept`: whether the queue itself is kept."""

    queue: str
    messages: int
    kept: bool


class Stranding(Struct, frozen=True, kw_only=True):
    """What a deployment would strand.

    Args:
        leaving: queues that leave the stack with messages in them.
        survey: what the release would do with the messages of the other queues.
        waiting: how many messages are in other queues that cannot be read without receiving, by name; without empty queues.
    """

    leaving: tuple[LeavingQueue, ...]
    survey: PayloadSurvey
    waiting: dict[str, int]

    @property
    def is_nothing(self) -> bool:
        """Whether nothing would be stranded, as far as this can be known."""
        return not self.leaving and self.survey.fits


def stranding(url: str, jobs: SessionJobs, leaving: Sequence[Holder], *, clock: Clock, entropy: Entropy) -> Stranding:
    """Look at the engine of a deployed stack.

    Args:
        url: the URL of the engine. jobs: the jobs of the release that would be deployed.
        leaving: queues that leave the stack, counted.

    Raises:
        UsageError: not allowed. TransientError: an engine or store cannot be reached now.
    """
    session = open_session(url, actor="diff", clock=clock, entropy=entropy, jobs=jobs, read_only=True)
    try:
        survey = payloads.survey(session, limit=LOOKED_AT)
        stay = [name for name in survey.unread if name in {one.name for one in jobs.queues}]
        waiting = {
            name: depth.visible + depth.in_flight + depth.delayed
            for name, depth in zip(stay, session.engine.queues.depths(stay), strict=True)
            if depth is not None
        }
    finally:
        session.close()
    return Stranding(
        leaving=tuple(LeavingQueue(queue=one.name, messages=one.count, kept=one.kept) for one in leaving if one.count),
        survey=survey,
        waiting={name: count for name, count in waiting.items() if count},
    )
