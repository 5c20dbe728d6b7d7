"""What is checked before a map run starts, and before it is resumed.

Before a run starts: whether the columns of a CSV file can make items of the declared type. If the header lacks a
required column, every row would be malformed; the cause is a wrong file, a wrong delimiter or a missing header. msgspec
and pydantic show which columns a type requires; if they cannot (a union, a model that rewrites its input), no file is
refused and rows are checked one by one. Before a run is resumed: its source and its declaration must be those it was
started with.

Never here: changing anything, reading rows, columns of other formats (their values name their own fields).
Invariants: an error says what has changed and what can be done. A file is refused only if none of its rows could become
an item.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import Formatter
from typing import Any, Final, cast

from msgspec import inspect

from onefold import errors, redact
from onefold.maps.formats import header_of
from onefold.maps.jobs import MapJob
from onefold.maps.rules import DELIMITERS, ItemReader
from onefold.maps.sources import Source, changed
from onefold.maps.state import MapState


def check_source(source: Source, state: MapState, mapping: MapJob, *, wholly: bool = False) -> tuple[int, str] | None:
    """Check that a source is the one that the run was started with; return its present stamp.

    Args:
        wholly: read all of it, even if size and time show that nothing was written.

    Raises:
        NotFoundError: the source is gone. UsageError: it has changed.
    """
    stamp, before = source.stamp(), state.identity
    if not wholly and stamp == (before.size, before.stamp):
        return stamp
    why = changed(before, source.identity())
    if why is None:
        return stamp
    raise errors.UsageError(
        f"{source.name} is not the file that run {state.run} was started with: {why}.",
        meaning=f"{state.sent.index} of its {state.total} items were sent by their position in it. Nothing more was.",
        todo=_way_out(source, state, mapping),
    )


def is_cut(state: MapState, mapping: MapJob) -> bool:
    """Whether a run has finished batches, or may have: a changed file would put other items together than in these."""
    may_be = state.status in ("running", "halted") and state.sent.index > 0
    return mapping.spec.batch is not None and (state.done > 0 or may_be)


def _way_out(source: Source, state: MapState, mapping: MapJob) -> str:
    ended = state.status not in ("running", "halted")
    on = f"`onefold map {'redrive' if ended else 'resume'} {state.run}`"
    if is_cut(state, mapping):
        return (
            f"Put the file back and {on}; put what was repaired into a file and a run of its own, because a changed "
            "file would make other batches than the finished ones."
        )
    redrive = (
        f"`onefold map redrive {state.run} --items {source.name}` to do what is not done yet, under the same keys."
    )
    if ended:
        return f"Put the file back and {on}; or {redrive}"
    return f"Put the file back and {on}; or `onefold map stop {state.run}`, and then {redrive}"


def check_shape(mapping: MapJob, state: MapState) -> None:
    """Check that the declaration makes the same children as when the run was started.

    Raises:
        UsageError: it does not.
    """
    if mapping.shape != state.shape:
        raise errors.UsageError(
            f"Map {state.map} is not declared as it was when run {state.run} was started.",
            meaning="With another reader, batch or key, it would have other items under other keys.",
            todo="Go back to that declaration for this run, or start another run.",
        )


_SHOWN_CHARS: Final = 200
_REWRITES: Final = (
    "before",
    "wrap",
)  # modes of pydantic's model validators that get the row before its fields are read


def check_columns(source: Source, mapping: MapJob) -> None:
    """Refuse a CSV file whose header lacks a column that every item needs.

    Raises:
        UsageError: the header lacks one; or as `formats.header_of`.
    """
    reader = mapping.spec.reader
    if reader.format != "csv":
        return
    header = header_of(source, reader)
    wanted = list(_wanted(mapping))
    lacking = [names[0] for names in wanted if not any(name in header for name in names)]
    if not lacking:
        return
    names = ", ".join(one[0] for one in wanted)
    is_typed = bool(list(_required(mapping.item.annotation)))
    needs = f"{mapping.item.name} needs {names}" if is_typed else f"the key {mapping.key.text} needs {names}"
    shown = _plain(DELIMITERS[reader.delimiter].join(header))
    raise errors.UsageError(
        f"{source.name} has no column {', '.join(lacking)}: its header is {shown}; {needs}.",
        meaning="None of its rows could become an item. Nothing was changed.",
        todo=_advice(header, lacking, reader),
    )


def _advice(header: tuple[str, ...], lacking: list[str], reader: ItemReader) -> str:
    if reader.header is not None:
        return "Its columns are declared with header=; name them as the fields of the type."
    if len(header) == 1:
        for name, sign in DELIMITERS.items():
            if sign in header[0].strip() and name not in ("space", reader.delimiter):
                return f'Is the delimiter {sign!r}? Then declare items=onefold.maps.ItemReader(delimiter="{name}").'
    plain = {one.strip().casefold(): one for one in header}
    for field in lacking:
        if field.casefold() in plain:
            return f"Is {plain[field.casefold()]!r} meant? Names are compared letter by letter."
    return (
        "Give the file with these columns, or a field its default; if there is no header at all, "
        "declare items=onefold.maps.ItemReader(header=(...))."
    )


def _wanted(mapping: MapJob) -> Iterator[tuple[str, ...]]:
    """The columns that a row must have: for each field, the names that its column may have."""
    annotation = mapping.item.annotation
    if annotation is Any or isinstance(_known(annotation), inspect.AnyType | inspect.DictType):
        for name in dict.fromkeys(_fields_of(mapping.key.text)):
            yield (name,)
    else:
        yield from _required(annotation)


def _fields_of(key: str) -> Iterator[str]:
    """The top-level fields that a key's template uses; none for JMESPath and functions."""
    if not key.startswith("jmespath:"):
        for _, name, _, _ in Formatter().parse(key):
            if name:
                yield name.partition(".")[0]


def _required(annotation: Any) -> Iterator[tuple[str, ...]]:
    if hasattr(annotation, "model_fields") and hasattr(annotation, "__pydantic_decorators__"):
        yield from _required_of_model(annotation)
        return
    known = _known(annotation)
    if isinstance(known, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        for field in known.fields:
            if field.required:
                yield (field.encode_name,)


def _required_of_model(model: Any) -> Iterator[tuple[str, ...]]:
    validators = model.__pydantic_decorators__.model_validators.values()
    if any(one.info.mode in _REWRITES for one in validators):
        return
    for name, field in model.model_fields.items():
        alias = field.validation_alias if field.validation_alias is not None else field.alias
        if field.is_required() and (alias is None or isinstance(alias, str)):
            yield (name,) if alias is None else (alias, name)


def _known(annotation: Any) -> inspect.Type | None:
    """A type as msgspec describes it, without its metadata; None if msgspec does not know it."""
    try:
        known = inspect.type_info(annotation)
    except (TypeError, ValueError, NameError):
        return None
    while isinstance(known, inspect.Metadata):
        known = cast(Any, known).type
    return known


def _plain(text: str) -> str:
    shown = text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."
    return "".join(
        sign if redact.is_plain(sign) or sign == "\t" else sign.encode("unicode_escape").decode() for sign in shown
    )
