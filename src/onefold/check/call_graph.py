"""The functions of the files that were read: which functions each can call, and what callers pass to its parameters.

A parameter has a role (an event, a record, a key with a message's id) only if every call found passes that value.
Never here: rules, or which function is a handler. Invariant: rounds, functions and depth are bounded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from onefold.check.python_modules import FUNCTION, FunctionNode, Module
from onefold.check.python_values import UNKNOWN, Roles, Value, Values, met

ROUNDS_MAX: Final = 6
REACH_MAX: Final = 500
STEPS_MAX: Final = 8  # calls from one function to the next
Sites = list[tuple[ast.Call, "CallUnit"]]


class CallUnit:
    """A function, or the top level of a module, with its own nodes: without those of functions inside it.

    Attributes:
        name: dotted path inside the module, "" for the top level. id: the module's path and the name.
    """

    def __init__(self, node: FunctionNode | ast.Module, module: Module) -> None:
        self.node = node
        self.module = module
        around = [one for one in module.above(node) if isinstance(one, (*FUNCTION, ast.ClassDef))]
        own = [] if isinstance(node, ast.Module) else [node.name]
        self.name = ".".join([*(one.name for one in reversed(around)), *own])
        self.id = f"{module.path}:{self.name}"
        self.nodes = module.owned[node]
        self.is_method = bool(around) and isinstance(around[0], ast.ClassDef)

    @property
    def parameters(self) -> list[str]:
        """The names of the positional parameters; for a method, without the first."""
        if isinstance(self.node, ast.Module):
            return []
        names = [one.arg for one in (*self.node.args.posonlyargs, *self.node.args.args)]
        is_static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in self.node.decorator_list)
        return names[1:] if self.is_method and not is_static else names

    def calls(self) -> Iterator[ast.Call]:
        """Its calls, in source order."""
        found = [one for one in self.nodes if isinstance(one, ast.Call)]
        yield from sorted(found, key=lambda one: (one.lineno, one.col_offset))


class CallGraph:
    """The units of some modules and the calls between them.

    Attributes:
        units: by their nodes.
    """

    def __init__(self, modules: Iterable[Module], values: Values) -> None:
        self.values = values
        self.units: dict[ast.AST, CallUnit] = {}
        self._called: dict[ast.AST, list[CallUnit]] = {}
        for module in modules:
            for node in module.owned:
                if isinstance(node, (ast.Module, *FUNCTION)):
                    self.units[node] = CallUnit(node, module)

    def unit(self, node: ast.AST | None, module: Module) -> CallUnit | None:
        """The unit that an expression refers to; None if it is not a function of a file that was read."""
        found = self.values.function(node, module)
        return None if found is None else self.units.get(found[0])

    def called(self, unit: CallUnit) -> list[CallUnit]:
        """The units that a unit can call: every function that is named in it, and the functions inside it."""
        known = self._called.get(unit.node)
        if known is None:
            known = self._called[unit.node] = []
            for node in unit.nodes:
                found = self.units.get(node) if isinstance(node, FUNCTION) else None
                if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                    found = self._named(node, unit.module)
                if found is not None and found not in known:
                    known.append(found)
        return known

    def _named(self, node: ast.Name | ast.Attribute, module: Module) -> CallUnit | None:
        value = self.values.of(node, module)
        if value.kind == "class" and isinstance(value.of, ast.ClassDef):
            made = (one for one in value.of.body if isinstance(one, FUNCTION) and one.name == "__init__")
            return self.units.get(next(made, value.of))
        return self.units.get(value.of) if value.kind == "function" else None

    def reach(self, unit: CallUnit) -> list[CallUnit]:
        """A unit and what it can call, directly or indirectly, the nearest first; steps and functions are bounded."""
        found, nearest = {unit: None}, [unit]
        for _ in range(STEPS_MAX):
            nearest = [one for caller in nearest for one in self.called(caller) if one not in found]
            found.update(dict.fromkeys(nearest))
            if not nearest or len(found) >= REACH_MAX:
                break
        return list(found)[:REACH_MAX]

    def spread(self, initial: Roles, handed: Sequence[tuple[CallUnit, int, Value]]) -> None:
        """Set what parameters are: first those that are known, then what calls pass to other parameters.

        Args:
            initial: the known parameters.
            handed: what a library passes to a parameter, by its index; a batch processor passes a record.
        """
        self.values.give(dict(initial))
        self._called.clear()
        given = {**initial}
        for unit, index, value in handed:
            if index < len(unit.parameters):
                given[unit.node, unit.parameters[index]] = value
        names = {one.node.name for one in self.units.values() if isinstance(one.node, FUNCTION)}
        sites = [(call, unit) for unit in self.units.values() for call in unit.calls() if _last(call) & names]
        for _ in range(ROUNDS_MAX):
            known = [(call, unit) for call, unit in sites if next(self._given(call, unit), None) is not None]
            roles = {**self._proposed(known), **given}
            if roles == self.values.roles:
                break
            sites = known
            self.values.give(roles)
            self._called.clear()

    def _proposed(self, sites: Sites) -> Roles:
        proposals: dict[tuple[ast.AST, str], list[Value]] = {}
        for call, caller in sites:
            for callee, name, value in self._given(call, caller):
                proposals.setdefault((callee.node, name), []).append(value)
        found = {key: met(values) for key, values in proposals.items()}
        return {key: value for key, value in found.items() if value != UNKNOWN}

    def _given(self, call: ast.Call, caller: CallUnit) -> Iterator[tuple[CallUnit, str, Value]]:
        """The parameters that one call sets, and their values: f(x), pool.submit(f, x), pool.map(f, xs), map(f, xs)."""
        module, arguments = caller.module, call.args
        callee = self.unit(call.func, module)
        how = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        is_map = False
        if callee is None and how in {"map", "submit", "imap", "imap_unordered", "apply_async", "run"} and arguments:
            callee, arguments = self.unit(arguments[0], module), arguments[1:]
            is_map = how not in {"submit", "run", "apply_async"}
        if callee is None or isinstance(callee.node, ast.Module):
            return
        for name, argument in zip(callee.parameters, arguments, strict=False):
            if isinstance(argument, ast.Starred):
                return
            value = self.values.of(argument, module)
            yield callee, name, _of_iterable(value) if is_map else value
        for keyword in call.keywords:
            if keyword.arg is not None:
                yield callee, keyword.arg, self.values.of(keyword.value, module)


def _of_iterable(value: Value) -> Value:
    return {"records": Value("record"), "messages": Value("message", value.of)}.get(value.kind, UNKNOWN)


def _last(call: ast.Call) -> set[str]:
    """The names under which a call can reach a function: of the callee, and of the first argument."""
    found = set()
    for one in (call.func, *call.args[:1]):
        found.add(one.attr if isinstance(one, ast.Attribute) else one.id if isinstance(one, ast.Name) else "")
    return found
