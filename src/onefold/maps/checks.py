"""Whether a map run can go on: its source and its declaration must be what they were when it was started.

Never here: changing anything. Invariant: what is refused says what has changed and the ways out.
"""

from __future__ import annotations

from onefold import errors
from onefold.maps.items import Source, changed
from onefold.maps.jobs import MapJob
from onefold.maps.state import MapState


def check_source(source: Source, state: MapState, mapping: MapJob, *, wholly: bool = False) -> tuple[int, str] | None:
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
        todo=_way_out(source, state, mapping),
    )


def is_cut(state: MapState, mapping: MapJob) -> bool:
    """Whether batches of a run are done, or may be: a batch is one effect, known by its items; another file cuts others."""
    may_be = state.status in ("running", "halted") and state.sent.index > 0
    return mapping.spec.batch is not None and (state.done > 0 or may_be)


def _way_out(source: Source, state: MapState, mapping: MapJob) -> str:
    ended = state.status not in ("running", "halted")
    on = f"`onefold map {'redrive' if ended else 'resume'} {state.run}`"
    if is_cut(state, mapping):
        return (
            f"Put the file back and {on}; what was repaired goes into a file and a run of its own, because another file "
            "would cut other batches than those that are done."
        )
    redrive = (
        f"`onefold map redrive {state.run} --items {source.name}` to do what is not done yet, under the same keys."
    )
    if ended:
        return f"Put the file back and {on}; or {redrive}"
    return f"Put the file back and {on}; or `onefold map stop {state.run}`, and then {redrive}"


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
