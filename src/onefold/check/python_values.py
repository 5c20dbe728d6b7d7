"""The values of Python expressions, as far as the files show them: clients, records, constants, keys.

`Values.of` follows names, imports, attributes of `self`, and calls of functions that were read. If a name can have several
values, the result is what they have in common.
Never here: rules, positions. Invariants: what is not certain is UNKNOWN; a value has an origin only if it has it every time
the expression is evaluated (`a or b` has the origins that both have); depth is bounded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from onefold.check.python_modules import FUNCTION, Binding, FunctionNode, Module, Modules, ModuleScope

DEPTH_MAX: Final = 40
BINDINGS_MAX: Final = 8

Origin = Literal["message-id", "receipt-handle", "receive-count", "request-id", "random", "time", "own-queue"]
Kind = Literal[
    "unknown", "constant", "external", "module", "function", "class", "instance",
    "session", "client", "resource", "table", "queue",
    "event", "records", "record", "attributes", "context",
    "received", "messages", "message", "pairs", "environment", "queue-url",
]  # fmt: skip


class Value(Struct, frozen=True):
    """The value of an expression.

    Attributes:
        kind: what it is; `unknown` if that is not certain, but `origins` and `variable` can still be set.
        of: for a constant its value; for something external its dotted name; for a client or resource its service; for a
            function or class its node; for an instance the node or dotted name of its class; for a table or queue its name.
        module: contains the function, class or call. call: the call that created a client, an instance and so on.
        origins: what the value certainly contains. variable: the environment variable that it is read from.
    """

    kind: Kind = "unknown"
    of: Any = None
    module: Module | None = None
    call: ast.Call | None = None
    origins: frozenset[Origin] = frozenset()
    variable: str | None = None


UNKNOWN: Final = Value()
_FROM_RECORD: Final[dict[str, Origin]] = {
    "messageId": "message-id", "message_id": "message-id", "MessageId": "message-id",
    "receiptHandle": "receipt-handle", "receipt_handle": "receipt-handle", "ReceiptHandle": "receipt-handle",
    "eventSourceARN": "own-queue", "event_source_arn": "own-queue", "queue_url": "own-queue",
    "ApproximateReceiveCount": "receive-count", "approximate_receive_count": "receive-count",
    "ApproximateFirstReceiveTimestamp": "receive-count", "approximate_first_receive_timestamp": "receive-count",
}  # fmt: skip
_DELIVERED: Final[frozenset[str]] = frozenset({"record", "message", "attributes"})
_CHANCE: Final = (
    "random.",
    "secrets.",
    "uuid.uuid1",
    "uuid.uuid4",
    "uuid.uuid7",
    "ulid.",
    "nanoid.",
    "shortuuid.",
    "os.urandom",
)
_CLOCK: Final = frozenset(
    {
        *(
            "time.time",
            "time.time_ns",
            "time.monotonic",
            "time.monotonic_ns",
            "time.perf_counter",
            "time.perf_counter_ns",
        ),
        *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
        *("arrow.now", "arrow.utcnow", "pendulum.now", "django.utils.timezone.now"),
    }
)
# The result contains the arguments.
_KEEPS: Final = (
    "hashlib.",
    "base64.",
    "json.dumps",
    "uuid.uuid3",
    "uuid.uuid5",
    "uuid.UUID",
    "orjson.dumps",
    "urllib.parse.quote",
)
_KEEPING_BUILTINS: Final = frozenset({"str", "repr", "bytes", "int", "float", "hex", "tuple", "list", "dict", "format"})
_KEEPING_METHODS: Final = frozenset(
    {
        *(
            "encode",
            "decode",
            "hexdigest",
            "digest",
            "lower",
            "upper",
            "strip",
            "rstrip",
            "lstrip",
            "replace",
            "format",
        ),
        *(
            "join",
            "hex",
            "isoformat",
            "strftime",
            "timestamp",
            "casefold",
            "copy",
            "total_seconds",
            "astimezone",
            "zfill",
        ),
    }
)
_ENVIRONMENT: Final = frozenset({"os.environ", "os.environb"})
_SESSIONS: Final = frozenset({"boto3.Session", "boto3.session.Session", "boto3", "aioboto3.Session"})
_EVENTS: Final = "aws_lambda_powertools.utilities.data_classes"
_ITERATED_AS_THEY_ARE: Final = frozenset({"list", "tuple", "reversed", "sorted", "iter"})

Roles = dict[tuple[ast.AST, str], Value]


class Values:
    """Evaluates expressions.

    Attributes:
        roles: the values of parameters, by the function's node and the parameter's name.
    """

    def __init__(self, modules: Modules) -> None:
        self.modules = modules
        self.roles: Roles = {}
        self._known: dict[ast.AST, Value] = {}

    def give(self, roles: Roles) -> None:
        """Replace the roles, and forget the values found with the earlier ones."""
        self.roles = roles
        self._known.clear()

    def of(self, node: ast.AST | None, module: Module, depth: int = 0) -> Value:
        """The value of an expression of a module."""
        evaluate = None if node is None or depth > DEPTH_MAX else _EVALUATE.get(type(node))
        if node is None or evaluate is None:
            return UNKNOWN
        if node not in self._known:
            self._known[node] = UNKNOWN  # if the expression leads back to itself
            self._known[node] = evaluate(self, node, module, depth + 1)
        return self._known[node]

    def dotted(self, node: ast.AST | None, module: Module) -> str:
        """The dotted name of an external value, such as `boto3.client`; "" for other values."""
        value = self.of(node, module)
        return str(value.of) if value.kind == "external" else ""

    def class_of(self, node: ast.AST | None, module: Module) -> str:
        """The dotted name of the external class of an instance; "" if it is not known."""
        value = self.of(node, module)
        return value.of if value.kind == "instance" and isinstance(value.of, str) else ""

    def literal(self, node: ast.expr | None, module: Module) -> ast.expr | None:
        """An expression; for a name with a single assignment, the assigned expression."""
        for _ in range(BINDINGS_MAX):
            if not isinstance(node, ast.Name):
                break
            found = module.scope_of(node).find(node.id)
            only = found[1][0] if found is not None and len(found[1]) == 1 else None
            if only is None or only.how != "value" or only.path or not isinstance(only.node, ast.expr):
                break
            node = only.node
        return node

    def function(self, node: ast.AST | None, module: Module) -> tuple[FunctionNode | ast.Lambda, Module] | None:
        """The function that an expression refers to, and its module; None if it was not read."""
        value = self.of(node, module)
        if value.kind == "function" and value.module is not None:
            return value.of, value.module
        return None

    # -- names -------------------------------------------------------------------------------------------------------------

    def name(self, node: ast.Name, module: Module, depth: int) -> Value:
        """A name that is read."""
        return self.named(node.id, module.scope_of(node), depth)

    def named(self, name: str, scope: ModuleScope, depth: int) -> Value:
        """The value of a name in a scope."""
        if depth > DEPTH_MAX:
            return UNKNOWN
        found = scope.find(name)
        if found is None:
            return self._starred(name, scope.module, depth)
        where, bindings = found
        if len(bindings) > BINDINGS_MAX:
            return UNKNOWN
        return met(self._bound(one, name, where, depth + 1) for one in bindings)

    def _starred(self, name: str, module: Module, depth: int) -> Value:
        """The value of a name without a binding: from a star import of a file that was read, or a builtin."""
        for one in module.star_imports:
            found = self.modules.imported(module, one.dotted, one.level)
            if found is None:
                return UNKNOWN
            if name in found.top.bindings and depth < DEPTH_MAX:
                return self.named(name, found.top, depth + 1)
        return Value("external", f"builtins.{name}")

    def _bound(self, binding: Binding, name: str, scope: ModuleScope, depth: int) -> Value:
        node, module = binding.node, scope.module
        match binding.how:
            case "parameter":
                return self.roles.get((scope.node, name)) or self._annotated(node, module, depth)
            case "function":
                return Value("function", node, module)
            case "class":
                return Value("class", node, module)
            case "import":
                return self._import(binding, module, depth)
            case "value" if not binding.path:
                return self.of(node, module, depth)
            case "item":
                return _item(self.of(node, module, depth), binding.path)
            case _:
                return UNKNOWN

    def _annotated(self, parameter: ast.AST | None, module: Module, depth: int) -> Value:
        """The value of a parameter according to its annotation."""
        annotation = getattr(parameter, "annotation", None)
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            name = annotation.value.rpartition(".")[2]
        else:
            name = str(self.of(annotation, module, depth).of).rpartition(".")[2] if annotation is not None else ""
        return {"SQSEvent": Value("event"), "SQSRecord": Value("record"), "LambdaContext": Value("context")}.get(
            name, UNKNOWN
        )

    def _import(self, binding: Binding, module: Module, depth: int) -> Value:
        found = self.modules.imported(module, binding.dotted, binding.level)
        if found is not None:
            return Value("module", module=found)
        package, _, name = binding.dotted.rpartition(".")
        if isinstance(binding.node, ast.ImportFrom):
            found = self.modules.imported(module, package, binding.level)
            if found is not None:
                return self.named(name, found.top, depth) if name in found.top.bindings else UNKNOWN
        return UNKNOWN if binding.level else Value("external", binding.dotted)

    # -- expressions -------------------------------------------------------------------------------------------------------

    def attribute(self, node: ast.Attribute, module: Module, depth: int) -> Value:
        """`base.name`."""
        base, name = self.of(node.value, module, depth), node.attr
        match base.kind:
            case "external":
                return (
                    Value("environment")
                    if f"{base.of}.{name}" in _ENVIRONMENT
                    else Value("external", f"{base.of}.{name}")
                )
            case "module" if base.module is not None:
                return self.named(name, base.module.top, depth) if name in base.module.top.bindings else UNKNOWN
            case "instance" if isinstance(base.of, ast.ClassDef) and base.module is not None:
                return self._of_self(base.of, base.module, name, depth)
            case "class" if base.module is not None:
                return self._of_class(base.of, base.module, name, depth)
            case "queue" if name == "url":
                return base.of if isinstance(base.of, Value) else UNKNOWN
            case "unknown" if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
                owner = next((one for one in module.above(node) if isinstance(one, ast.ClassDef)), None)
                return UNKNOWN if owner is None else self._of_self(owner, module, name, depth)
            case "unknown" if name in {"hex", "int", "urn", "bytes"}:
                return Value(origins=base.origins)
            case _:
                return _member(base, name)

    def _of_class(self, owner: ast.ClassDef, module: Module, name: str, depth: int) -> Value:
        scope = module.scopes.get(owner)
        return self.named(name, scope, depth) if scope is not None and name in scope.bindings else UNKNOWN

    def _of_self(self, owner: ast.ClassDef, module: Module, name: str, depth: int) -> Value:
        """The value of `self.name`: from all assignments in the class, or from the class body."""
        values = module.of_self.get(owner, {}).get(name, ())
        found = [self.of(one, module, depth) for one in values[:BINDINGS_MAX]]
        return met(found) if found else self._of_class(owner, module, name, depth)

    def subscript(self, node: ast.Subscript, module: Module, depth: int) -> Value:
        """`base[key]`."""
        base = self.of(node.value, module, depth)
        if base.kind in {"records", "messages"}:
            whole = Value("records" if base.kind == "records" else "messages")
            return whole if isinstance(node.slice, ast.Slice) else _item(base, ())
        key = self.of(node.slice, module, depth)
        if base.kind == "environment" and isinstance(key.of, str):
            return Value(variable=key.of)
        if isinstance(node.slice, ast.Slice):
            return _kept([base])
        return _member(base, key.of) if isinstance(key.of, str) else UNKNOWN

    def call(self, node: ast.Call, module: Module, depth: int) -> Value:
        """The result of a call."""
        if isinstance(node.func, ast.Attribute):
            base = self.of(node.func.value, module, depth)
            found = self._method(base, node.func.attr, node, module, depth)
            if found is not None:
                return found
        callee = self.of(node.func, module, depth)
        match callee.kind:
            case "external":
                return self._external(str(callee.of), node, module, depth)
            case "class":
                return Value("instance", callee.of, callee.module, node)
            case "function" if callee.module is not None:
                return self.returned(callee.of, callee.module, depth)
            case _:
                return UNKNOWN

    def _external(self, dotted: str, node: ast.Call, module: Module, depth: int) -> Value:
        name = dotted.rpartition(".")[2]
        if dotted in {"boto3.client", "boto3.resource"}:
            return self._made(name, node, module, depth)
        if dotted in _SESSIONS:
            return Value("session")
        if dotted in {"os.getenv", "os.environ.get"}:
            return self._variable(node, module, depth)
        origin: Origin | None = "random" if dotted.startswith(_CHANCE) else "time" if dotted in _CLOCK else None
        if origin is not None:
            return Value(origins=frozenset({origin}))
        if dotted.startswith(_EVENTS):
            return {"SQSEvent": Value("event"), "SQSRecord": Value("record")}.get(name, UNKNOWN)
        if dotted == "builtins.enumerate":
            inner = self.of(node.args[0], module, depth) if node.args else UNKNOWN
            return Value("pairs", inner)
        if dotted.startswith("builtins.") and name in _ITERATED_AS_THEY_ARE and node.args:
            inner = self.of(node.args[0], module, depth)
            if inner.kind in {"records", "messages"}:
                return inner
        return self._kept_or_made(dotted, node, module, depth)

    def _kept_or_made(self, dotted: str, node: ast.Call, module: Module, depth: int) -> Value:
        name = dotted.rpartition(".")[2]
        if dotted == "functools.partial" and node.args:
            return self.of(node.args[0], module, depth)
        if dotted.startswith(_KEEPS) or (dotted.startswith("builtins.") and name in _KEEPING_BUILTINS):
            arguments = [self.of(one, module, depth) for one in (*node.args, *(one.value for one in node.keywords))]
            if name == "str" and len(arguments) == 1 and arguments[0].kind == "constant":
                return Value("constant", str(arguments[0].of))
            return _kept(arguments)
        return Value("instance", dotted, module, node) if name[:1].isupper() else UNKNOWN

    def _made(self, how: str, node: ast.Call, module: Module, depth: int) -> Value:
        """A client or resource."""
        written = node.args[0] if node.args else _keyword(node, "service_name")
        service = self.of(written, module, depth)
        if service.kind != "constant" or not isinstance(service.of, str):
            return UNKNOWN
        return Value("client" if how == "client" else "resource", service.of, module, node)

    def _variable(self, node: ast.Call, module: Module, depth: int) -> Value:
        name = self.of(node.args[0] if node.args else _keyword(node, "key"), module, depth)
        return Value(variable=name.of) if name.kind == "constant" and isinstance(name.of, str) else UNKNOWN

    def _method(self, base: Value, name: str, node: ast.Call, module: Module, depth: int) -> Value | None:
        """The result of a method of a known value; None if neither is known."""
        match base.kind, name:
            case "session", "client" | "resource":
                return self._made(name, node, module, depth)
            case "environment", "get":
                return self._variable(node, module, depth)
            case "resource", "Table" | "Queue" | "get_queue_by_name" | "create_queue":
                return self._resource(name, node, module, depth)
            case (("event" | "record" | "attributes" | "received" | "message"), "get"):
                key = self.of(node.args[0], module, depth) if node.args else UNKNOWN
                return _member(base, key.of) if isinstance(key.of, str) else UNKNOWN
            case "client", "receive_message":
                return Value("received")
            case "client", "get_queue_url":
                return Value("queue-url", self.of(_keyword(node, "QueueName"), module, depth))
            case "queue", "receive_messages":
                return Value("messages", "resource", call=node)
            case (("unknown" | "constant" | "external" | "instance"), _) if name in _KEEPING_METHODS:
                arguments = [base, *(self.of(one, module, depth) for one in node.args)]
                arguments += [self.of(one.value, module, depth) for one in node.keywords]
                return _kept(arguments) if any(one.origins for one in arguments) else None
            case _:
                return None

    def _resource(self, name: str, node: ast.Call, module: Module, depth: int) -> Value:
        keyword = {"Table": "name", "Queue": "url"}.get(name, "QueueName")
        named = self.of(node.args[0] if node.args else _keyword(node, keyword), module, depth)
        return Value("table" if name == "Table" else "queue", named, module, node)

    def returned(self, function: ast.AST, module: Module, depth: int = 0) -> Value:
        """The return value of a function that was read, for any caller."""
        if isinstance(function, ast.Lambda):
            return self.of(function.body, module, depth)
        if not isinstance(function, FUNCTION) or function.decorator_list or depth > DEPTH_MAX // 2:
            return self._cached(function, module, depth)
        returns = [one for one in module.owned[function] if isinstance(one, (ast.Return, ast.Yield, ast.YieldFrom))]
        if not returns or len(returns) > BINDINGS_MAX or not all(isinstance(one, ast.Return) for one in returns):
            return UNKNOWN
        return met(self.of(one.value, module, depth + 1) for one in returns)

    def _cached(self, function: ast.AST, module: Module, depth: int) -> Value:
        """The return value of a function with a decorator that does not change it, such as `functools.cache`."""
        if not isinstance(function, FUNCTION) or depth > DEPTH_MAX // 2:
            return UNKNOWN
        for one in function.decorator_list:
            name = self.dotted(one.func if isinstance(one, ast.Call) else one, module)
            if name not in {"functools.cache", "functools.lru_cache", "builtins.staticmethod", "builtins.classmethod"}:
                return UNKNOWN
        returns = [one for one in module.owned[function] if isinstance(one, ast.Return)]
        return met(self.of(one.value, module, depth + 1) for one in returns[:BINDINGS_MAX]) if returns else UNKNOWN

    def joined(self, node: ast.JoinedStr, module: Module, depth: int) -> Value:
        """An f-string."""
        parts = [
            self.of(one.value if isinstance(one, ast.FormattedValue) else one, module, depth) for one in node.values
        ]
        if all(one.kind == "constant" for one in parts):
            return Value("constant", "".join(str(one.of) for one in parts))
        return _kept(parts)

    def gathered(self, node: ast.AST, module: Module, depth: int) -> Value:
        """A tuple, list, set, dictionary or sum: it contains what its parts contain."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add, ast.Sub, ast.Pow)):
            number = _calculated(node.op, self.of(node.left, module, depth), self.of(node.right, module, depth))
            if number is not None:
                return number
        return _kept([self.of(one, module, depth) for one in ast.iter_child_nodes(node)])

    def chosen(self, node: ast.AST, module: Module, depth: int) -> Value:
        """`a if x else b`, `a or b`: what the alternatives have in common."""
        parts = (
            [node.body, node.orelse]
            if isinstance(node, ast.IfExp)
            else node.values
            if isinstance(node, ast.BoolOp)
            else []
        )
        return met(self.of(one, module, depth) for one in parts)


def _calculated(op: ast.operator, left: Value, right: Value) -> Value | None:
    one, other = left.of, right.of
    if left.kind != "constant" or right.kind != "constant":
        return None
    if isinstance(one, str) and isinstance(other, str) and isinstance(op, ast.Add) and len(one) + len(other) < 10_000:
        return Value("constant", one + other)
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float)) and abs(one) < 1e9 and abs(other) < 1e9
    if not numbers or isinstance(op, ast.Pow):
        return None
    return Value(
        "constant", one * other if isinstance(op, ast.Mult) else one + other if isinstance(op, ast.Add) else one - other
    )


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in node.keywords if one.arg == name), None)


def _member(base: Value, name: str) -> Value:
    """An attribute or item of an event, a record, a message or a context."""
    match base.kind:
        case "event" if name in {"Records", "records"}:
            return Value("records")
        case "event" if name == "raw_event":
            return base
        case "received" if name == "Messages":
            return Value("messages", "client")
        case "record" | "message" if name in {"attributes", "Attributes"}:
            return Value("attributes")
        case "record" if name == "raw_event":
            return base
        case "context" if name == "aws_request_id":
            return Value(origins=frozenset({"request-id"}))
        case "queue-url" if name == "QueueUrl":
            return base
        case _ if base.kind in _DELIVERED and name in _FROM_RECORD:
            return Value(origins=frozenset({_FROM_RECORD[name]}))
        case _:
            return UNKNOWN


def _item(base: Value, path: tuple[int, ...]) -> Value:
    """The value that a loop over `base` assigns to a target; `path` is the target's place in an unpacking."""
    if base.kind == "pairs" and isinstance(base.of, Value):
        return _item(base.of, path[1:]) if path[:1] == (1,) else UNKNOWN
    if path:
        return UNKNOWN
    return {"records": Value("record"), "messages": Value("message", base.of)}.get(base.kind, UNKNOWN)


def _kept(parts: Iterable[Value]) -> Value:
    """A value that contains everything its parts contain."""
    origins = frozenset[Origin]().union(*(one.origins for one in parts))
    return Value(origins=origins)


def met(values: Iterable[Value]) -> Value:
    """What several values have in common; None is ignored, since names are often set to None first."""
    found = [one for one in values if not (one.kind == "constant" and one.of is None)]
    if not found:
        return UNKNOWN
    first, *others = found
    for one in others:
        is_same = (one.kind, one.of, one.variable) == (first.kind, first.of, first.variable)
        common = first.origins & one.origins
        first = replace(first, origins=common) if is_same else Value(origins=common)
    return first


_EVALUATE: Final[dict[type[ast.AST], Callable[[Values, Any, Module, int], Value]]] = {
    ast.Attribute: Values.attribute,
    ast.Await: lambda values, node, module, depth: values.of(node.value, module, depth),
    ast.BinOp: Values.gathered,
    ast.BoolOp: Values.chosen,
    ast.Call: Values.call,
    ast.Constant: lambda _, node, __, ___: Value("constant", node.value),
    ast.Dict: Values.gathered,
    ast.IfExp: Values.chosen,
    ast.JoinedStr: Values.joined,
    ast.Lambda: lambda _, node, module, __: Value("function", node, module),
    ast.List: Values.gathered,
    ast.Name: Values.name,
    ast.NamedExpr: lambda values, node, module, depth: values.of(node.value, module, depth),
    ast.Set: Values.gathered,
    ast.Starred: lambda values, node, module, depth: values.of(node.value, module, depth),
    ast.Subscript: Values.subscript,
    ast.Tuple: Values.gathered,
}
