"""What a handler returns to Lambda, and which failures it hides.

When a handler returns without `batchItemFailures`, Lambda treats the batch as processed and deletes all its messages.
Source: Lambda developer guide, "Implementing partial batch responses", on what counts as success.
Never here: rules. Invariant: the answer is `never` only if no return value can report failed messages, and a failure
counts as hidden only if nothing but a log line or metric remains of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from onefold.check.call_graph import CallGraph, CallUnit
from onefold.check.code_facts import Swallowed
from onefold.check.collect_calls import operation_of
from onefold.check.python_effects import Effects, is_pass
from onefold.check.python_modules import FUNCTION, Module
from onefold.check.python_values import Values

FIELD: Final = "batchItemFailures"
Answer = Literal["reports", "never", "unknown"]
BATCH: Final = "aws_lambda_powertools.utilities.batch"
_POWERTOOLS_ANSWERS: Final = frozenset({"process_partial_response", "async_process_partial_response"})
# Decorators that return what the function returns.
_TRANSPARENT: Final = (
    *("aws_lambda_powertools.utilities.batch", "aws_lambda_powertools.utilities.data_classes.event_source"),
    *("aws_lambda_powertools.utilities.idempotency", "aws_lambda_powertools.utilities.parser.event_parser"),
    *("aws_lambda_powertools.tracing", "aws_lambda_powertools.logging", "aws_lambda_powertools.metrics"),
    *("aws_lambda_powertools.utilities.typing", "aws_xray_sdk.core.xray_recorder", "datadog_lambda."),
)
_TRANSPARENT_METHODS: Final = frozenset(
    {"inject_lambda_context", "capture_lambda_handler", "log_metrics", "capture", "capture_method", "capture_async"}
)
_KEEPING: Final = ("send", "put_", "publish", "update_", "transact_", "start_", "invoke", "batch_write")
_BROAD: Final = frozenset({"builtins.Exception", "builtins.BaseException"})
_DEPTH_MAX: Final = 6


class HandlerAnswers:
    """Determines what functions return to Lambda."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._values = graph.values

    def of(self, unit: CallUnit, depth: int = 0) -> Answer:
        """Whether the return value of a function can report failed messages."""
        node = unit.node
        if isinstance(node, ast.Module) or (isinstance(node, ast.AsyncFunctionDef) and not depth) or depth > _DEPTH_MAX:
            return "unknown"
        if not all(self._is_transparent(one, unit.module) for one in node.decorator_list):
            return "unknown"
        if any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in unit.nodes):
            return "unknown"
        returns = [one for one in unit.nodes if isinstance(one, ast.Return)]
        answers = {self._value(one.value, unit, depth + 1) for one in returns}
        if may_end(node.body):
            answers.add("never")
        return _together(answers)

    def _is_transparent(self, decorator: ast.expr, module: Module) -> bool:
        func = decorator.func if isinstance(decorator, ast.Call) else decorator
        dotted = self._values.dotted(func, module)
        is_method = isinstance(func, ast.Attribute) and func.attr in _TRANSPARENT_METHODS
        return dotted.startswith(_TRANSPARENT) or is_method

    def _value(self, node: ast.expr | None, unit: CallUnit, depth: int) -> Answer:
        if depth > _DEPTH_MAX:
            return "unknown"
        match node:
            case None | ast.Constant(value=None | bool() | int()):
                return "never"
            case ast.Dict():
                return _of_dict(node)
            case ast.Await():
                return self._value(node.value, unit, depth)
            case ast.IfExp():
                return _together({self._value(one, unit, depth + 1) for one in (node.body, node.orelse)})
            case ast.Call():
                return self._call(node, unit, depth)
            case ast.Name():
                return self._name(node, unit, depth)
            case _:
                return "unknown"

    def _call(self, node: ast.Call, unit: CallUnit, depth: int) -> Answer:
        dotted = self._values.dotted(node.func, unit.module)
        if dotted.startswith(BATCH):
            return "reports" if dotted.rpartition(".")[2] in _POWERTOOLS_ANSWERS else "unknown"
        if dotted == "asyncio.run" and node.args and isinstance(node.args[0], ast.Call):
            return self._call(node.args[0], unit, depth + 1)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "response":
            made = self._values.class_of(node.func.value, unit.module)
            return "reports" if made.startswith(BATCH) else "unknown"
        callee = self._graph.unit(node.func, unit.module)
        return "unknown" if callee is None else self.of(callee, depth + 1)

    def _name(self, node: ast.Name, unit: CallUnit, depth: int) -> Answer:
        found = unit.module.scope_of(node).find(node.id)
        if found is None or found[0].node is not unit.node:
            return "unknown"
        answers: set[Answer] = set()
        for one in found[1]:
            is_value = one.how == "value" and not one.path and isinstance(one.node, ast.expr)
            answers.add(
                self._value(one.node, unit, depth + 1) if is_value and isinstance(one.node, ast.expr) else "unknown"
            )
        for stored in unit.nodes:
            if not isinstance(stored, ast.Subscript) or not isinstance(stored.ctx, ast.Store):
                continue
            if isinstance(stored.value, ast.Name) and stored.value.id == node.id:
                key = stored.slice
                answers.add("reports" if isinstance(key, ast.Constant) and key.value == FIELD else "unknown")
        answer = _together(answers)
        if answer == "never" and self._is_used_otherwise(node, unit):
            return "unknown"
        return answer

    def _is_used_otherwise(self, name: ast.Name, unit: CallUnit) -> bool:
        """Whether a name is used for anything but returning it; its value may then have been changed."""
        for one in unit.nodes:
            is_read = isinstance(one, ast.Name) and one.id == name.id and isinstance(one.ctx, ast.Load)
            if is_read and not isinstance(unit.module.parents.get(one), ast.Return):
                return True
        return False

    def is_powertools(self, reach: Iterable[CallUnit]) -> bool:
        """Whether a batch processor of Powertools is used; it raises when all messages of a batch failed."""
        for unit in reach:
            for node in unit.nodes:
                if isinstance(node, (ast.Name, ast.Attribute)) and self._values.dotted(node, unit.module).startswith(
                    BATCH
                ):
                    return True
        return False


def _of_dict(node: ast.Dict) -> Answer:
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant):
            return "unknown"
        if key.value == FIELD:
            return "never" if isinstance(value, (ast.List, ast.Tuple)) and not value.elts else "reports"
    return "never"


def _together(answers: set[Answer]) -> Answer:
    """`reports` if any does; `never` only if all are; otherwise `unknown`."""
    if "reports" in answers:
        return "reports"
    return "never" if answers == {"never"} else "unknown"


def may_end(body: Sequence[ast.stmt]) -> bool:
    """Whether execution can reach the end of the statements, without a return, raise, continue or break."""
    if not body:
        return True
    match body[-1]:
        case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
            return False
        case ast.If(body=inner, orelse=orelse):
            return may_end(inner) or may_end(orelse)
        case ast.With(body=inner) | ast.AsyncWith(body=inner):
            return may_end(inner)
        case ast.Try(body=inner, handlers=handlers, orelse=orelse, finalbody=finalbody):
            if finalbody and not may_end(finalbody):
                return False
            return may_end([*inner, *orelse]) or any(may_end(one.body) for one in handlers)
        case ast.While(test=ast.Constant(value=True)) as loop:
            return any(isinstance(one, ast.Break) for one in ast.walk(loop))
        case ast.Match(cases=cases):
            is_whole = any(isinstance(one.pattern, ast.MatchAs) and one.pattern.pattern is None for one in cases)
            return not is_whole or any(may_end(one.body) for one in cases)
        case _:
            return True


# -- failures that are hidden ----------------------------------------------------------------------------------------------


class Swallowing:
    """Finds the `except` clauses that hide the failure of a message or batch."""

    def __init__(self, graph: CallGraph) -> None:
        self._graph = graph
        self._values = graph.values
        self._effects = Effects(graph.values)

    def of(self, handler: CallUnit, reach: Sequence[CallUnit]) -> Iterator[Swallowed]:
        """Those around a handler's whole loop, around one message, or in the function that processes one message."""
        if isinstance(handler.node, ast.Module) or any(self._keeps(one) for one in reach):
            return
        for body, unit in self._each(handler):
            yield from self._hidden(body, {unit, handler}, unit, is_batch=False)
        yield from self._hidden(handler.node.body, {handler}, handler, is_batch=True)

    def _each(self, handler: CallUnit) -> Iterator[tuple[Sequence[ast.stmt], CallUnit]]:
        """The statements that process one record: the body of a loop, and of a function if the loop only calls that."""
        for node in handler.nodes:
            call: ast.expr | None = None
            if isinstance(node, ast.For) and self._are_records(node.iter, handler):
                yield node.body, handler
                acting = self._acting(node.body, handler)
                call = acting[0].value if len(acting) == 1 and isinstance(acting[0], ast.Expr) else None
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.ListComp):
                call = node.value.elt if self._are_records(node.value.generators[0].iter, handler) else None
            called = self._graph.unit(call.func, handler.module) if isinstance(call, ast.Call) else None
            if called is not None and isinstance(called.node, FUNCTION):
                yield called.node.body, called

    def _are_records(self, node: ast.expr, unit: CallUnit) -> bool:
        return self._values.of(node, unit.module).kind in {"records", "pairs"}

    def _keeps(self, unit: CallUnit) -> bool:
        """Whether an `except` of a unit writes or sends something, so that the failed message may be stored elsewhere."""
        for node in unit.nodes:
            for call in ast.walk(node) if isinstance(node, ast.ExceptHandler) else ():
                found = operation_of(call, unit.module, self._values) if isinstance(call, ast.Call) else None
                if found is not None and found[1].startswith(_KEEPING):
                    return True
        return False

    def _acting(self, body: Sequence[ast.stmt], unit: CallUnit) -> list[ast.stmt]:
        return [one for one in body if not is_pass(one) and self._acts(one, unit)]

    def _only(self, body: Sequence[ast.stmt], unit: CallUnit) -> ast.Try | ast.With | None:
        """The `try`, or `with suppress(Exception)`, that contains everything the statements do."""
        acting = self._acting(body, unit)
        only = acting[0] if len(acting) == 1 else None
        if isinstance(only, ast.With):
            if self._suppresses(only, unit):
                return only
            is_plain = all(self._effects.acts(one.context_expr, unit.module) is None for one in only.items)
            return self._only(only.body, unit) if is_plain else None
        return only if isinstance(only, ast.Try) else None

    def _suppresses(self, node: ast.With, unit: CallUnit) -> bool:
        call = node.items[0].context_expr
        is_suppress = (
            isinstance(call, ast.Call) and self._values.dotted(call.func, unit.module) == "contextlib.suppress"
        )
        return (
            is_suppress
            and isinstance(call, ast.Call)
            and any(self._values.dotted(one, unit.module) in _BROAD for one in call.args)
        )

    def _acts(self, statement: ast.stmt, unit: CallUnit) -> bool:
        return not isinstance(statement, FUNCTION) and self._effects.acts(statement, unit.module) is not None

    def _hidden(
        self, body: Sequence[ast.stmt], units: set[CallUnit], unit: CallUnit, *, is_batch: bool
    ) -> Iterator[Swallowed]:
        only = self._only(body, unit)
        if only is None or all(self._effects.acts(one, unit.module) is None for one in only.body):
            return
        inside = {id(one) for statement in only.body for one in ast.walk(statement)}
        for one in units:
            if any(isinstance(node, ast.Raise) and id(node) not in inside for node in one.nodes):
                return
        if isinstance(only, ast.With):
            yield Swallowed(source=unit.module.source(only.items[0].context_expr), function=unit.id, is_batch=is_batch)
            return
        if any(self._acts(one, unit) for one in (*only.orelse, *only.finalbody)):
            return
        if not all(self._only_says(one, unit) for one in only.handlers):
            return
        for handler in only.handlers:
            if is_broad(handler, unit.module, self._values):
                yield Swallowed(source=unit.module.source(handler), function=unit.id, is_batch=is_batch)

    def _only_says(self, handler: ast.ExceptHandler, unit: CallUnit) -> bool:
        """Whether an `except` only logs, measures and carries on."""
        for one in handler.body:
            match one:
                case ast.Pass() | ast.Continue():
                    continue
                case ast.Expr() if self._effects.acts(one, unit.module) is None:
                    continue
                case ast.Return(value=value) if value is None or self._effects.acts(value, unit.module) is None:
                    if value is None or isinstance(value, (ast.Constant, ast.Dict)):
                        continue
                    return False
                case _:
                    return False
        return True


def is_broad(handler: ast.ExceptHandler, module: Module, values: Values) -> bool:
    """Whether an `except` catches every exception."""
    named = handler.type
    types = named.elts if isinstance(named, ast.Tuple) else [named]
    return any(one is None or values.dotted(one, module) in _BROAD for one in types)
