"""Whether the columns of a CSV file can make items of the declared type: asked once, before anything is sent.

A column that no row can do without, and that the header does not have, would make every row malformed: a wrong file, a
wrong delimiter, a file without header. What a type requires is asked of msgspec and pydantic; where that cannot be told
(a union, a model that rewrites its input), nothing is refused, and rows are judged one by one.
Never here: reading rows, other formats (their values name their fields themselves). Invariant: no file is refused of which
a row could become an item.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import Formatter
from typing import Any, Final, cast

from msgspec import inspect

from onefold import errors
from onefold.maps.items import Source
from onefold.maps.items_csv import header_of
from onefold.maps.jobs import MapJob
from onefold.maps.rules import DELIMITERS, ItemReader

_SHOWN_CHARS: Final = 200
_REWRITES: Final = (
    "before",
    "wrap",
)  # modes of pydantic's model validators that see the row before its fields are read


def check_columns(source: Source, mapping: MapJob) -> None:
    """Refuse a CSV file whose header lacks what every item needs.

    Raises:
        UsageError: it does; or as `items_csv.header_of`.
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
        meaning="No row of it would be an item. Nothing was changed.",
        todo=_advice(header, lacking, reader),
    )


def _advice(header: tuple[str, ...], lacking: list[str], reader: ItemReader) -> str:
    if reader.header is not None:
        return "Its columns are declared with header=; name them as the fields of the type."
    if len(header) == 1:
        for name, sign in DELIMITERS.items():
            if sign in header[0].strip() and name not in ("space", reader.delimiter):
                return f'Is the delimiter {sign!r}? Then declare items=onefold.ItemReader(delimiter="{name}").'
    plain = {one.strip().casefold(): one for one in header}
    for field in lacking:
        if field.casefold() in plain:
            return f"Is {plain[field.casefold()]!r} meant? Names are compared letter by letter."
    return (
        "Give the file with these columns, or a field its default; is there no header at all, "
        "declare items=onefold.ItemReader(header=(...))."
    )


def _wanted(mapping: MapJob) -> Iterator[tuple[str, ...]]:
    """What a row must have: for each field the names that its column may have."""
    annotation = mapping.item.annotation
    if annotation is Any or isinstance(_known(annotation), inspect.AnyType | inspect.DictType):
        for name in dict.fromkeys(_fields_of(mapping.key.text)):
            yield (name,)
    else:
        yield from _required(annotation)


def _fields_of(key: str) -> Iterator[str]:
    """The fields that the template of a key begins with; none for JMESPath and functions."""
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
    """A type as msgspec sees it, without its remarks; None where it does not."""
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
        sign if sign.isprintable() or sign == "\t" else sign.encode("unicode_escape").decode() for sign in shown
    )
