"""Values of Terraform's variables, converted by their type constraints.

A text that stands for a number becomes one, and an object gets its optional attributes, with their defaults or null.
Never here: which value a variable has (hcl_modules.py). Invariant: what is not known stays unknown.

Sources: Terraform documentation, "Type Constraints" and "Types and Values", Optional Object Type Attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold.check.hcl_files import nodes, unwrapped, word
from onefold.check.hcl_values import Named, called, flag_of, number_of, text_of, unknown
from onefold.check.terraform_plan import Encoded, Perhaps, Pieces, PlanTarget

if TYPE_CHECKING:
    from lark import Token, Tree


def converted(value: Any, constraint: Tree[Token], evaluate: Callable[[Tree[Token]], Any]) -> Any:
    """A value, converted by a type constraint.

    Args:
        constraint: `map(object({ timeout = optional(number, 30) }))`. evaluate: returns the value of a default in it.
    """
    if value is None or isinstance(value, (PlanTarget, Perhaps, Pieces, Encoded, Named)):
        return value
    kind, inside = _constructor(constraint)
    match kind:
        case "string":
            text = text_of(value)
            return unknown("no text where one is needed", value) if text is None else text
        case "number":
            return number_of(value)
        case "bool":
            return flag_of(value)
        case "list" | "set" if inside and isinstance(value, list):
            made = [converted(one, inside[0], evaluate) for one in value]
            return called("toset", [made]) if kind == "set" else made
        case "map" if inside and isinstance(value, dict):
            return {name: converted(one, inside[0], evaluate) for name, one in value.items()}
        case "object" if inside and isinstance(value, dict):
            return _object(value, inside[0], evaluate)
        case _:
            return value


def _object(value: dict[str, Any], attributes: Tree[Token], evaluate: Callable[[Tree[Token]], Any]) -> Any:
    written = unwrapped(attributes)
    if written.data != "object":
        return unknown("a type that Terraform does not have", value)
    made: dict[str, Any] = {}
    for one in nodes(written):
        key, constraint = nodes(one)
        name = word(key).strip('"')
        given = value.get(name)
        kind, inside = _constructor(constraint)
        if kind == "optional" and inside:
            default = evaluate(inside[1]) if given is None and len(inside) == 2 else given
            made[name] = converted(default, inside[0], evaluate)
        elif name in value:
            made[name] = converted(given, constraint, evaluate)
    return made


def _constructor(constraint: Tree[Token]) -> tuple[str, list[Tree[Token]]]:
    """`map(string)` as its name and what is in the parentheses; or a name alone, which older files put in quotes."""
    inner = unwrapped(constraint)
    if inner.data != "function_call":
        return word(inner).strip('"'), []
    name, *rest = nodes(inner)
    return word(name), nodes(rest[-1]) if rest else []
