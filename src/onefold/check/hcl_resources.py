"""A resource of Terraform as its block declares it: its arguments, where they are written, its provider.

Never here: values (hcl_modules.py). Invariant: what Terraform itself reads of a block is no argument.

Source: Terraform documentation, "The lifecycle Meta-Argument".
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from onefold.check.hcl_files import Expression, HclBlock, nodes, unwrapped, word
from onefold.check.hcl_values import unknown
from onefold.check.terraform_plan import Perhaps
from onefold.check.terraform_sources import Written
from onefold.check.terraform_types import TYPES

_OWN: Final = frozenset(
    {"count", "for_each", "provider", "depends_on", "lifecycle", "provisioner", "connection", "timeouts"}
)


class DeclaredResource(Struct, frozen=True):
    """A resource's block without the arguments that Terraform itself reads, where it is written, and its provider.

    `ignored`: unknown values of the arguments in `ignore_changes`, which something else sets later.
    """

    own: HclBlock
    ignored: dict[str, Perhaps]
    written: dict[str, Written]
    provider: str
    region: str

    @classmethod
    def of(cls, block: HclBlock) -> DeclaredResource:
        """What a block declares."""
        own = HclBlock(
            block.type, block.labels, block.span,
            {name: one for name, one in block.attributes.items() if name not in _OWN},
            tuple(one for one in block.blocks if one.type not in _OWN),
        )  # fmt: skip
        provider, region = block.attributes.get("provider"), block.attributes.get("region")
        return cls(
            own,
            {name: unknown(f"{name} is in ignore_changes") for name in _ignored(block)},
            _written(own),
            short(provider) if provider is not None else block.labels[0].partition("_")[0],
            short(region) if region is not None else "",
        )


def short(expression: Expression) -> str:
    """An expression as a short text."""
    return (str(expression.node) if expression.is_json else word(expression.node).strip())[:200]


def _written(block: HclBlock) -> dict[str, Written]:
    """Where a block and its arguments are written."""
    found = {"": Written(block.span)}
    for one in block.blocks:
        found.setdefault(one.type, Written(one.span, inside=_written(one)))
    return {**found, **{name: _of_expression(one) for name, one in block.attributes.items()}}


def _of_expression(expression: Expression) -> Written:
    return Written(expression.span, inside={name: _of_expression(one) for name, one in expression.inside.items()})


def _ignored(block: HclBlock) -> Collection[str]:
    """The names in a resource's `ignore_changes`."""
    inner = [one.attributes for one in block.blocks if one.type == "lifecycle"]
    inner += [block.attributes["lifecycle"].inside] if "lifecycle" in block.attributes else []  # in JSON
    listed = [name for one in inner if "ignore_changes" in one for name in _listed(one["ignore_changes"])]
    if "all" in listed:
        return TYPES[block.labels[0]].parts.keys() if block.labels[0] in TYPES else ()
    return [re.split(r"[.\[]", one)[0] for one in listed]


def _listed(expression: Expression) -> list[str]:
    if expression.is_json:
        many = expression.node if isinstance(expression.node, list) else [expression.node]
        return [str(one) for one in many]
    inner = unwrapped(expression.node)
    return [word(one) for one in (nodes(inner) if inner.data == "tuple" else [inner])]
