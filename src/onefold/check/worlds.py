"""The possible worlds of a template: the combinations of its conditions that can occur, that of the defaults first.

A condition compares parameters with texts, and a parameter may be a key of a table in `Mappings`. Each parameter that a
condition or table depends on takes its default, its allowed values, the texts it is compared with, and, if any text is
allowed, one that is none of these. Two combinations in which the same conditions hold, with the same keys, are one world.
A parameter that was given has its value in all worlds; a combination that the section Rules forbids is not a world.

Never here: what is in a template (collect_template.py). Invariants: every world is possible, unless a parameter's pattern
forbids it; the number of worlds is bounded, and those that were not looked at are counted and named.
Source: CloudFormation user guide, Conditions, Parameters and Rules sections.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product
from math import prod
from typing import Any, Final

from msgspec import Struct

from onefold.check.collect_template import ALIAS, AROUND, ATTACHED, CONNECTOR, MAPPING, POLICIES
from onefold.check.facts import Document, Unresolved
from onefold.check.intrinsics import flag, text_of
from onefold.check.loops import LOOP
from onefold.check.scope import ACCOUNT, FUNCTIONS, QUEUE, REGION, STACK, Scope

WORLDS_MAX: Final = 32  # ours
RESOURCES_MAX: Final = 3_000  # ours: in all worlds together, so that a large template does not take much longer
CHARS_MAX: Final = 4_000_000  # ours: the same for their text
TRIED_MAX: Final = 512  # ours: combinations; most of them are worlds that were seen before
EVALUATED_MAX: Final = 100_000  # ours: values in conditions and parameters, in all combinations that are tried
TOLD_MAX: Final = 64  # ours: conditions by which worlds are told apart
NAMED_MAX: Final = 5  # ours: conditions in an example
COUNTED_MAX: Final = 10**15  # ours; Python writes no number of more than 4,300 digits
VALUES_MAX: Final = 16  # ours: values of one parameter
_READ: Final = frozenset({QUEUE, MAPPING, CONNECTOR, ALIAS, *FUNCTIONS, *POLICIES, *ATTACHED, *AROUND})
_ONLY_A_NAME: Final = re.compile(r"\$\{([A-Za-z0-9:]{1,255})\}")
_ELSEWHERE: Final = {  # values for what the template does not name
    ACCOUNT: ("123456789012", "210987654321", "111122223333"),
    REGION: ("us-east-1", "eu-west-1", "ap-southeast-2", "us-west-2"),
    STACK: ("elsewhere", "another"),
}


class World(Struct, frozen=True, kw_only=True):
    """One combination.

    Attributes:
        values: the parameters' values, if not their defaults; Unresolved: any text but certain ones. With them may be the
            account, the region and the name of the stack, as pseudo parameters.
        holds: the conditions that are known, and whether each holds.
        shown: all values that are known, for people.
    """

    values: Mapping[str, Any] = {}
    holds: Mapping[str, bool] = {}
    shown: Mapping[str, str] = {}


class Worlds(Struct, frozen=True, kw_only=True):
    """The worlds that are looked at, that of the defaults first, and phrases for those that are not."""

    looked_at: tuple[World, ...]
    not_looked_at: tuple[str, ...] = ()

    def only(self, readable: Collection[int]) -> Worlds:
        """Only the worlds with these numbers; the others are reported as not looked at."""
        left = len(self.looked_at) - len(readable)
        if not left:
            return self
        said = f"{left} combination{'s' if left > 1 else ''} of its conditions with which it cannot be read"
        kept = tuple(one for number, one in enumerate(self.looked_at) if number in readable)
        return Worlds(looked_at=kept, not_looked_at=(said, *self.not_looked_at))

    def scenarios(self) -> Scenarios:
        """What distinguishes the worlds."""
        return Scenarios(self.looked_at)


class Scenarios:
    """Describes the worlds in which something holds."""

    def __init__(self, worlds: Sequence[World]) -> None:
        self._worlds = worlds
        self._conditions: dict[
            frozenset[int], str
        ] = {}  # the first condition, or its opposite, that holds in just these
        for name in dict.fromkeys(name for one in worlds for name in one.holds):
            for value in (True, False):
                where = frozenset(at for at, one in enumerate(worlds) if one.holds.get(name) is value)
                if where and len(where) < len(worlds) and len(self._conditions) < TOLD_MAX:
                    self._conditions.setdefault(where, f"{name} is {str(value).lower()}")
        names = dict.fromkeys(name for one in worlds for name in one.shown)
        values = {name: [one.shown.get(name) for one in worlds] for name in names}
        self._values = {name: those for name, those in values.items() if len(set(those)) > 1}

    def of(self, some: Collection[int]) -> str:
        """The worlds in which something holds, as a phrase: `Production is false`; "" for all of them.

        Args:
            some: their numbers.
        """
        if len(some) == len(self._worlds):
            return ""
        chosen, first = frozenset(some), min(some)
        differs = {name: those[first] for name, those in self._values.items() if those[first] not in (None, those[0])}
        example = " and ".join(f"{name} is {value}" for name, value in differs.items())
        said = next(self._exactly(chosen), None)
        if said is None:
            holds = [told for where, told in self._conditions.items() if first in where]
            return f"for example {example or ' and '.join(holds[:NAMED_MAX])}"
        return said if not example or example == said else f"{said}, as when {example}"

    def _exactly(self, chosen: frozenset[int]) -> Iterator[str]:
        """What holds in these worlds and in no other: one condition, the values of one parameter, or two conditions."""
        if chosen in self._conditions:
            yield self._conditions[chosen]
        for name, those in self._values.items():
            values = dict.fromkeys(those[at] for at in sorted(chosen))
            if None not in values and chosen == {at for at, value in enumerate(those) if value in values}:
                yield f"{name} is {' or '.join(map(str, values))}"
        for (here, left), (there, right) in combinations(self._conditions.items(), 2):
            if here & there == chosen:
                yield f"{left} and {right}"


def worlds_of(document: Document, parameters: Mapping[str, str], *, account: str, region: str) -> Worlds:
    """The worlds of a template.

    Args:
        parameters: those that are given, the same in all worlds. account, region: unless the document gives others.

    Raises:
        UsageError: see `collect_template.collect`.
    """
    if not document.data.get("Conditions") and not document.data.get("Mappings"):
        return Worlds(looked_at=(World(),))

    def scope(values: Mapping[str, Any]) -> Scope:
        return Scope(document, parameters=parameters, account=account, region=region, everything=True, values=values)

    try:
        uses = _Uses(scope({}))
    except RecursionError:
        return Worlds(looked_at=(World(),), not_looked_at=("conditions, which refer to one another too deeply",))
    candidates = {
        name: found
        for name, texts in uses.names.items()
        if name not in parameters and (found := uses.candidates(name, list(texts)))
    }
    resources, chars = max(1, len(uses.scope.resources)), max(1, len(document.text))
    count_max = max(2, min(WORLDS_MAX, RESOURCES_MAX // resources, CHARS_MAX // chars))
    tried_max = max(2, min(TRIED_MAX, EVALUATED_MAX // uses.weight))
    seen: dict[object, World] = {}
    for number, assigned in enumerate(_combinations(candidates)):
        if number == tried_max:
            break
        here = scope(assigned)
        if number and not _is_allowed(here, candidates):
            continue
        holds = {name: value for name in uses.conditions if isinstance(value := here.condition(name), bool)}
        keys = tuple(str(here.ref(name)) for name in uses.keys)
        shown = {name: str(value) for name in candidates if isinstance(value := here.ref(name), str | int | float)}
        seen.setdefault((tuple(holds.items()), keys), World(values=assigned, holds=holds, shown=shown))
    looked_at = tuple(seen.values())[:count_max]
    left = len(seen) - len(looked_at)
    untried = prod(map(len, candidates.values())) - tried_max
    many = f"{untried:,}" if untried < COUNTED_MAX else f"more than {COUNTED_MAX:,}"
    return Worlds(
        looked_at=looked_at,
        not_looked_at=(
            *((f"{left} more combinations of its conditions",) if left else ()),
            *((f"{many} combinations of parameters, not tried",) if untried > 0 else ()),
            *(f"the other case of condition {name}" for name in uses.fixed(seen.values(), parameters)),
        ),
    )


def _combinations(candidates: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Values by name: first the first of each; then all combinations in which one differs, then two, and so on."""
    first = {name: values[0] for name, values in candidates.items()}
    for number in range(len(candidates) + 1):
        for some in combinations(candidates, number):
            for values in product(*(candidates[name][1:] for name in some)):
                yield {**first, **dict(zip(some, values, strict=True))}


def _is_allowed(scope: Scope, varied: Collection[str]) -> bool:
    """Whether the template's rules about the parameters that vary allow the values that they have here."""
    rules = scope.document.data.get("Rules")
    for rule in rules.values() if isinstance(rules, dict) else ():
        if not isinstance(rule, dict) or not set(_referred(rule)) & set(varied):
            continue
        if flag(scope.resolve(rule.get("RuleCondition", True))) is False:
            continue
        assertions = rule.get("Assertions")
        for one in assertions if isinstance(assertions, list) else ():
            if not isinstance(one, dict) or flag(scope.resolve(one.get("Assert"))) is not True:
                return False
    return True


def _referred(value: Any) -> Iterator[str]:
    """Names that a value refers to with `Ref`, or with an `Fn::Sub` that contains nothing else."""
    level = [value]
    while level:
        one = level.pop()
        if (name := _name_in(one)) is not None:
            yield name
        level += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()


def _name_in(value: Any) -> str | None:
    """The name to which a value only refers: {"Ref": name} or {"Fn::Sub": "${name}"}."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    [(key, inner)] = value.items()
    if key == "Ref" and isinstance(inner, str):
        return inner
    found = _ONLY_A_NAME.fullmatch(inner) if key == "Fn::Sub" and isinstance(inner, str) else None
    return None if found is None else found[1]


class _Uses:
    """Which conditions and parameters matter for the resources that rules look at.

    `conditions`: those of the resources, and those that these refer to. `names`: what they depend on, with the texts that
    each is compared with. `keys`: which of these names are keys of a table.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.conditions: dict[str, set[str]] = {}  # with the names that each depends on
        self.names: dict[str, dict[str, None]] = {}
        self.keys: dict[str, None] = {}
        self.weight = len(scope.parameters) + 1  # the cost of one evaluation
        self._expressions = scope.section("Conditions")
        for name, resource in scope.resources.items():
            if name.startswith(LOOP) or scope.type_of(name) in _READ:
                self._resource(resource)
        self._resource(scope.section("Globals"))

    def _resource(self, value: Any) -> None:
        level = [value]
        while level:
            one = level.pop()
            if isinstance(one, dict):
                for key, inner in one.items():
                    first = inner[0] if isinstance(inner, list) and inner else inner
                    if key in {"Fn::If", "Condition"} and isinstance(first, str):
                        self._condition(first)
                    elif key == "Fn::FindInMap":
                        self._table(inner)
                level += one.values()
            elif isinstance(one, list):
                level += one

    def _condition(self, name: str) -> set[str]:
        if name not in self._expressions:
            return set()
        if name not in self.conditions:
            self.conditions[name] = set()
            self.conditions[name] |= self._expression(self._expressions[name])
        return self.conditions[name]

    def _expression(self, value: Any) -> set[str]:
        """Note what a condition compares, and return the names that it depends on."""
        found: set[str] = set()
        level = [value]
        while level:
            one = level.pop()
            self.weight += 1
            if isinstance(one, list):
                level += one
            if not isinstance(one, dict):
                continue
            for key, inner in one.items():
                if key == "Condition" and isinstance(inner, str):
                    found |= self._condition(inner)
                    continue
                if key == "Fn::FindInMap":
                    self._table(inner)
                if key == "Fn::Equals" and isinstance(inner, list) and len(inner) == 2:
                    self._compared(*inner)
                level.append(inner)
            if (name := _name_in(one)) is not None:
                self.names.setdefault(name, {})
                found.add(name)
        return found

    def _compared(self, left: Any, right: Any) -> None:
        for one, other in ((left, right), (right, left)):
            name, text = _name_in(one), text_of(other)
            if name is not None and isinstance(text, str):
                self.names.setdefault(name, {})[text] = None

    def _table(self, argument: Any) -> None:
        """Note which names are keys of a table, and which keys it has."""
        if not isinstance(argument, list) or len(argument) < 3 or not isinstance(argument[0], str):
            return
        table = self.scope.mapping(argument[0])
        rows = table if isinstance(table, Mapping) else {}
        columns = dict.fromkeys(key for row in rows.values() if isinstance(row, dict) for key in row)
        for part, keys in ((argument[1], rows), (argument[2], columns)):
            name = _name_in(part)
            if name is not None and name in self.scope.parameters:
                self.keys[name] = None
                self.names.setdefault(name, {}).update(dict.fromkeys(keys))

    def candidates(self, name: str, texts: list[str]) -> list[Any]:
        """The values that a parameter can have, its default first; empty if it does not vary."""
        if name in _ELSEWHERE:
            here = str(self.scope.ref(name))
            first = next((one for one in (here, *_ELSEWHERE[name]) if one not in texts), here)
            return [first, *texts] if texts else []
        about = self.scope.section("Parameters").get(name)
        if not isinstance(about, dict) or "List" in str(about.get("Type", "")):
            return []
        default = self.scope.parameters[name]
        known = [default] if isinstance(default, str) else []
        allowed = about.get("AllowedValues")
        if isinstance(allowed, list):
            choices = [text for one in allowed if isinstance(text := text_of(one), str)]
            compared = [one for one in choices if one in texts]
            return list(dict.fromkeys([*known, *compared, *choices]))[: max(VALUES_MAX, len(compared) + 2)]
        texts = [one for one in texts if one in known or _is_within(one, about)]
        if name in self.keys:
            return list(dict.fromkeys([*known, *texts]))
        if known and default not in texts:
            return [*known, *texts]
        if not texts:
            return []
        shown = f"{' or '.join(texts[:NAMED_MAX])}{' and so on' if len(texts) > NAMED_MAX else ''}"
        other = Unresolved(f"parameter {name} is something other than {shown}", frozenset(texts))
        return [*known, *(one for one in texts if one not in known), other] if known else [other, *texts]

    def fixed(self, worlds: Collection[World], given: Collection[str]) -> Iterator[str]:
        """The conditions that depend on a parameter, and are the same in all worlds, or not known in one."""
        parameters = self.scope.parameters.keys() - set(given)
        for name, depends in self.conditions.items():
            if len({one.holds.get(name) for one in worlds} - {None}) < 2 and depends & parameters:
                yield name


def _is_within(text: str, about: Mapping[str, Any]) -> bool:
    """Whether a parameter's bounds allow a value; its pattern is not considered."""
    bounds = {
        name: text_of(about[name]) for name in ("MinLength", "MaxLength", "MinValue", "MaxValue") if name in about
    }
    try:
        numbers = {name: float(str(bound)) for name, bound in bounds.items()}
        value = float(text) if "MinValue" in numbers or "MaxValue" in numbers else 0.0
    except ValueError:
        return False
    return (
        "AllowedPattern" not in about
        and numbers.get("MinLength", 0) <= len(text) <= numbers.get("MaxLength", len(text))
        and numbers.get("MinValue", value) <= value <= numbers.get("MaxValue", value)
    )
