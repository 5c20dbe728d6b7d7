"""Whether code has an effect, or only logs, measures and converts values.

Logging, metrics and traces do not count as effects: a log line does not preserve a message.
Never here: rules. Invariant: a call that is not known to be harmless counts as an effect.
"""

from __future__ import annotations

import ast
from typing import Final

from onefold.check.python_modules import FUNCTION, Module, last_name
from onefold.check.python_values import Values

_DEPTH_MAX: Final = 4
_BUILTINS: Final = frozenset(
    {
        *("abs", "all", "any", "bool", "bytes", "dict", "enumerate", "filter", "float", "format", "frozenset"),
        *("getattr", "hasattr", "hash", "id", "int", "isinstance", "issubclass", "iter", "len", "list", "map"),
        *("max", "min", "next", "print", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum"),
        *("super", "tuple", "type", "vars", "zip"),
        *("Exception", "ValueError", "KeyError", "TypeError", "RuntimeError"),
    }
)
_LIBRARIES: Final = (
    *("base64.", "collections.", "contextlib.", "copy.", "dataclasses.", "datetime.", "decimal."),
    *("functools.", "hashlib.", "html."),
    *("itertools.", "json.", "logging.", "math.", "operator.", "orjson.", "os.environ", "os.getenv", "re.", "string."),
    *("structlog.", "sys.exc_info", "textwrap.", "time.monotonic", "time.perf_counter", "time.time", "traceback."),
    *("typing.", "urllib.parse.", "uuid.", "warnings.", "zlib.", "loguru."),
    *("aws_lambda_powertools.Logger", "aws_lambda_powertools.Metrics", "aws_lambda_powertools.Tracer"),
    *("aws_lambda_powertools.logging", "aws_lambda_powertools.metrics", "aws_lambda_powertools.tracing"),
    *("aws_lambda_powertools.utilities.data_classes", "aws_lambda_powertools.utilities.parser", "aws_xray_sdk."),
    *("ddtrace.", "newrelic.", "opentelemetry.", "rollbar.", "sentry_sdk."),
)
_CONVERSIONS: Final = frozenset(
    {
        *("capitalize", "casefold", "copy", "count", "date", "decode", "encode", "endswith", "find", "format"),
        *("get", "hex"),
        *("hexdigest", "isoformat", "items", "join", "keys", "lower", "lstrip", "model_dump", "partition", "replace"),
        *("rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strftime", "strip"),
        *("timestamp", "title"),
        *("total_seconds", "upper", "values"),
    }
)
_COLLECTING: Final = frozenset({"add", "append", "clear", "discard", "extend", "insert", "pop", "setdefault", "update"})
_NOT_COLLECTIONS: Final = frozenset({"client", "resource", "table", "queue", "instance", "external"})
_WATCHERS: Final = ("log", "metric", "tracer", "trace", "span", "statsd", "sentry", "xray", "rollbar", "bugsnag")


class Effects:
    """Distinguishes calls with an effect from others."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def acts(self, node: ast.AST, module: Module, depth: int = 0) -> ast.Call | None:
        """The first call with an effect in a node; None if there is none."""
        calls = [one for one in _below(node) if isinstance(one, ast.Call)]
        for one in sorted(calls, key=lambda each: (each.lineno, each.col_offset)):
            if not self.only_looks(one, module, depth):
                return one
        return None

    def only_looks(self, call: ast.Call, module: Module, depth: int = 0) -> bool:
        """Whether a call only logs, measures or converts values."""
        func = call.func
        dotted = self._values.dotted(func, module)
        if dotted.startswith("builtins."):
            return dotted.removeprefix("builtins.") in _BUILTINS
        if dotted:
            return dotted.startswith(_LIBRARIES)
        found = self._values.function(func, module)
        if found is not None:
            inner, of = found
            if depth >= _DEPTH_MAX or (isinstance(inner, FUNCTION) and self._raises(inner)):
                return False
            body = inner.body if isinstance(inner, FUNCTION) else [inner.body]
            return all(self.acts(one, of, depth + 1) is None for one in body)
        if not isinstance(func, ast.Attribute):
            return self._values.of(func, module).kind == "class"
        base = self._values.of(func.value, module)
        if base.kind in {"client", "resource", "table", "queue", "message", "messages", "session"}:
            return False
        if isinstance(base.of, str) and base.kind == "instance" and base.of.startswith(_LIBRARIES):
            return True
        return func.attr in _CONVERSIONS or self.watches(call)

    def watches(self, call: ast.Call) -> bool:
        """Whether a call is made on something named as a logger, metrics, a tracer or similar."""
        func = call.func
        if not isinstance(func, ast.Attribute):
            return False
        base: ast.AST = func.value
        while isinstance(base, ast.Attribute):
            if is_watcher(base.attr):
                return True
            base = base.value
        return is_watcher(last_name(base))

    def collects(self, call: ast.Call, module: Module) -> bool:
        """Whether a call only adds a value to a list, set or dictionary."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _COLLECTING:
            return False
        return self._values.of(call.func.value, module).kind not in _NOT_COLLECTIONS

    def _raises(self, function: ast.AST) -> bool:
        return any(isinstance(one, ast.Raise) for one in _below(function))


def is_watcher(name: str) -> bool:
    """Whether a name suggests a logger, metrics, a tracer or similar."""
    return any(one in name.lower() for one in _WATCHERS)


def _below(node: ast.AST) -> list[ast.AST]:
    """A node and its descendants, without the bodies of functions and classes defined in it."""
    found, waiting = [], [node]
    while waiting:
        one = waiting.pop()
        found.append(one)
        if one is node or not isinstance(one, (*FUNCTION, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(one)
    return found


def is_pass(statement: ast.stmt) -> bool:
    """Whether a statement has no meaning at run time here: a docstring, `pass`, `...`, an import."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or isinstance(statement, (ast.Pass, ast.Import, ast.ImportFrom))
