"""A directory of Terraform's files as a plan, without Terraform: modules, variables, locals, loops, references.

Variables have the values of `terraform.tfvars` and `*.auto.tfvars`, or their defaults, unless other files of values give
different ones. Modules are followed if they are directories, or `terraform init` has installed them. A resource that exists
only under a condition that is not known has that condition; a loop over what is not known makes one resource, which stands
for all.
Never here: parsing (hcl_files.py), expressions (hcl_expressions.py), what resources mean (terraform_resources.py).
Invariants: nothing is run and AWS is not asked; numbers of modules, resources and blocks are bounded; what a module
that is not there may hold is in `Plan.missing`.

Source: Terraform documentation, "Modules", "Input Variables", "Local Values", "The count Meta-Argument", "The for_each
Meta-Argument", "Dynamic Blocks".
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from onefold.check.documents import json_of
from onefold.check.hcl_expressions import Evaluator, Scope
from onefold.check.hcl_files import (
    Expression,
    HclBlock,
    blocks_in,
    expression_of,
    files_in,
    other_values_in,
    values_in,
)
from onefold.check.hcl_resources import DeclaredResource, short
from onefold.check.hcl_types import converted
from onefold.check.hcl_values import (
    TEXT_MAX,
    Named,
    OfLoop,
    Splat,
    followed,
    targets_in,
    unknown,
)
from onefold.check.terraform_plan import Block, Encoded, Perhaps, Pieces, Plan, Planned, PlanTarget
from onefold.check.terraform_types import TYPES
from onefold.errors import UsageError

RESOURCES_MAX: Final = 5_000  # ours
INSTANCES_MAX: Final = 1_000  # ours: instances of one resource or module
MODULES_MAX: Final = 500
MODULES_DEEP_MAX: Final = 5
_NAMES: Final = frozenset({"name", "function_name", "alarm_name"})  # a reference says more than the value
_READ_DATA: Final = frozenset({"aws_iam_policy_document", "archive_file"})  # their arguments show what they return
_INSTALLED: Final = Path(".terraform/modules/modules.json")
_INSTALLED_BYTES_MAX: Final = 1_048_576
Json = dict[str, Any]


def plan_in(folder: Path) -> Plan:
    """Read a directory of Terraform's files, as far as they show what Terraform would plan.

    Raises:
        StorageError: a file cannot be read.
        UsageError: a file is not HCL or JSON; there is too much to read or to evaluate; python-hcl2 is not installed.
    """
    tree = _Tree(folder)
    root = _Module(tree, "", folder, ".", values_in(folder), others=other_values_in(folder))
    resources = {one.address: one for one in root.planned()}
    files = sorted(files_in(folder), key=lambda one: one.name != "main.tf")
    return Plan(
        file=str(files[0]) if files else str(folder),
        text=files[0].read_text(encoding="utf-8-sig", errors="replace") if files else "",
        resources=resources,
        outputs={name: list(targets_in(root.output(name))) for name in root.outputs},
        regions=root.regions(),
        missing=tuple(tree.missing),
    )


class _Tree:
    """What all modules of a directory share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.evaluator = Evaluator(str(folder))
        self.missing: dict[str, None] = {}
        self.modules = 0
        self.resources = 0
        self._blocks: dict[Path, dict[str, list[HclBlock]]] = {}
        self._parsed: dict[str, Any] = {}
        self._declared: dict[int, DeclaredResource] = {}
        self._installed: dict[str, Path] | None = None

    def blocks(self, folder: Path) -> dict[str, list[HclBlock]]:
        if folder not in self._blocks:
            self._blocks[folder] = blocks_in(folder)
        return self._blocks[folder]

    def parsed(self, text: str) -> Any:
        """The syntax tree of an expression in a text, which is parsed once."""
        if text not in self._parsed:
            self.evaluator.made(len(text))
            self._parsed[text] = expression_of(text, str(self.folder))
        return self._parsed[text]

    def declared(self, block: HclBlock) -> DeclaredResource:
        """What all instances of a resource share; the block is one of `blocks`, which are kept."""
        if id(block) not in self._declared:
            self._declared[id(block)] = DeclaredResource.of(block)
        return self._declared[id(block)]

    def installed(self, key: str) -> Path | None:
        """Where `terraform init` has put a module; its key is made of the names of calls."""
        if self._installed is None:
            self._installed = {}
            try:
                with (self.folder / _INSTALLED).open("rb") as file:
                    listed = json_of(file.read(_INSTALLED_BYTES_MAX))["Modules"]
                self._installed = {str(one["Key"]): self.folder / str(one["Dir"]) for one in listed}
            except (OSError, ValueError, KeyError, TypeError):
                pass
        return self._installed.get(key)


class _Instances(Struct, frozen=True):
    """How often something exists. `kind`: one, count or each, with keys and their values; or unknown, because of `text`."""

    kind: str
    keys: Mapping[Any, Any] = {}
    text: str = ""
    over: Perhaps | None = None

    def scopes(self) -> Iterator[tuple[str, Scope]]:
        """For each instance, the end of its address and the names that it has."""
        if self.kind in ("one", "unknown"):
            yield "", self.scope(None)
        for key in self.keys:
            yield self.end(key), self.scope(key)

    def end(self, key: Any) -> str:
        """The end of an instance's address."""
        return f"[{json.dumps(key, ensure_ascii=False)}]"

    def scope(self, key: Any) -> Scope:
        """The names that an instance has; `key` is None if it stands for all."""
        if self.kind == "count" and key is not None:
            return Scope({"count": {"index": key}})
        if self.kind == "each" and key is not None:
            return Scope({"each": {"key": key, "value": self.keys[key]}})
        if self.kind != "unknown":
            return Scope()
        key = self.over or unknown("a key of a loop that is not known")
        return Scope({"each": {"key": key, "value": key}, "count": {"index": key}}, self.text)


class _Module:
    """One instance of a module, in which the names in its expressions are looked up."""

    def __init__(
        self, tree: _Tree, address: str, folder: Path, path: str, given: Mapping[str, Expression] | None = None,
        arguments: Mapping[str, Callable[[], Any]] | None = None, providers: Mapping[str, str] | None = None,
        condition: str = "", calls: tuple[str, ...] = (), others: Mapping[str, Sequence[Expression]] | None = None,
    ) -> None:  # fmt: skip
        self._tree = tree
        self.address = address
        self._folder = folder
        self._path = path
        self._given = given or {}
        self._others = others or {}
        self._arguments = arguments or {}
        self._providers = providers or {}
        self._condition = condition
        self._calls = calls
        self._blocks = tree.blocks(folder)
        self._locals: dict[str, Expression] = {
            name: one for each in self._blocks.get("locals", ()) for name, one in each.attributes.items()
        }
        self.outputs = [name.partition(".")[2] for name in self._blocks if name.startswith("output.")]
        self._known: dict[str, Any] = {}
        self._loops: dict[str, _Instances] = {}
        self._children: dict[str, dict[str, _Module]] = {}

    # -- names -----------------------------------------------------------------------------------------------------------

    def named(self, root: str, steps: Sequence[Any], scope: Scope) -> Any:
        """What a name stands for."""
        first = steps[0] if steps and isinstance(steps[0], str) else ""
        match root:
            case "var":
                return followed(self._once(f"var.{first}", lambda: self._variable(first)), steps[1:])
            case "local":
                return followed(self._once(f"local.{first}", lambda: self._local(first)), steps[1:])
            case "path" if first in ("module", "root"):
                return self._path if first == "module" else "."
            case "module" if (block := self._block(f"module.{first}")) is not None:
                return self._chosen(block, f"module.{first}", self._child_named, steps[1:], scope)
            case "data":
                second = steps[1] if len(steps) > 1 and isinstance(steps[1], str) else ""
                name = f"data.{first}.{second}"
                block = self._block(name)
                if block is None or first not in _READ_DATA:
                    return unknown(f"{name} is read when Terraform plans")
                return self._chosen(block, name, self._resource_named, steps[2:], scope)
            case _ if (block := self._block(f"resource.{root}.{first}")) is not None:
                return self._chosen(block, f"{root}.{first}", self._resource_named, steps[1:], scope)
            case _:
                return unknown(f"{root}.{first} is not in these files" if first else f"{root} is not known")

    def parsed(self, text: str) -> Any:
        """The syntax tree of an expression in a text."""
        return self._tree.parsed(text)

    def read(self, path: str) -> str | None:
        """The text of a file in the directory of the module; None if a link leads out of it and of the root's."""
        below = os.path.normpath(path if self._path == "." else os.path.relpath(path, self._path))
        if os.path.isabs(path) or below.startswith(".."):
            return None
        try:
            real = (self._folder / below).resolve()
            if not real.is_file() or not any(
                real.is_relative_to(one.resolve()) for one in (self._folder, self._tree.folder)
            ):
                return None
            with real.open("rb") as file:
                raw = file.read(TEXT_MAX + 1)
            return None if len(raw) > TEXT_MAX else raw.decode("utf-8-sig")
        except (OSError, ValueError, RuntimeError):  # RuntimeError: links that lead to one another
            return None

    def _once(self, name: str, find: Callable[[], Any]) -> Any:
        """The value of a name; one that refers to itself is not known."""
        if name not in self._known:
            self._known[name] = unknown(f"{name} refers to itself")
            self._known[name] = find()
        return self._known[name]

    def _value(self, expression: Expression, scope: Scope = Scope()) -> Any:  # noqa: B008 - it has no state
        return self._tree.evaluator.value(expression.node, scope, self)

    def _block(self, name: str) -> HclBlock | None:
        return next(iter(self._blocks.get(name, ())), None)

    def _variable(self, name: str) -> Any:
        block = self._block(f"variable.{name}")
        if block is None:
            return unknown(f"there is no variable {name}")
        value = self._chosen_value(name, block)
        others = (self._typed(self._value(one), block) for one in self._others.get(name, ()))
        differs = any(one != value for one in others)
        return unknown(f"the files of values give var.{name} different ones", value) if differs else value

    def _chosen_value(self, name: str, block: HclBlock) -> Any:
        if name in self._arguments or name in self._given:
            value = self._arguments[name]() if name in self._arguments else self._value(self._given[name])
            is_nullable = block.attributes.get("nullable")
            if value is not None or is_nullable is None or self._value(is_nullable) is not False:
                return self._typed(value, block)
        default = block.attributes.get("default")
        return unknown(f"var.{name} has no default") if default is None else self._typed(self._value(default), block)

    def _typed(self, value: Any, variable: HclBlock) -> Any:
        written = variable.attributes.get("type")
        if written is None or (written.is_json and not isinstance(written.node, str)):
            return value
        constraint = self.parsed(written.node) if written.is_json else written.node
        evaluator = self._tree.evaluator
        return evaluator.measured(converted(value, constraint, lambda node: evaluator.value(node, Scope(), self)))

    def _local(self, name: str) -> Any:
        found = self._locals.get(name)
        return unknown(f"there is no local.{name}") if found is None else self._value(found)

    def output(self, name: str) -> Any:
        """The module's outputs, for the module that calls it."""
        block = self._block(f"output.{name}")
        value = None if block is None else block.attributes.get("value")
        if value is None:
            return unknown(f"{self.address or 'the module'} has no output {name}")
        return self._once(f"output.{name}", lambda: self._value(value))

    # -- how often things exist ------------------------------------------------------------------------------------------

    def _instances(self, block: HclBlock) -> _Instances:
        if block.name not in self._loops:
            self._loops[block.name] = _Instances("unknown", text=block.name)  # while it refers to itself
            self._loops[block.name] = self._counted(block)
        return self._loops[block.name]

    def _counted(self, block: HclBlock) -> _Instances:
        count, each = block.attributes.get("count"), block.attributes.get("for_each")
        if count is not None:
            number = self._value(count)
            if type(number) is int and 0 <= number <= INSTANCES_MAX:
                return _Instances("count", {at: at for at in range(number)})
            return _unknown_loop(f"count = {short(count)}", number)
        if each is not None:
            many = self._value(each)
            if isinstance(many, list) and all(isinstance(one, str) for one in many):
                many = {one: one for one in many}
            if isinstance(many, dict) and len(many) <= INSTANCES_MAX:
                return _Instances("each", many)
            return _unknown_loop(f"for_each = {short(each)}", many)
        return _Instances("one")

    def _chosen(
        self, block: HclBlock, address: str, name: Callable[[HclBlock, str, Any], Named], steps: Sequence[Any], scope: Scope
    ) -> Any:  # fmt: skip
        """What `.name` and `[index]` lead to in a resource or module, of which there may be several."""
        found = self._instances(block)
        if found.kind == "one":
            return name(block, address, None).follow(steps)
        if found.kind in ("count", "each"):
            first = steps[0] if steps else None
            if type(first) is (int if found.kind == "count" else str) and first in found.keys:
                return followed(name(block, address, first), steps[1:])
            self._tree.evaluator.step(len(found.keys))
            many = {key: name(block, address, key) for key in found.keys}
            return followed(list(many.values()) if found.kind == "count" else many, steps)
        all_of_them = name(block, address, None)
        is_same = bool(steps) and steps[0] is OfLoop and bool(scope.loop) and scope.loop == found.text
        if is_same or (steps and type(steps[0]) is int and found.text.startswith("count")):
            return all_of_them.follow(steps[1:])
        return unknown(f"{address} has {found.text}, which is not known", all_of_them)

    def _resource_named(self, block: HclBlock, address: str, key: Any) -> Named:
        found = self._instances(block)
        end = "" if key is None else found.end(key)
        full = f"{self.address}.{address}{end}" if self.address else f"{address}{end}"
        scope = found.scope(key)
        return Named(PlanTarget(full, ""), lambda steps: self._attribute(block, full, scope, steps))

    def _attribute(self, block: HclBlock, address: str, scope: Scope, steps: Sequence[Any]) -> Any:
        whole = PlanTarget(address, "")
        if not steps:
            return Named(whole, lambda more: self._attribute(block, address, scope, more))
        if isinstance(steps[0], Splat):
            return followed([self._attribute(block, address, scope, steps[0].steps)], steps[1:])
        if not isinstance(steps[0], str):
            return unknown(f"a part of {address} that is not known", whole)
        kind, name = block.labels[0], steps[0]
        written = block.attributes.get(name)
        says_more = (kind in TYPES and name in _NAMES) or (kind, name) == ("archive_file", "output_path")
        if written is not None and not says_more:
            found = self._once(f"{address}.{name}", lambda: self._value(written, scope))
            return self._tree.evaluator.measured(followed(found, steps[1:]))
        defaults: Mapping[str, Any] = TYPES[kind].defaults if kind in TYPES else {}
        if name in defaults and written is None:
            return followed(defaults[name], steps[1:])
        if len(steps) > 1:
            return unknown(f"a part of {address} that is not known", whole)
        return PlanTarget(address, name)

    def _child_named(self, block: HclBlock, address: str, key: Any) -> Named:
        child = self._called(block).get("" if key is None else self._instances(block).end(key))

        def follow(steps: Sequence[Any]) -> Any:
            if child is None:
                return unknown(f"{address} is not read here")
            if steps and isinstance(steps[0], Splat):
                return followed([follow(steps[0].steps)], steps[1:])
            if not steps or not isinstance(steps[0], str):
                return Named(None, follow)
            return self._tree.evaluator.measured(followed(child.output(steps[0]), steps[1:]))

        return Named(None, follow)

    # -- modules ---------------------------------------------------------------------------------------------------------

    def _called(self, block: HclBlock) -> dict[str, _Module]:
        """The instances of a module that is called, by the ends of their addresses; none if it is not there."""
        call = block.labels[0]
        if call not in self._children:
            self._children[call] = {}
            folder = self._folder_of(block)
            if folder is None or len(self._calls) >= MODULES_DEEP_MAX:
                self._tree.missing[f"{self.address}{'.' if self.address else ''}module.{call}, which is not read"] = (
                    None
                )
                return {}
            self._children[call] = {
                end: self._child(block, folder, end, scope) for end, scope in self._instances(block).scopes()
            }
        return self._children[call]

    def _child(self, block: HclBlock, folder: Path, end: str, scope: Scope) -> _Module:
        self._tree.modules += 1
        if self._tree.modules > MODULES_MAX:
            raise UsageError(f"{self._tree.folder} calls more than {MODULES_MAX} modules.", todo="Check a plan.")

        def given(expression: Expression) -> Callable[[], Any]:
            return lambda: self._value(expression, scope)

        local = f"module.{block.labels[0]}{end}"
        listed = block.attributes.get("providers")
        passed = {name: short(one) for name, one in (listed.inside if listed is not None else {}).items()}
        return _Module(
            self._tree, f"{self.address}.{local}" if self.address else local, folder,
            os.path.relpath(folder, self._tree.folder),
            arguments={name: given(one) for name, one in block.attributes.items()},
            providers={**self._providers, **{name: self._providers.get(one, one) for name, one in passed.items()}},
            condition=self._condition_of(block),
            calls=(*self._calls, block.labels[0]),
        )  # fmt: skip

    def _folder_of(self, block: HclBlock) -> Path | None:
        written = block.attributes.get("source")
        source = self._value(written) if written is not None else None
        if isinstance(source, str) and source.startswith(("./", "../")):
            folder = Path(os.path.normpath(self._folder / source))
        else:
            installed = self._tree.installed(".".join((*self._calls, block.labels[0])))
            if installed is None:
                return None
            folder = Path(os.path.normpath(installed))
        return folder if os.path.isdir(folder) else None  # False also for a name that is too long

    # -- resources -------------------------------------------------------------------------------------------------------

    def planned(self) -> Iterator[Planned]:
        """The resources of the module and of those that it calls."""
        for blocks in self._blocks.values():
            block = blocks[0]
            if block.type == "module":
                for child in self._called(block).values():
                    yield from child.planned()
            elif block.type in ("resource", "data") and (block.type == "resource" or block.labels[0] in _READ_DATA):
                for end, scope in self._instances(block).scopes():
                    yield self._planned(block, end, scope)

    def _planned(self, block: HclBlock, end: str, scope: Scope) -> Planned:
        self._tree.resources += 1
        if self._tree.resources > RESOURCES_MAX:
            raise UsageError(
                f"{self._tree.folder} has more than {RESOURCES_MAX:,} resources.", todo="Check a part, or a plan."
            )
        local = f"{block.name.removeprefix('resource.')}{end}"
        address = f"{self.address}.{local}" if self.address else local
        declared = self._tree.declared(block)
        values, expressions = self._arguments_of(declared.own, scope)
        values |= declared.ignored
        provider = self._providers.get(declared.provider, declared.provider)
        if "region" in values and not isinstance(values["region"], str):
            provider = f"{provider}, region {declared.region}"
            del values["region"]
        return Planned(
            address=address,
            type=block.labels[0],
            module=self.address,
            provider=provider,
            body=Block(lambda found, _: found, address, values, {}, expressions),
            written=declared.written,
            condition=self._condition_of(block),
            is_data=block.type == "data",
        )

    def _condition_of(self, block: HclBlock) -> str:
        found = self._instances(block)
        if found.kind != "unknown":
            return self._condition
        own = f"{self.address}: {found.text}" if self.address else found.text
        return f"{self._condition} and {own}" if self._condition else own

    def _arguments_of(self, block: HclBlock, scope: Scope) -> tuple[Json, Json]:
        """The values of arguments and blocks, and the resources that they refer to."""
        self._tree.evaluator.step()
        values: Json = {}
        expressions: Json = {}
        for name, expression in block.attributes.items():
            values[name] = _settled(self._value(expression, scope))
            expressions[name] = list(targets_in(values[name]))
            if name == "dynamic" and isinstance(expression.node, dict):  # in JSON
                values |= {each: unknown("dynamic blocks in JSON") for each in expression.node}
        for one in block.blocks:
            kind = one.labels[0] if one.type == "dynamic" and one.labels else one.type
            scopes = self._dynamic(one, scope) if one.type == "dynamic" else [scope]
            content = (
                next((each for each in one.blocks if each.type == "content"), one) if one.type == "dynamic" else one
            )
            if scopes is None or isinstance(values.get(kind), Perhaps):
                values[kind] = unknown(f"dynamic blocks {kind} over what is not known")
                continue
            made = [self._arguments_of(content, each) for each in scopes]
            if isinstance(values.setdefault(kind, []), list):
                values[kind] += [inner for inner, _ in made]
                expressions.setdefault(kind, []).extend(inner for _, inner in made)
        return values, expressions

    def _dynamic(self, block: HclBlock, scope: Scope) -> list[Scope] | None:
        """The names that each of a dynamic block's blocks has; None when they are not known."""
        each, iterator = block.attributes.get("for_each"), block.attributes.get("iterator")
        many = self._value(each, scope) if each is not None else None
        if not isinstance(many, (list, dict)) or len(many) > INSTANCES_MAX:
            return None
        name = short(iterator) if iterator is not None else block.labels[0] if block.labels else ""
        pairs = list(many.items()) if isinstance(many, dict) else [(one, one) for one in many]
        return [scope.beside(**{name: {"key": key, "value": value}}) for key, value in pairs]

    def regions(self) -> dict[str, str]:
        """The regions of providers, by `aws` and `aws.alias`."""
        found: dict[str, str] = {}
        for one in self._blocks.get("provider.aws", ()):
            alias = self._value(one.attributes["alias"]) if "alias" in one.attributes else ""
            region = self._value(one.attributes["region"]) if "region" in one.attributes else None
            if isinstance(region, str) and isinstance(alias, str):
                found[f"aws.{alias}" if alias else "aws"] = region
        return found


def _unknown_loop(text: str, over: Any) -> _Instances:
    """A loop over something that is not known; if that is a resource's, the loop says so."""
    return _Instances("unknown", text=text, over=unknown(f"{text} is not known", over))


def _settled(value: Any) -> Any:
    """A value without names of whole resources in it."""
    match value:
        case Named():
            return unknown("a whole resource", value)
        case list():
            return [_settled(one) for one in value]
        case dict():
            return {name: _settled(one) for name, one in value.items()}
        case Encoded():
            return Encoded(_settled(value.value))
        case Pieces():
            return Pieces(tuple(_settled(one) for one in value.parts))
        case _:
            return value
