"""A plan or state of Terraform, as `terraform show -json` prints it: resources, what is unknown, and what refers to what.

A value that is known only after apply is a reference to the resource that it comes from, if the configuration names a
single one; otherwise it is `Unresolved`, with the resources that it may come from.
Never here: what a resource is in CloudFormation's words (terraform_resources.py). Invariants: no value is guessed; size and
depth of what is read are bounded; OpenTofu's files have the same form.

Source: Terraform documentation, "JSON Output Format", format version 1: `after_unknown` has true for what is not known,
and `references` has each reference, then its shorter forms.
"""

from __future__ import annotations

import re
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from onefold.check.documents import json_of
from onefold.check.facts import Unresolved
from onefold.check.files import contents
from onefold.check.terraform_sources import Written, written_in

FILE_BYTES_MAX: Final = 33_554_432  # ours, 32 MiB: a plan of about ten thousand resources
STEPS_MAX: Final = 20  # ours: modules and variables through which a reference is followed
MODULES_DEEP_MAX: Final = 20
ABSENT: Final = object()
_REFERENCE: Final = re.compile(r"((?:data\.)?[a-z][a-z0-9_]*\.[\w-]+)(\[[^\]]{1,255}\])?(?:\.([a-z][a-z0-9_]*))?")
_INDEX: Final = re.compile(r"\[[^\[\]]{0,255}\]")
_ALIAS: Final = re.compile(r'\[(?:[0-9]+|"[^"\]]*")\]$')
UNKNOWN: Final = "it is known after apply"
Json = dict[str, Any]


class PlanTarget(Struct, frozen=True):
    """A resource that is referred to, and its attribute, "" if that is not known."""

    address: str
    attribute: str


class Planned(Struct, frozen=True, kw_only=True):
    """A resource or data source: its address, type, module, provider and arguments.

    `written`: where it and its arguments are in the files beside the plan, if these are there. `condition`: what its
    existence depends on, "" if it certainly exists. `is_data`: it is only read, and made elsewhere.
    """

    address: str
    type: str
    module: str
    provider: str
    body: Block
    written: abc.Mapping[str, Written] = {}
    condition: str = ""
    is_data: bool = False


class Plan(Struct, frozen=True, kw_only=True):
    """All resources by their addresses. `regions`: those of providers, if written. `missing`: why there may be more.

    `outputs`: the root module's outputs, to which others may refer. `text`: the file's, if it is not a plan.
    """

    file: str
    resources: abc.Mapping[str, Planned]
    outputs: abc.Mapping[str, list[PlanTarget]]
    regions: abc.Mapping[str, str]
    missing: tuple[str, ...]
    text: str = ""


def is_plan(data: Any) -> bool:
    """Whether data is what `terraform show -json` prints."""
    return isinstance(data, dict) and "terraform_version" in data and bool({"planned_values", "values"} & data.keys())


def loaded(path: Path) -> Any:
    """A file as JSON; None when it is something else.

    Raises:
        StorageError: it cannot be read.
        UsageError: it is larger than 32 MiB.
    """
    raw = contents(path, FILE_BYTES_MAX, todo="Plan a part: terraform plan -target.")
    try:
        return json_of(raw)
    except ValueError:
        return None


def plan_of(file: str, data: Json) -> Plan:
    """Read a plan or a state."""
    return _Reader(file, data).plan()


class Block:
    """Arguments of a resource, or of a block in it. `targets_of`: the resources that an expression refers to."""

    def __init__(self, targets_of: TargetsOf, address: str, values: Any, unknown: Any, expressions: Any) -> None:
        self._targets_of = targets_of
        self.address = address
        self.values: Json = values if isinstance(values, dict) else {}
        self._unknown: Any = unknown
        self._expressions: Json = expressions if isinstance(expressions, dict) else {}

    def is_written(self, name: str) -> bool:
        """Whether the configuration gives an argument."""
        return name in self._expressions

    def value(self, name: str) -> Any:
        """The value: known, `ABSENT`, a reference, or `Unresolved`, perhaps inside."""
        unknown = self._unknown.get(name) if isinstance(self._unknown, dict) else self._unknown
        if unknown is True:
            return self._unknown_value(name)
        value = self.values.get(name)
        if value is None or value == "":
            return ABSENT
        return _with_gaps(value, unknown)

    def blocks(self, name: str) -> list[Block] | Unresolved:
        """The blocks with a name, as a list even if there is only one."""
        unknown = self._unknown.get(name) if isinstance(self._unknown, dict) else self._unknown
        if unknown is True:
            return Unresolved(UNKNOWN) if name in self._expressions else []
        values, expressions = self.values.get(name), self._expressions.get(name)
        if isinstance(values, Perhaps):
            return Unresolved(values.why)
        values = values if isinstance(values, list) else [values] if isinstance(values, dict) else []
        expressions = expressions if isinstance(expressions, list) else [expressions]
        unknown = unknown if isinstance(unknown, list) else [unknown] if isinstance(unknown, dict) else []
        fits = len(expressions) == len(values)  # they do not if a loop makes blocks
        return [
            Block(
                self._targets_of, self.address, one,
                unknown[at] if at < len(unknown) else {}, expressions[at] if fits else {},
            )
            for at, one in enumerate(values)
        ]  # fmt: skip

    def targets(self, name: str) -> list[PlanTarget] | None:
        """The resources that an argument refers to; None if that is not known."""
        expression = self._expressions.get(name)
        return self._targets_of(expression, self.address) if expression else None

    def _unknown_value(self, name: str) -> Any:
        if name not in self._expressions:
            return ABSENT  # computed, as the provider or AWS does when nothing is written
        targets = self.targets(name)
        if targets is not None and len(targets) == 1 and targets[0].attribute:
            return targets[0]
        return Perhaps(tuple(targets or ()))


class Perhaps(Struct, frozen=True):
    """A value that is not known, the reason, and the resources it is made of, if these are known."""

    targets: tuple[PlanTarget, ...]
    why: str = UNKNOWN


class Pieces(Struct, frozen=True):
    """A text with parts that are references or not known."""

    parts: tuple[Any, ...]


class Encoded(Struct, frozen=True):
    """A value to be written as JSON, not all of which is known."""

    value: Any


TargetsOf = Callable[[Any, str], "list[PlanTarget] | None"]


def _with_gaps(value: Any, unknown: Any) -> Any:
    if unknown is True:
        return Unresolved(UNKNOWN)
    if isinstance(value, dict) and isinstance(unknown, dict):
        return {key: _with_gaps(value.get(key), unknown.get(key)) for key in {**value, **unknown}}
    if isinstance(value, list) and isinstance(unknown, list):
        marks = [*unknown, *[False] * len(value)]
        return [_with_gaps(one, mark) for one, mark in zip(value, marks, strict=False)]
    return value


class _Reader:
    def __init__(self, file: str, data: Json) -> None:
        self._file = file
        self._data = data
        self._root = _mapping(_mapping(data.get("configuration")).get("root_module"))
        self._resources: dict[str, Planned] = {}
        self._modules: dict[str, Json] = {"": self._root}
        self._of: dict[str, str] = {}
        self._instances: dict[str, list[str]] = {}
        self._folders: dict[str, Path | None] = {"": Path(file).parent}
        self._written: dict[Path, dict[str, dict[str, Written]]] = {}

    def plan(self) -> Plan:
        changes = {
            str(one.get("address")): _mapping(one.get("change"))
            for one in _list(self._data.get("resource_changes"))
            if isinstance(one, dict) and "deposed" not in one
        }
        prior = _mapping(_mapping(self._data.get("prior_state")).get("values"))
        root = _mapping(_mapping(self._data.get("planned_values", self._data.get("values"))).get("root_module"))
        for module, of_data in ((_mapping(prior.get("root_module")), True), (root, False)):
            for address, one in _walked(module, "", 0):
                if not of_data or one.get("mode") == "data":
                    self._take(address, one, _mapping(changes.get(str(one.get("address")))))
        return Plan(
            file=self._file,
            resources=self._resources,
            outputs={
                name: self.targets(_mapping(one).get("expression"), "") or []
                for name, one in _mapping(self._root.get("outputs")).items()
            },
            regions=self._regions(),
            missing=tuple(self._missing()),
        )

    def _take(self, module: str, one: Json, change: Json) -> None:
        address, kind = str(one.get("address")), str(one.get("type"))
        local = _INDEX.sub("", address.removeprefix(f"{module}.") if module else address)
        configured = self._configured(module, local)
        values = change.get("after") if isinstance(change.get("after"), dict) else one.get("values")
        self._of[address] = module
        self._instances.setdefault(_ALIAS.sub("", address), []).append(address)
        self._resources[address] = Planned(
            address=address,
            type=kind,
            module=module,
            provider=str(configured.get("provider_config_key", "")).rpartition(":")[2],
            body=Block(
                self._targets_of, address, values, _mapping(change.get("after_unknown")), configured.get("expressions")
            ),
            written=self._written_in(self._folder(_INDEX.sub("", module))).get(local, {}),
            is_data=one.get("mode") == "data",
        )

    def _configured(self, module: str, local: str) -> Json:
        for one in _list(self._module(module).get("resources")):
            if isinstance(one, dict) and one.get("address") == local:
                return one
        return {}

    def _module(self, address: str) -> Json:
        """The configuration of a module by its address, `module.a["x"].module.b`."""
        if address not in self._modules:
            above, _, call = address.rpartition("module.")
            parent = self._module(above.rstrip("."))
            calls = _mapping(parent.get("module_calls"))
            self._modules[address] = _mapping(_mapping(calls.get(_ALIAS.sub("", call))).get("module"))
        return self._modules[address]

    def _folder(self, module: str) -> Path | None:
        """The directory of a module, by its address without indices; None if it is not a local one."""
        if module not in self._folders:
            above, _, call = module.rpartition("module.")
            above = above.rstrip(".")
            folder = self._folder(above)
            calls = _mapping(self._module(above).get("module_calls"))
            source = str(_mapping(calls.get(call)).get("source"))
            is_local = folder is not None and source.startswith(("./", "../"))
            self._folders[module] = folder / source if folder is not None and is_local else None
        return self._folders[module]

    def _written_in(self, folder: Path | None) -> dict[str, dict[str, Written]]:
        if folder is None:
            return {}
        if folder not in self._written:
            self._written[folder] = written_in(folder)
        return self._written[folder]

    def _targets_of(self, expression: Any, address: str) -> list[PlanTarget] | None:
        return self.targets(expression, self._of.get(address, ""))

    # -- references ------------------------------------------------------------------------------------------------------

    def targets(self, expression: Any, module: str) -> list[PlanTarget] | None:
        """The resources that an expression refers to; None if one of its names cannot be followed."""
        found: dict[str, PlanTarget] = {}
        for one in self._followed(expression, module, 0):
            if one is None:
                return None
            found.setdefault(one.address, one)
        return list(found.values())

    def _followed(self, expression: Any, module: str, steps: int) -> Iterator[PlanTarget | None]:
        if steps > STEPS_MAX:
            yield None
            return
        references = [one for one in _list(_mapping(expression).get("references")) if isinstance(one, str)]
        whole = [one for one in references if not any(_begins(other, one) for other in references)]
        for reference in whole:
            if reference.startswith("var."):
                above, _, call = module.rpartition("module.")
                above = above.rstrip(".")
                calls = _mapping(self._module(above).get("module_calls")) if module else {}
                given = _mapping(_mapping(calls.get(_ALIAS.sub("", call))).get("expressions"))
                inner = given.get(reference.split(".")[1])
                if inner is not None:
                    yield from self._followed(inner, above, steps + 1)
            elif reference.startswith("module."):
                yield from self._of_output(reference, module, steps)
            elif reference.startswith(("local.", "each.value", "self.")) or "." not in reference:
                yield None
            elif not reference.startswith(("each.", "count.", "path.", "terraform.")):
                yield from self._of_resource(reference, module)

    def _of_output(self, reference: str, module: str, steps: int) -> Iterator[PlanTarget | None]:
        match = re.fullmatch(r"(module\.[\w-]{1,255}(?:\[[^\]]{0,255}\])?)\.([\w-]{1,255})(?:[^\w-].*)?", reference)
        if match is None:
            yield None
            return
        inner = f"{module}.{match[1]}" if module else match[1]
        output = _mapping(_mapping(self._module(inner).get("outputs")).get(match[2]))
        if not output:
            yield None
        else:
            yield from self._followed(output.get("expression"), inner, steps + 1)

    def _of_resource(self, reference: str, module: str) -> Iterator[PlanTarget | None]:
        match = _REFERENCE.match(reference)
        if match is None:
            yield None
            return
        base = f"{module}.{match[1]}" if module else match[1]
        address = f"{base}{match[2] or ''}"
        if address in self._resources:
            yield PlanTarget(address, match[3] or "")
            return
        instances = self._instances.get(base, [])
        if not instances:
            yield None
        for one in instances:
            yield PlanTarget(one, (match[3] or "") if len(instances) == 1 else "")

    # -- the rest --------------------------------------------------------------------------------------------------------

    def _regions(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, one in _mapping(_mapping(self._data.get("configuration")).get("provider_config")).items():
            region = _mapping(_mapping(_mapping(one).get("expressions")).get("region")).get("constant_value")
            if isinstance(region, str):
                found[str(key).rpartition(":")[2]] = region
        return found

    def _missing(self) -> Iterator[str]:
        if self._data.get("complete") is False or self._data.get("deferred_changes"):
            yield "what the plan defers"
        if self._data.get("errored") is True:
            yield "what the plan did not reach"


def _begins(longer: str, reference: str) -> bool:
    """Whether another reference says the same and more."""
    return longer != reference and longer.startswith(reference) and longer[len(reference)] in ".["


def _walked(module: Json, address: str, depth: int) -> Iterator[tuple[str, Json]]:
    """The resources of a module and of those inside it, each with the module's address."""
    for one in _list(module.get("resources")):
        if isinstance(one, dict):
            yield address, one
    for child in _list(module.get("child_modules")):
        if isinstance(child, dict) and depth < MODULES_DEEP_MAX:
            yield from _walked(child, str(child.get("address", "")), depth + 1)


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()
