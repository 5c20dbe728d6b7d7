"""What Lambda refuses of functions and mappings is refused here, in its words; each limit from both sides."""

from __future__ import annotations

from typing import Any

import pytest

from onefold.errors import UsageError
from onefold.local.settings import FunctionSettings, MappingSettings, check_function, check_mapping


def function(**changes: Any) -> None:
    check_function(FunctionSettings(**{"name": "orders", "handler": "orders:handler", "code_dir": ".", **changes}))


def mapping(*, fifo: bool = False, visibility_ms: int = 30_000, timeout_ms: int = 3_000, **changes: Any) -> None:
    settings = MappingSettings(**{"uuid": "u", "queue": "q.fifo" if fifo else "q", "function": "orders", **changes})
    check_mapping(settings, fifo=fifo, visibility_ms=visibility_ms, timeout_ms=timeout_ms)


def refused(call: Any, **changes: Any) -> str:
    with pytest.raises(UsageError) as caught:
        call(**changes)
    assert caught.value.todo
    return caught.value.what


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"name": "a" * 64},
        {"handler": "src/orders.handler"},
        {"handler": "shop.orders.handler"},
        {"handler": "orders:Desk.answer"},
        {"timeout_ms": 1_000},
        {"timeout_ms": 900_000},
        {"memory_mib": 128},
        {"memory_mib": 10_240},
        {"env": {"TABLE": "t", "_X": "1"}},
        {"env": {"AB": "x" * 4_094}},
        {"reserved_concurrency": 0},
        {"reserved_concurrency": 1_000},
    ],
)
def test_functions_that_lambda_accepts(changes: dict[str, Any]) -> None:
    function(**changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"name": "a" * 65}, "cannot be the name of a function"),
        ({"name": "with space"}, "cannot be the name of a function"),
        ({"handler": "orders"}, "is not a handler"),
        ({"handler": ":handler"}, "is not a handler"),
        ({"handler": "orders:two words"}, "is not a handler"),
        ({"handler": "a." + "b" * 127}, "is not a handler"),
        (
            {"timeout_ms": 901_000},
            "Value '901' at 'timeout' failed to satisfy constraint: Member must have value less than or equal to 900",
        ),
        (
            {"timeout_ms": 999},
            "Value '0.999' at 'timeout' failed to satisfy constraint: Member must have value greater",
        ),
        ({"memory_mib": 127}, "Value '127' at 'memorySize'"),
        ({"memory_mib": 10_241}, "Value '10241' at 'memorySize'"),
        ({"reserved_concurrency": -1}, "Value '-1' at 'reservedConcurrentExecutions'"),
        ({"env": {"AWS_REGION": "x", "TZ": "y"}}, "Reserved keys used in this request: AWS_REGION"),
        ({"env": {"AB": "x" * 4_095}}, "exceeded the 4KB limit"),
        ({"env": {"1A": "x"}}, "cannot be an environment variable"),
        ({"env": {"AB": "x\0"}}, "cannot be an environment variable"),
    ],
)
def test_functions_that_lambda_refuses(changes: dict[str, Any], told: str) -> None:
    assert told in refused(function, **changes)


def test_an_arn_names_the_function() -> None:
    settings = FunctionSettings(name="orders", handler="a:b", code_dir=".", region="eu-west-1", account="123456789012")
    assert settings.arn == "arn:aws:lambda:eu-west-1:123456789012:function:orders"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch_size": 1},
        {"batch_size": 10_000, "window_ms": 1_000},
        {"window_ms": 300_000},
        {"fifo": True, "batch_size": 10},
        {"concurrency_max": 2},
        {"concurrency_max": 1_000},
        {"filters": ('{"body": {"kind": ["order"]}}',) * 5},
        {"filters": ("{}",)},
        {"visibility_ms": 5_000, "timeout_ms": 5_000},
    ],
)
def test_mappings_that_lambda_accepts(changes: dict[str, Any]) -> None:
    mapping(**changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"batch_size": 0}, "Value '0' at 'batchSize'"),
        ({"batch_size": 10_001, "window_ms": 1_000}, "Member must have value less than or equal to 10000"),
        ({"fifo": True, "batch_size": 11}, "Member must have value less than or equal to 10"),
        (
            {"batch_size": 11},
            "Maximum batch window in seconds must be greater than 0 if maximum batch size is greater than 10",
        ),
        ({"window_ms": 301_000}, "Value '301' at 'maximumBatchingWindowInSeconds'"),
        ({"window_ms": 1_500}, "not a whole number of seconds"),
        ({"fifo": True, "window_ms": 1_000}, "Batching window is not supported for FIFO queues"),
        ({"concurrency_max": 1}, "Value '1' at 'maximumConcurrency'"),
        ({"concurrency_max": 1_001}, "Value '1001' at 'maximumConcurrency'"),
        ({"filters": ("{}",) * 6}, "6 filters are too many"),
        ({"filters": ('{"body": ["' + "x" * 4_096 + '"]}',)}, "is too long"),
        ({"filters": ("{",)}, "Invalid filter pattern definition."),
        ({"filters": ("[]",)}, "Invalid filter pattern definition."),
        ({"filters": ('{"attributes": {"a": ["b"]}}',)}, "Invalid filter pattern definition."),
        (
            {"visibility_ms": 30_000, "timeout_ms": 31_000},
            "Queue visibility timeout: 30 seconds is less than Function timeout: 31 seconds",
        ),
    ],
)
def test_mappings_that_lambda_refuses(changes: dict[str, Any], told: str) -> None:
    assert told in refused(mapping, **changes)
