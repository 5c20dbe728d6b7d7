"""Whether a map run can go on: its source and its declaration must be what they were when it was started.

Never here: changing anything. Invariant: what is refused says what has changed and the ways out.
"""

from __future__ import annotations

from onefold import errors
from onefold.maps.items import Source, changed
from onefold.maps.jobs import MapJob
from onefold.maps.state import MapState


def check_source(source: Source, state: MapState, *, wholly: bool = False) -> tuple[int, str] | None:
    """See that a source is the one that the run was started with; its stamp now.

    Args:
        wholly: read it all, also where its size and time say that nothing was written.

    Raises:
        NotFoundError: it is gone. UsageError: it is another.
    """
    stamp, before = source.stamp(), state.identity
    if not wholly and stamp == (before.size, before.stamp):
        return stamp
    why = changed(before, source.identity())
    if why is None:
        return stamp
    raise errors.UsageError(
        f"{source.name} is not the file that run {state.run} was started with: {why}.",
        meaning=f"{state.sent.index} of its {state.total} items were sent by their place in it. Nothing more was.",
        todo=f"Put the file back and `onefold map resume {state.run}`; or `onefold map stop {state.run}`, and then "
        f"`onefold map redrive {state.run} --items {source.name}` to do what is not done yet, under the same keys.",
    )


def check_shape(mapping: MapJob, state: MapState) -> None:
    """See that the declaration makes the children that it made when the run was started.

    Raises:
        UsageError: it does not.
    """
    if mapping.shape != state.shape:
        raise errors.UsageError(
            f"Map {state.map} is declared otherwise than when run {state.run} was started.",
            meaning="With another reader, batch or key, its items would be other ones under other keys.",
            todo="Go back to that declaration for this run, or start another run.",
        )
