"""Idempotency keys and records in Python code: Powertools decorators, conditional writes, keys of onefold.

Sources: Powertools for AWS Lambda (Python) 3, idempotency: event_key_jmespath (the whole event when it is empty), records
kept for expires_after_seconds (3,600); Amazon DynamoDB, condition expressions.
Never here: rules. Invariant: the origins of a key are only those that it has every time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Final

from onefold.check.call_graph import CallUnit
from onefold.check.code_facts import Idempotency, Key, Lock
from onefold.check.collect_calls import given, operation_of
from onefold.check.python_modules import FUNCTION, Module
from onefold.check.python_values import Origin, Value, Values

LIFE_S: Final = 3_600
_IDEMPOTENCY: Final = "aws_lambda_powertools.utilities.idempotency"
_PARTS: Final[dict[str, Origin]] = {
    "messageId": "message-id",
    "receiptHandle": "receipt-handle",
    "attributes.ApproximateReceiveCount": "receive-count",
    "attributes.ApproximateFirstReceiveTimestamp": "receive-count",
}
_ONE_RECORD: Final = re.compile(r"^Records\[(?:\d+|\*)?\]\.")
_ABSENT: Final = re.compile(r"^\s*attribute_not_exists\s*\(\s*([#\w.-]{1,255})\s*\)\s*$", re.IGNORECASE)
_PARTNERS: Final = frozenset(
    {"idempotency_key", "idempotencyKey", "IdempotencyKey", "ClientRequestToken", "client_request_token"}
)
_HEADERS: Final = frozenset({"idempotency-key", "x-idempotency-key"})
_ENDINGS: Final = ("lock", "lease", "mutex")


class Keys:
    """Finds idempotency keys and records in units."""

    def __init__(self, values: Values) -> None:
        self._values = values

    # -- Powertools --------------------------------------------------------------------------------------------------------

    def decorators(self, unit: CallUnit) -> Iterator[tuple[ast.Call, str]]:
        """Powertools' idempotency decorators of a function: the call, and `idempotent` or `idempotent_function`."""
        if isinstance(unit.node, ast.Module):
            return
        for one in unit.node.decorator_list:
            if isinstance(one, ast.Call):
                dotted = self._values.dotted(one.func, unit.module)
                name = dotted.rpartition(".")[2]
                if dotted.startswith(_IDEMPOTENCY) and name in {"idempotent", "idempotent_function"}:
                    yield one, name

    def idempotency(self, unit: CallUnit) -> Iterator[Idempotency]:
        """The Powertools idempotency decorators of a function, with how long they keep records."""
        for node, name in self.decorators(unit):
            config, module = self._config(node, unit.module)
            written = given(config, "expires_after_seconds") if config is not None else None
            life: object = LIFE_S
            if written is not None:
                life = self._values.of(written, module).of
            elif given(node, "config") is not None and config is None:
                life = None
            yield Idempotency(
                source=unit.module.source(node),
                function=unit.id,
                has_context=name == "idempotent",
                life_s=life if isinstance(life, int) else None,
                life=module.source(written) if written is not None else unit.module.source(node),
                is_default_life=written is None,
            )

    def _config(self, node: ast.Call, module: Module) -> tuple[ast.Call | None, Module]:
        """The call that creates the decorator's configuration, or None if it is not certain, and its module."""
        written = given(node, "config")
        value = self._values.of(written, module)
        is_config = value.kind == "instance" and str(value.of).endswith(".IdempotencyConfig")
        if not is_config or value.call is None or any(one.arg is None for one in value.call.keywords):
            return None, module
        where = value.module if value.module is not None else module
        return (None, module) if value.call.args else (value.call, where)

    def of_powertools(self, unit: CallUnit, handler: CallUnit) -> Iterator[Key]:
        """The keys of Powertools decorators whose data is an SQS event or record."""
        for node, name in self.decorators(unit):
            data = self._data(node, name, unit, handler)
            if data is None:
                continue
            config, module = self._config(node, unit.module)
            if given(node, "config") is not None and config is None:
                continue
            written = given(config, "event_key_jmespath") if config is not None else None
            path = "" if written is None else self._values.of(written, module).of
            if not isinstance(path, str):
                continue
            source = unit.module.source(node) if written is None else module.source(written)
            text = repr(path) if path else f"the whole {data}"
            yield Key(
                what="The idempotency key (Powertools)", source=source, function=unit.id, text=text,
                origins=_of_path(path, data), is_whole=not path,
            )  # fmt: skip

    def _data(self, node: ast.Call, name: str, unit: CallUnit, handler: CallUnit) -> str | None:
        """`event` or `record` if the decorator's data is certainly one; otherwise None."""
        if name == "idempotent":
            return "event" if unit is handler else None
        written = self._values.of(given(node, "data_keyword_argument"), unit.module).of
        if not isinstance(written, str) or not isinstance(unit.node, FUNCTION):
            return None
        role = self._values.named(written, unit.module.scopes[unit.node], 0)
        return role.kind if role.kind in {"event", "record"} else None

    # -- conditional writes ------------------------------------------------------------------------------------------------

    def of_writes(self, unit: CallUnit) -> Iterator[Key]:
        """The keys of conditional writes: to DynamoDB with attribute_not_exists, to Redis with nx."""
        for node in unit.calls():
            written = self._written_once(node, unit.module)
            if written is not None:
                what, key = written
                value = self._values.of(key, unit.module)
                if value.origins:
                    yield self._key(what, key, value, unit)

    def _written_once(self, node: ast.Call, module: Module) -> tuple[str, ast.expr] | None:
        found = operation_of(node, module, self._values)
        if found is not None and found[:2] == ("dynamodb", "put_item"):
            attribute = self.absent_attribute(node, module)
            item = self._values.literal(given(node, "Item"), module)
            key = _attribute_of(item, attribute) if attribute is not None else None
            return None if key is None else ("The key of the record", key)
        if isinstance(node.func, ast.Attribute) and node.func.attr in {"set", "setnx"} and node.args:
            made = self._values.class_of(node.func.value, module)
            is_nx = node.func.attr == "setnx" or self._values.of(given(node, "nx"), module).of is True
            if is_nx and made.startswith(("redis.", "valkey.")):
                return "The key of the record", node.args[0]
        return None

    def absent_attribute(self, node: ast.Call, module: Module) -> str | None:
        """The attribute that must not exist, if that is the whole condition of a write; otherwise None."""
        condition = given(node, "ConditionExpression")
        if condition is None:
            return None
        if isinstance(condition, ast.Call) and isinstance(condition.func, ast.Attribute):
            inner = condition.func.value
            if condition.func.attr != "not_exists" or not isinstance(inner, ast.Call) or len(inner.args) != 1:
                return None
            is_attribute = self._values.dotted(inner.func, module) == "boto3.dynamodb.conditions.Attr"
            name = self._values.of(inner.args[0], module).of
            return name if is_attribute and isinstance(name, str) else None
        text = self._values.of(condition, module).of
        match = _ABSENT.match(text) if isinstance(text, str) else None
        if match is None:
            return None
        return self._real_name(node, match[1], module)

    def _real_name(self, node: ast.Call, name: str, module: Module) -> str | None:
        """The name of an attribute, even if the expression has a placeholder for it."""
        if not name.startswith("#"):
            return name
        names = given(node, "ExpressionAttributeNames")
        found = _attribute_of(names, name)
        real = self._values.of(found, module).of if found is not None else None
        return real if isinstance(real, str) else None

    def locks(self, unit: CallUnit) -> Iterator[Lock]:
        """Conditional writes that are named a lock, with an attribute that holds a time in the future."""
        for node in unit.calls():
            found = operation_of(node, unit.module, self._values)
            item = self._values.literal(given(node, "Item"), unit.module)
            if found is None or found[:2] != ("dynamodb", "put_item") or not isinstance(item, ast.Dict):
                continue
            if self.absent_attribute(node, unit.module) is None or not _is_a_lock(node, unit):
                continue
            for key, value in zip(item.keys, item.values, strict=True):
                seconds = self._seconds_from_now(value, unit.module)
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and seconds is not None:
                    yield Lock(source=unit.module.source(node), function=unit.id, attribute=key.value, seconds=seconds)

    def _seconds_from_now(self, node: ast.expr, module: Module) -> int | None:
        """N of an expression `int(time.time()) + N`; None for other expressions."""
        if (
            isinstance(node, ast.Call)
            and self._values.dotted(node.func, module) in {"builtins.int", "builtins.str"}
            and node.args
        ):
            return self._seconds_from_now(node.args[0], module)
        if isinstance(node, ast.Dict) and len(node.values) == 1:  # {"N": ...}
            return self._seconds_from_now(node.values[0], module)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [self._values.of(one, module) for one in (node.left, node.right)]
            numbers = [one.of for one in parts if one.kind == "constant" and isinstance(one.of, int)]
            if len(numbers) == 1 and any("time" in one.origins for one in parts):
                return numbers[0]
        return None

    # -- others' keys ------------------------------------------------------------------------------------------------------

    def of_partners(self, unit: CallUnit) -> Iterator[Key]:
        """Keys that are passed to other services: an argument `idempotency_key`, a header `Idempotency-Key`."""
        for node in unit.nodes:
            pairs: Iterable[tuple[str, ast.expr]] = ()
            if isinstance(node, ast.Call):
                pairs = [(one.arg, one.value) for one in node.keywords if one.arg in _PARTNERS]
            elif isinstance(node, ast.Dict):
                keys = [one.value if isinstance(one, ast.Constant) else None for one in node.keys]
                pairs = [
                    (one, value)
                    for one, value in zip(keys, node.values, strict=True)
                    if isinstance(one, str) and (one.lower() in _HEADERS or one in _PARTNERS)
                ]
            for name, written in pairs:
                value = self._values.of(written, unit.module)
                if value.origins:
                    what = f"The idempotency key for a partner ({name})"
                    yield self._key(what, written, value, unit, is_for_partner=True)

    def of_onefold(self, unit: CallUnit) -> Iterator[Key]:
        """Key functions of onefold's declarations: `@app.job(queue, key=lambda order: ...)`, `@once(key=...)`."""
        if isinstance(unit.node, ast.Module):
            return
        for one in unit.node.decorator_list:
            if not isinstance(one, ast.Call) or (written := given(one, "key")) is None:
                continue
            is_job = isinstance(one.func, ast.Attribute) and one.func.attr == "job"
            made = self._values.class_of(one.func.value, unit.module) if isinstance(one.func, ast.Attribute) else ""
            dotted = self._values.dotted(one.func, unit.module)
            if not (is_job and made == "onefold.App") and dotted not in {"onefold.once", "onefold.runner.once.once"}:
                continue
            found = self._values.function(written, unit.module)
            if found is not None:
                value = self._values.returned(found[0], found[1])
                if value.origins:
                    yield self._key("The key of the job" if is_job else "The key of the call", written, value, unit)

    def _key(
        self, what: str, node: ast.expr, value: Value, unit: CallUnit, *, is_for_partner: bool = False
    ) -> Key:  # fmt: skip
        module = unit.module
        return Key(
            what=what, source=module.source(node), function=unit.id, text=module.text_of(node), origins=value.origins,
            is_for_partner=is_for_partner,
        )  # fmt: skip


def _of_path(path: str, data: str) -> frozenset[Origin]:
    """What a JMESPath expression, or an element of a list `[a, b]`, takes from the delivery."""
    inner = path.strip()
    parts = inner[1:-1].split(",") if inner.startswith("[") and inner.endswith("]") and "(" not in inner else [inner]
    found: set[Origin] = set()
    for one in parts:
        plain = one.strip().replace('"', "")
        of_record = _ONE_RECORD.sub("", plain) if data == "event" else plain
        if of_record in _PARTS and (data == "record" or of_record != plain):
            found.add(_PARTS[of_record])
    return frozenset(found)


def _attribute_of(item: ast.expr | None, name: str) -> ast.expr | None:
    """The value of a key in a dictionary literal; None if it is not there exactly once."""
    if not isinstance(item, ast.Dict):
        return None
    found = [
        value
        for key, value in zip(item.keys, item.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == name
    ]
    return found[0] if len(found) == 1 else None


def _is_a_lock(node: ast.Call, unit: CallUnit) -> bool:
    written = f"{unit.name} {unit.module.text_of(node, 2_000)}".lower()
    return any(one in re.split(r"[^a-z]+", written) or f"{one}_" in written or f"_{one}" in written for one in _ENDINGS)
