"""The order in which code processes a message, deletes it, and records it as processed.

Never here: rules. Invariant: an order is reported only for statements of the same block, and only if nothing around them
can undo it (an `except` or `finally` that does something, a `with`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from onefold.check.call_graph import CallGraph, CallUnit
from onefold.check.code_facts import CodeClaim, Deletion, Race
from onefold.check.collect_answers import is_broad
from onefold.check.collect_calls import given, operation_of
from onefold.check.collect_keys import Keys
from onefold.check.findings import FindingSource
from onefold.check.python_effects import Effects, is_pass, is_watcher
from onefold.check.python_modules import FUNCTION, Module, last_name

_REFUSED: Final = "ConditionalCheckFailedException"
_CLIENT_ERROR: Final = frozenset({"botocore.exceptions.ClientError", "botocore.errorfactory.ClientError"})
_UNDOES: Final = frozenset({"delete_item", "update_item", "put_item", "transact_write_items", "batch_write_item"})


class _Claimed(Struct, frozen=True):
    """A conditional write, what skips a message whose record exists, and the statements that follow the write."""

    write: FindingSource
    skip: ast.AST
    follows: list[ast.stmt]


class HandlerWork:
    """Finds early deletions, claims that are never released, and races."""

    def __init__(self, graph: CallGraph, keys: Keys) -> None:
        self._graph = graph
        self._values = graph.values
        self._keys = keys
        self._effects = Effects(graph.values)

    # -- deletions ---------------------------------------------------------------------------------------------------------

    def deletions(self, unit: CallUnit) -> Iterator[Deletion]:
        """The deletions of messages that do not depend on whether the work was done."""
        for node in unit.nodes:
            if isinstance(node, ast.Try):
                yield from self._in_finally(node, unit)
        for body in _blocks(unit):
            yield from self._before(body, unit)

    def _in_finally(self, tried: ast.Try, unit: CallUnit) -> Iterator[Deletion]:
        deleted = [call for one in tried.finalbody if (call := self._deletes(one, unit.module)) is not None]
        if not deleted or all(self._effects.acts(one, unit.module) is None for one in tried.body):
            return
        for one in tried.handlers:
            if is_broad(one, unit.module, self._values) and self._acts(one.body, unit.module):
                return  # the message may have been stored elsewhere
        yield Deletion(source=unit.module.source(deleted[0]), function=unit.id, how="finally")

    def _before(self, body: Sequence[ast.stmt], unit: CallUnit) -> Iterator[Deletion]:
        for number, one in enumerate(body):
            call = self._deletes(one, unit.module)
            if call is None:
                continue
            names = self._names_of_message(call, unit.module)
            if not names or self._work(body[:number], names, unit) is not None:
                return
            work = self._work(body[number + 1 :], names, unit)
            if work is not None:
                yield Deletion(
                    source=unit.module.source(call), function=unit.id, how="before",
                    work=unit.module.source(work), work_text=unit.module.text_of(work),
                )  # fmt: skip
            return

    def _deletes(self, statement: ast.stmt, module: Module) -> ast.Call | None:
        """The call of a statement that only deletes a message; None for other statements."""
        if not isinstance(statement, ast.Expr):
            return None
        call = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
        found = operation_of(call, module, self._values) if isinstance(call, ast.Call) else None
        is_deletion = found is not None and found[:2] == ("sqs", "delete_message")
        return call if is_deletion and isinstance(call, ast.Call) else None

    def _names_of_message(self, call: ast.Call, module: Module) -> set[str]:
        """The names in a deletion that refer to the message."""
        handle = given(call, "ReceiptHandle")
        where = handle if handle is not None else call.func
        names = {one.id for one in ast.walk(where) if isinstance(one, ast.Name)}
        return {one for one in names if self._is_message(one, call, module)}

    def _is_message(self, name: str, node: ast.AST, module: Module) -> bool:
        return self._values.named(name, module.scope_of(node), 0).kind in {"message", "record"}

    def _work(self, body: Iterable[ast.stmt], names: set[str], unit: CallUnit) -> ast.Call | None:
        """The first call that uses a message or a value derived from it, other than to log, convert or collect it."""
        for statement in body:
            for call in (one for one in ast.walk(statement) if isinstance(one, ast.Call)):
                given_names = {
                    one.id
                    for argument in (*call.args, *call.keywords)
                    for one in ast.walk(argument)
                    if isinstance(one, ast.Name)
                }
                only_looks = self._effects.only_looks(call, unit.module) or self._effects.collects(call, unit.module)
                only_looks = only_looks or is_watcher(last_name(call.func))
                if given_names & names and not only_looks:
                    return call
            if isinstance(statement, ast.Assign):
                read = {one.id for one in ast.walk(statement.value) if isinstance(one, ast.Name)}
                if read & names:
                    names |= {
                        one.id for target in statement.targets for one in ast.walk(target) if isinstance(one, ast.Name)
                    }
        return None

    # -- claims ------------------------------------------------------------------------------------------------------------

    def claims(self, reach: Sequence[CallUnit]) -> Iterator[CodeClaim]:
        """Conditional writes before the work whose records are not deleted when the work fails."""
        if any(self._may_undo(unit) for unit in reach):
            return
        for unit in reach:
            for body in _blocks(unit):
                for number, statement in enumerate(body):
                    found = self._claimed(statement, unit)
                    if found is None or self._is_guarded(statement, unit):
                        continue
                    effect = self._first_effect([*found.follows, *body[number + 1 :]], unit)
                    if effect is not None:
                        yield CodeClaim(
                            source=found.write,
                            function=unit.id,
                            skip=unit.module.source(found.skip),
                            effect=unit.module.source(effect),
                            effect_text=unit.module.text_of(effect),
                        )

    def _claimed(self, statement: ast.stmt, unit: CallUnit) -> _Claimed | None:
        """The claim that a statement makes: it writes a record with a condition, and skips the message if it exists."""
        if isinstance(statement, ast.Try):
            write = self._writes_once(statement.body, unit)
            skip = self._skip(statement.handlers, unit) if write is not None else None
            return None if write is None or skip is None else _Claimed(write, skip, statement.orelse)
        if not isinstance(statement, ast.If):
            return None
        test, is_new = statement.test, True
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, is_new = test.operand, False
        called = self._graph.unit(test.func, unit.module) if isinstance(test, ast.Call) else None
        write = self._claiming(called) if called is not None else None
        if write is None:
            return None
        if is_new:
            return None if self._acts(statement.orelse, unit.module) else _Claimed(write, statement, statement.body)
        passes = not statement.orelse and self._passes_over(statement.body, unit)
        return _Claimed(write, statement, []) if passes else None

    def _writes_once(self, body: Sequence[ast.stmt], unit: CallUnit, depth: int = 0) -> FindingSource | None:
        """The conditional write, if it is the only effect of the statements or of a function that they call."""
        writes: list[FindingSource] = []
        for statement in body:
            for call in (one for one in ast.walk(statement) if isinstance(one, ast.Call)):
                found = operation_of(call, unit.module, self._values)
                is_write = found is not None and found[:2] == ("dynamodb", "put_item")
                if is_write and self._keys.absent_attribute(call, unit.module) is not None:
                    writes.append(unit.module.source(call))
                elif not self._effects.only_looks(call, unit.module) and not _is_condition(call):
                    called = self._graph.unit(call.func, unit.module)
                    inner = None
                    if called is not None and isinstance(called.node, FUNCTION) and not depth:
                        inner = self._writes_once(called.node.body, called, depth + 1)
                    if inner is None:
                        return None
                    writes.append(inner)
        return writes[0] if len(writes) == 1 else None

    def _skip(self, handlers: Sequence[ast.ExceptHandler], unit: CallUnit) -> ast.AST | None:
        """What skips the message after a refused write: an `except`, or an `if` in one that otherwise raises."""
        for one in handlers:
            is_own = self._values.of(one.type, unit.module).kind == "class"  # raised by the function that writes
            if last_name(one.type) == _REFUSED or is_own:
                return one if self._passes_over(one.body, unit) else None
            if (
                self._values.dotted(one.type, unit.module) in _CLIENT_ERROR
                and one.body
                and isinstance(one.body[0], ast.If)
            ):
                first = one.body[0]
                is_raised = first.orelse or one.body[1:]
                only_raises = bool(is_raised) and isinstance(is_raised[-1], ast.Raise)
                if _asks_for_refusal(first.test) and only_raises and self._passes_over(first.body, unit):
                    return first
        return None

    def _claiming(self, called: CallUnit) -> FindingSource | None:
        """The conditional write of a function that returns True if it wrote the record and False if that existed."""
        if not isinstance(called.node, FUNCTION):
            return None
        body = [one for one in called.node.body if not is_pass(one)]
        if not body or not isinstance(body[0], ast.Try) or len(body) > 2:
            return None
        tried = body[0]
        write = self._writes_once([one for one in tried.body if not isinstance(one, ast.Return)], called)
        is_true = [one for one in (*tried.body, *tried.orelse, *body[1:]) if isinstance(one, ast.Return)]
        if write is None or not all(_returns(one, value=True) for one in is_true) or not is_true:
            return None
        for one in tried.handlers:
            returned = [each for each in ast.walk(one) if isinstance(each, ast.Return)]
            if last_name(one.type) != _REFUSED and not any(_asks_for_refusal(each) for each in ast.walk(one)):
                return None
            if (
                not returned
                or not all(_returns(each, value=False) for each in returned)
                or self._acts(one.body, called.module)
            ):
                return None
        return write

    def _passes_over(self, body: Sequence[ast.stmt], unit: CallUnit) -> bool:
        """Whether statements only log, and then return or continue with the next message."""
        if not body or self._acts(body, unit.module):
            return False
        last = body[-1]
        is_plain = all(isinstance(one, (ast.Expr, ast.Pass)) for one in body[:-1])
        if isinstance(last, ast.Return):
            return is_plain and (last.value is None or isinstance(last.value, (ast.Constant, ast.Dict)))
        return is_plain and isinstance(last, ast.Continue)

    def _first_effect(self, body: Sequence[ast.stmt], unit: CallUnit) -> ast.Call | None:
        """The first call with an effect; None if a `with` around it may release the claim."""
        for statement in body:
            effect = self._effects.acts(statement, unit.module)
            if effect is not None:
                is_bare = not any(isinstance(one, (ast.With, ast.AsyncWith)) for one in unit.module.above(effect))
                return effect if is_bare and not self._effects.collects(effect, unit.module) else None
        return None

    def _is_guarded(self, node: ast.AST, unit: CallUnit) -> bool:
        return any(isinstance(one, (ast.With, ast.AsyncWith)) for one in unit.module.above(node))

    def _may_undo(self, unit: CallUnit) -> bool:
        """Whether an `except` or `finally` of a unit changes records, or calls something that may do so."""
        for node in unit.nodes:
            if isinstance(node, ast.Try):
                bodies = [node.finalbody, *(one.body for one in node.handlers)]
                for call in (one for body in bodies for statement in body for one in ast.walk(statement)):
                    if isinstance(call, ast.Call) and self._call_may_undo(call, unit.module):
                        return True
        return False

    def _call_may_undo(self, call: ast.Call, module: Module) -> bool:
        if self._effects.only_looks(call, module) or self._effects.collects(call, module):
            return False
        found = operation_of(call, module, self._values)
        if found is not None:
            return found[0] == "dynamodb" and found[1] in _UNDOES
        called = self._graph.unit(call.func, module)
        if called is None:
            return True
        return any(self._undoes(one) for one in self._graph.reach(called))

    def _undoes(self, unit: CallUnit) -> bool:
        for call in unit.calls():
            found = operation_of(call, unit.module, self._values)
            if found is not None and found[0] == "dynamodb" and found[1] in _UNDOES:
                return True
        return False

    # -- races -------------------------------------------------------------------------------------------------------------

    def races(self, unit: CallUnit) -> Iterator[Race]:
        """Records that are read first and written later without a condition."""
        for body in _blocks(unit):
            for number, statement in enumerate(body):
                look = self._looks(statement, body[number + 1 :], unit)
                if look is None:
                    continue
                for call in (
                    one for later in body[number + 2 :] for one in ast.walk(later) if isinstance(one, ast.Call)
                ):
                    found = operation_of(call, unit.module, self._values)
                    is_write = found is not None and found[:2] == ("dynamodb", "put_item")
                    if is_write and _same_base(call, look, unit.module) and _is_unconditional(call):
                        yield Race(source=unit.module.source(call), function=unit.id, check=unit.module.source(look))
                        break

    def _looks(self, statement: ast.stmt, rest: Sequence[ast.stmt], unit: CallUnit) -> ast.Call | None:
        """The `get_item` of a statement, if the next statement skips the message depending on its result."""
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call) or not rest:
            return None
        found = operation_of(statement.value, unit.module, self._values)
        follows = rest[0]
        if found is None or found[:2] != ("dynamodb", "get_item") or not isinstance(follows, ast.If) or follows.orelse:
            return None
        names = {one.id for target in statement.targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        is_presence = _is_presence(follows.test, names)
        return statement.value if is_presence and self._passes_over(follows.body, unit) else None

    def _acts(self, body: Iterable[ast.stmt], module: Module) -> bool:
        return any(self._effects.acts(one, module) is not None for one in body)


def _blocks(unit: CallUnit) -> Iterator[list[ast.stmt]]:
    for node in (unit.node, *unit.nodes):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            is_own = node is unit.node or not isinstance(node, (*FUNCTION, ast.ClassDef))
            if is_own and isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body


def _returns(statement: ast.Return, *, value: bool) -> bool:
    return isinstance(statement.value, ast.Constant) and statement.value.value is value


def _asks_for_refusal(test: ast.AST) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) and any(
        isinstance(one, ast.Constant) and one.value == _REFUSED for one in (test.left, *test.comparators)
    )  # fmt: skip


def _is_condition(call: ast.Call) -> bool:
    """`Attr("pk").not_exists()`, and `Attr("pk")` in it."""
    return last_name(call.func) in {"Attr", "Key", "not_exists"}


def _is_unconditional(call: ast.Call) -> bool:
    return not call.args and all(
        one.arg is not None and one.arg not in {"ConditionExpression", "Expected"} for one in call.keywords
    )


def _same_base(one: ast.Call, other: ast.Call, module: Module) -> bool:
    if not isinstance(one.func, ast.Attribute) or not isinstance(other.func, ast.Attribute):
        return False
    tables = [module.text_of(found, 500) for call in (one, other) if (found := given(call, "TableName")) is not None]
    return module.text_of(one.func.value, 500) == module.text_of(other.func.value, 500) and len(set(tables)) <= 1


def _is_presence(test: ast.expr, names: set[str]) -> bool:
    """`"Item" in found`, `found.get("Item")`, `found["Item"]`."""
    match test:
        case ast.Compare(left=ast.Constant(value="Item"), ops=[ast.In()], comparators=[ast.Name(id=name)]):
            return name in names
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[ast.Constant(value="Item"), *_]):
            return name in names
        case _:
            return False
