"""Events: buses with rules, archives and replays, and pipes from queue to queue.

Imports `runner` and below. Which rules an event matches is decided in `events/rules.py`. The names here are loaded when they
are first used, so that a Lambda function without a bus loads no patterns or templates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold import lazy

if TYPE_CHECKING:
    from onefold.events.bus import Bus, PutAnswer
    from onefold.events.bus import declare_bus as declare_bus
    from onefold.events.pipes import Pipe
    from onefold.events.pipes import declare_pipe as declare_pipe
    from onefold.events.replay import Replay
    from onefold.events.rules import EventArchive, Rule
    from onefold.events.transform import InputTransformer
    from onefold.record.envelopes import EventEntry

__all__ = ["Bus", "EventArchive", "EventEntry", "InputTransformer", "Pipe", "PutAnswer", "Replay", "Rule"]

__getattr__: Callable[[str], Any] = lazy.attributes(
    __name__,
    {
        "Bus": "onefold.events.bus",
        "PutAnswer": "onefold.events.bus",
        "declare_bus": "onefold.events.bus",
        "Pipe": "onefold.events.pipes",
        "declare_pipe": "onefold.events.pipes",
        "Replay": "onefold.events.replay",
        "EventArchive": "onefold.events.rules",
        "Rule": "onefold.events.rules",
        "InputTransformer": "onefold.events.transform",
        "EventEntry": "onefold.record.envelopes",
    },
)
