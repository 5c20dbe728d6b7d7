"""AWS calls in a Python file: through boto3 clients and resources, or recognised by arguments that only that call has.

Sources: boto3, names of operations and arguments; botocore `Config`: read_timeout 60 s, retries "legacy" with 5 attempts
(lambda, SQS and Step Functions; DynamoDB 10), `max_attempts` counts retries, `total_max_attempts` the first call too.
Never here: rules. Invariant: a call is left out if its service is not certain.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from onefold.check.call_graph import CallUnit
from onefold.check.code_facts import Argument, CodeCall
from onefold.check.python_modules import Module
from onefold.check.python_values import Value, Values

READ_TIMEOUT_S: Final = 60.0
ATTEMPTS: Final = 5
# Arguments that identify an operation if nothing is known about the client, for example because it is a parameter.
_BY_ARGUMENT: Final = {
    "send_message": ("sqs", ("QueueUrl", "MessageBody")),
    "send_message_batch": ("sqs", ("QueueUrl", "Entries")),
    "receive_message": ("sqs", ("QueueUrl",)),
    "delete_message": ("sqs", ("ReceiptHandle",)),
    "delete_message_batch": ("sqs", ("QueueUrl", "Entries")),
    "change_message_visibility": ("sqs", ("ReceiptHandle", "VisibilityTimeout")),
    "change_message_visibility_batch": ("sqs", ("QueueUrl", "Entries")),
    "start_execution": ("stepfunctions", ("stateMachineArn",)),
    "put_item": ("dynamodb", ("Item",)),
    "update_item": ("dynamodb", ("Key", "UpdateExpression")),
    "delete_item": ("dynamodb", ("Key",)),
    "get_item": ("dynamodb", ("Key",)),
    "transact_write_items": ("dynamodb", ("TransactItems",)),
    "invoke": ("lambda", ("FunctionName",)),
}
_OF_QUEUES: Final = {
    "send_message": "send_message",
    "send_messages": "send_message_batch",
    "receive_messages": "receive_message",
    "delete_messages": "delete_message_batch",
    "change_message_visibility_batch": "change_message_visibility_batch",
}
_OF_MESSAGES: Final = {"delete": "delete_message", "change_visibility": "change_message_visibility"}


def calls_of(unit: CallUnit, values: Values) -> Iterator[CodeCall]:
    """The AWS calls of a unit; the entries of a batch of messages are calls of their own."""
    for node in unit.calls():
        found = operation_of(node, unit.module, values)
        if found is not None:
            whole = _call(node, *found, unit, values)
            yield whole
            if whole.operation == "send_message_batch":
                yield from _entries(node, whole, unit, values)


def operation_of(node: ast.Call, module: Module, values: Values) -> tuple[str, str, Value] | None:
    """The service, the operation and the value the call is made on; None if it is not certainly an AWS call."""
    if not isinstance(node.func, ast.Attribute):
        return None
    base, name = values.of(node.func.value, module), node.func.attr
    match base.kind:
        case "client":
            return str(base.of), name, base
        case "table":
            return "dynamodb", name, base
        case "queue":
            return ("sqs", _OF_QUEUES[name], base) if name in _OF_QUEUES else None
        case "message" if base.of == "resource":
            return ("sqs", _OF_MESSAGES[name], base) if name in _OF_MESSAGES else None
        case "unknown" | "instance" if name in _BY_ARGUMENT:
            service, needed = _BY_ARGUMENT[name]
            given = {one.arg for one in node.keywords}
            return (service, name, base) if given.issuperset(needed) else None
        case _:
            return None


def argument_of(node: ast.expr, module: Module, values: Values) -> Argument:
    """What is known about an argument."""
    value = values.of(node, module)
    constant = value.of if value.kind == "constant" else None
    return Argument(module.text_of(node), module.source(node), constant, value.origins, value.variable)


def given(node: ast.Call, name: str) -> ast.expr | None:
    """The expression of a keyword argument."""
    return next((one.value for one in node.keywords if one.arg == name), None)


def _call(node: ast.Call, service: str, operation: str, base: Value, unit: CallUnit, values: Values) -> CodeCall:
    module = unit.module
    arguments = {one.arg: argument_of(one.value, module, values) for one in node.keywords if one.arg is not None}
    is_complete = not node.args and all(one.arg is not None for one in node.keywords)
    if base.kind == "queue" and isinstance(base.of, Value) and "QueueUrl" not in arguments:
        constant = base.of.of if base.of.kind == "constant" else None
        arguments["QueueUrl"] = Argument("", module.source(node), constant, base.of.origins, base.of.variable)
    timeout, attempts = _config(base, values, service)
    return CodeCall(
        service=service,
        operation=operation,
        source=module.source(node),
        function=unit.id,
        arguments=arguments,
        is_complete=is_complete,
        read_timeout_s=timeout,
        attempts=attempts,
    )


def _entries(node: ast.Call, whole: CodeCall, unit: CallUnit, values: Values) -> Iterator[CodeCall]:
    """The entries of a batch that are written out, each as a `send_message`."""
    for entry in entries_of(node, "Entries"):
        keys = [one.value if isinstance(one, ast.Constant) else None for one in entry.keys]
        arguments = {
            name: argument_of(value, unit.module, values)
            for name, value in zip(keys, entry.values, strict=True)
            if isinstance(name, str)
        }
        if "QueueUrl" in whole.arguments:
            arguments["QueueUrl"] = whole.arguments["QueueUrl"]
        yield replace(
            whole, operation="send_message", source=unit.module.source(entry), arguments=arguments,
            is_complete=None not in keys, is_entry=True,
        )  # fmt: skip


def _config(base: Value, values: Values, service: str) -> tuple[float | None, int | None]:
    """The read timeout and the attempts of a client; None for what is not known."""
    if base.call is None or base.module is None:
        return None, None
    if any(one.arg is None for one in base.call.keywords):
        return None, None
    written = given(base.call, "config")
    if written is None:
        return READ_TIMEOUT_S, None if service == "dynamodb" else ATTEMPTS
    config = values.of(written, base.module)
    is_config = config.kind == "instance" and config.of in {"botocore.config.Config", "botocore.client.Config"}
    if not is_config or config.call is None or config.call.args or any(one.arg is None for one in config.call.keywords):
        return None, None
    timeout = given(config.call, "read_timeout")
    seconds = READ_TIMEOUT_S if timeout is None else values.of(timeout, base.module).of
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    return float(seconds) if is_number else None, _attempts(given(config.call, "retries"), base.module, values)


def _attempts(written: ast.expr | None, module: Module, values: Values) -> int | None:
    if written is None:
        return ATTEMPTS
    if not isinstance(written, ast.Dict):
        return None
    found = {}
    for key, value in zip(written.keys, written.values, strict=True):
        if not isinstance(key, ast.Constant):
            return None
        found[key.value] = values.of(value, module).of
    if isinstance(total := found.get("total_max_attempts"), int):
        return total
    if isinstance(more := found.get("max_attempts"), int):
        return more + 1
    return None if {"total_max_attempts", "max_attempts"} & found.keys() else 3 if "mode" in found else ATTEMPTS


def entries_of(node: ast.Call, name: str) -> list[ast.Dict]:
    """The dictionary literals of a list argument, which may be a list comprehension."""
    written = given(node, name)
    if isinstance(written, ast.ListComp):
        return [written.elt] if isinstance(written.elt, ast.Dict) else []
    return [one for one in written.elts if isinstance(one, ast.Dict)] if isinstance(written, ast.List) else []
