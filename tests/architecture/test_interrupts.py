"""Where an error of the disk or of a server is expected, the exception of a signal's handler is let through.

Most soft time limits are a TimeoutError, so an OSError: an `except` that takes one for the system's own loses it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture import source

ROOMS = ("onefold.engines.", "onefold.forks", "onefold.private_files", "onefold.clock", "onefold.runner.once")
OF_THE_SYSTEM = {
    "OSError", "EnvironmentError", "IOError", "TimeoutError", "ConnectionError", "InterruptedError", "BlockingIOError",
    "FileNotFoundError", "FileExistsError", "NotADirectoryError", "PermissionError", "ConnectionRefusedError",
    "ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError", "ProcessLookupError",
    "psycopg.Error", "redis.RedisError", "failures.HTTPClientError", "failures.ConnectionError",
}  # fmt: skip
# What runs in a worker's main loop, where a limit may raise one of our own classes: that is not what the engine said.
LOOP = {
    f"onefold.runner.{name}"
    for name in (
        "admission", "claims", "completion", "dispatcher", "executors", "orphans", "poll", "runner", "settlement", "worker"
    )
}  # fmt: skip
OURS = {
    f"errors.{name}" for name in ("OnefoldError", "TransientError", "UsageError", "NotFoundError", "OverLimitError")
}
# What encodes and reads payloads and results, where a limit may raise a ValueError, or one of its own that is one.
PAYLOADS = ("onefold.codec", "onefold.payload_errors", "onefold.runner.sources", "onefold.runner.versions")
OF_VALUES = {"Exception", "ValueError", "TypeError", "ArithmeticError", "LookupError", "RecursionError"}
# Their calls come through `needs-retry`, which lets it through before (engines/aws/session.py).
ELSEWHERE = {"onefold.engines.aws.session"}
# Of a transaction whose connection is ended in any case; what the caller hears is raised by the call before.
ELSEWHERE |= {"onefold.engines.postgres.effects", "onefold.engines.postgres.state"}


def named(node: ast.expr | None) -> set[str]:
    """The classes that an `except` or a `suppress` names."""
    if node is None:
        return {"OSError"}
    one = node.elts if isinstance(node, ast.Tuple) else [node]
    return {ast.unparse(name) for name in one}


def taken(tree: ast.AST, classes: set[str] = OF_THE_SYSTEM) -> Iterator[int]:
    """The lines in which an error of these is caught, and not raised again at the end, that may be of a signal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and named(node.type) & classes:
            last = node.body[-1]
            is_raised = isinstance(last, ast.Raise) and last.exc is None
            calls = [ast.unparse(one) for one in ast.walk(node) if isinstance(one, ast.Call)]
            if not is_raised and not any(call.startswith("let_through(") for call in calls):
                yield node.lineno
        elif isinstance(node, ast.With):
            calls_made = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            ignoring = [call for call in calls_made if ast.unparse(call.func) in ("suppress", "contextlib.suppress")]
            if any(named(argument) & classes for call in ignoring for argument in call.args):
                yield node.lineno


def test_no_error_of_the_system_is_caught_that_may_be_of_a_signal() -> None:
    found = [
        f"{path.relative_to(source.ROOT)}:{line}"
        for name, path in source.modules().items()
        if name.startswith(ROOMS) and name not in ELSEWHERE
        for line in taken(source.tree(path))
    ]
    assert found == [], "begin with onefold.interrupts.let_through(error), or use `ignored` in place of `suppress`"


def test_no_error_of_ours_is_caught_in_a_workers_loop_that_may_be_of_a_signal() -> None:
    files = source.modules()
    assert files.keys() >= LOOP
    found = [f"{files[name].name}:{line}" for name in sorted(LOOP) for line in taken(source.tree(files[name]), OURS)]
    assert found == [], "begin with onefold.interrupts.let_through(error), or use `ignored` in place of `suppress`"


def test_no_error_of_a_payload_is_caught_that_may_be_of_a_signal() -> None:
    files = source.modules()
    found = [f"{files[name].name}:{line}" for name in PAYLOADS for line in taken(source.tree(files[name]), OF_VALUES)]
    assert found == [], "begin with onefold.interrupts.let_through(error)"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("try: a()\nexcept OSError: pass", [2]),
        ("try: a()\nexcept (KeyError, TimeoutError) as e: raise ValueError from e", [2]),
        ("try: a()\nexcept OSError as e:\n    let_through(e)\n    return_()", []),
        ("try: a()\nexcept OSError:\n    raise", []),
        ("with suppress(OSError): a()", [1]),
        ("with contextlib.suppress(KeyError, FileNotFoundError): a()", [1]),
        ("with ignored(OSError): a()", []),
        ("with suppress(KeyError): a()", []),
        ("try: a()\nexcept KeyError: pass", []),
    ],
)
def test_they_are_found(text: str, lines: list[int]) -> None:
    assert list(taken(ast.parse(text))) == lines
