"""The settings of a function and of an event source mapping, and which of them Lambda would refuse.

Limits are here with their sources; an error's first sentence is Lambda's own if known, so that a refusal here is
recognised on Lambda. Durations are milliseconds, as everywhere; Lambda's own are whole seconds.
Never here: running anything, the language of filter patterns (`events/patterns.py`).
Invariant: Lambda accepts settings that passed `check_function` and `check_mapping`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from onefold import limits
from onefold.errors import UsageError
from onefold.events.patterns import compile_filters

REGION_DEFAULT: Final = "us-east-1"
ACCOUNT_DEFAULT: Final = "000000000000"

# Lambda developer guide, "Lambda quotas": 6 MB each way for a synchronous invocation. An answer may be 100 bytes longer:
# that is the number in Lambda's own error text.
EVENT_BYTES_MAX: Final = 6 * 1024 * 1024
ANSWER_BYTES_MAX: Final = EVENT_BYTES_MAX + 100
TIMEOUT_MS_MIN: Final = limits.SECOND_MS
TIMEOUT_MS_MAX: Final = 900 * limits.SECOND_MS
VISIBILITY_FACTOR: Final = 6  # Lambda developer guide, SQS: a queue's visibility is at least this many timeouts
INIT_MS_MAX: Final = 10 * limits.SECOND_MS  # Lambda developer guide, "execution environment lifecycle", init phase
MEMORY_MIB_MIN: Final = 128
MEMORY_MIB_MAX: Final = 10_240
CONCURRENCY_DEFAULT: Final = 1_000  # Lambda developer guide, "function scaling": per account and region
ENVIRONMENT_BYTES_MAX: Final = 4_096  # Lambda developer guide, "Lambda quotas": 4 KB in all
# Lambda developer guide, "Defined runtime environment variables". The credentials among them are left out: a function
# has no role here that would supply them.
RESERVED: Final = frozenset(
    (
        "_HANDLER", "_X_AMZN_TRACE_ID", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_EXECUTION_ENV",
        "AWS_LAMBDA_FUNCTION_NAME", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "AWS_LAMBDA_FUNCTION_VERSION",
        "AWS_LAMBDA_INITIALIZATION_TYPE", "AWS_LAMBDA_LOG_GROUP_NAME", "AWS_LAMBDA_LOG_STREAM_NAME",
        "AWS_LAMBDA_RUNTIME_API", "LAMBDA_TASK_ROOT", "LAMBDA_RUNTIME_DIR",
    )
)  # fmt: skip

BATCH_SIZE_MAX: Final = 10_000
FIFO_BATCH_SIZE_MAX: Final = 10
BATCH_SIZE_MAX_WITHOUT_WINDOW: Final = 10
WINDOW_MS_MAX: Final = 300 * limits.SECOND_MS  # same, MaximumBatchingWindowInSeconds
CONCURRENCY_MIN: Final = 2  # Lambda API, ScalingConfig, MaximumConcurrency: 2 to 1,000
CONCURRENCY_MAX: Final = 1_000

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_HANDLER = re.compile(r"[^\s:]+:[^\s:]+|[^\s:]+\.[^\s:./]+")
_HANDLER_CHARS_MAX = 128
_VARIABLE = re.compile(r"[a-zA-Z][a-zA-Z0-9_]+|_[a-zA-Z0-9_]+")


class FunctionSettings(Struct, frozen=True, kw_only=True):
    """A function.

    Args:
        name: 1 to 64 characters of A-Z a-z 0-9 - _.
        handler: `module:function`, or Lambda's `folder/module.function`.
        code_dir: the folder with its modules, in which it runs.
        timeout_ms: 1 to 900 s; an invocation that takes longer is killed.
        memory_mib: 128 to 10,240; an invocation that needs more is killed.
        env: environment variables, in addition to this process's.
        region, account: as the function sees them.
        reserved_concurrency: the most invocations at one time, from 0; further ones are throttled. None: the account's
            1,000.
    """

    name: str
    handler: str
    code_dir: str
    timeout_ms: int = limits.FUNCTION_TIMEOUT_MS_DEFAULT
    memory_mib: int = limits.FUNCTION_MEMORY_MIB_DEFAULT
    env: Mapping[str, str] = {}
    region: str = REGION_DEFAULT
    account: str = ACCOUNT_DEFAULT
    reserved_concurrency: int | None = None

    @property
    def arn(self) -> str:
        """The function's ARN, without a version."""
        return f"arn:aws:lambda:{self.region}:{self.account}:function:{self.name}"


class MappingSettings(Struct, frozen=True, kw_only=True):
    """An event source mapping of a queue to a function.

    Args:
        uuid: identifies the mapping.
        queue, function: their names.
        batch_size: the most messages of one invocation: 1 to 10,000; FIFO 1 to 10.
        window_ms: how long a batch is collected: 0 to 300 s, whole seconds; standard queues only.
        concurrency_max: the most invocations of this mapping at one time, 2 to 1,000; None: as many as scaling allows.
        filters: patterns as JSON text; a message that matches none of them is deleted. Empty: all are passed on.
        reports_failures: the answer's `batchItemFailures` are used (ReportBatchItemFailures).
        enabled: whether it polls.
        provisioned: ProvisionedPollerConfig, stored and returned without effect, because polling here follows the load.
    """

    uuid: str
    queue: str
    function: str
    batch_size: int = limits.BATCH_SIZE_DEFAULT
    window_ms: int = 0
    concurrency_max: int | None = None
    filters: tuple[str, ...] = ()
    reports_failures: bool = False
    enabled: bool = True
    provisioned: Mapping[str, int] | None = None


def check_function(settings: FunctionSettings) -> None:
    """Refuse what Lambda would refuse.

    Raises:
        UsageError: a setting has another form or is out of its range; names it, its value and the rule.
    """
    if not _NAME.fullmatch(settings.name):
        raise UsageError(
            f"{settings.name!r} cannot be the name of a function.",
            meaning="A name has 1 to 64 of A-Z a-z 0-9 - _.",
            todo="Choose another name.",
        )
    if len(settings.handler) > _HANDLER_CHARS_MAX or not _HANDLER.fullmatch(settings.handler):
        raise UsageError(
            f"{settings.handler!r} is not a handler.",
            meaning="It is written module:function, or as on Lambda folder/module.function, in at most 128 characters.",
            todo="For example orders:handler.",
        )
    _within("timeout", settings.timeout_ms, TIMEOUT_MS_MIN, TIMEOUT_MS_MAX, per=limits.SECOND_MS)
    _within("memorySize", settings.memory_mib, MEMORY_MIB_MIN, MEMORY_MIB_MAX)
    if settings.reserved_concurrency is not None:
        _within("reservedConcurrentExecutions", settings.reserved_concurrency, 0, CONCURRENCY_DEFAULT)
    _check_environment(settings.env)


def _check_environment(env: Mapping[str, str]) -> None:
    reserved = sorted(RESERVED & env.keys())
    if reserved:
        raise UsageError(
            "Lambda was unable to configure your environment variables because the environment variables you have "
            "provided contains reserved keys that are currently not supported for modification. Reserved keys used in "
            f"this request: {', '.join(reserved)}",
            todo="Leave them out; they are set from the function's own settings.",
        )
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise UsageError(
                f"{name!r} cannot be an environment variable.",
                meaning="A name is a letter and then at least one of A-Z a-z 0-9 _; a value has no NUL.",
                todo="Choose another name.",
            )
    size = sum(len(name.encode()) + len(value.encode()) for name, value in env.items())
    if size > ENVIRONMENT_BYTES_MAX:
        raise UsageError(
            "Lambda was unable to configure your environment variables because the environment variables you have "
            "provided exceeded the 4KB limit.",
            meaning=f"Names and values are {size:,} bytes together.",
            todo="Read large settings from a file or a parameter store.",
        )


def check_mapping(settings: MappingSettings, *, fifo: bool, visibility_ms: int, timeout_ms: int) -> None:
    """Refuse what Lambda would refuse when the mapping is created or updated.

    Args:
        fifo, visibility_ms: its queue's. timeout_ms: its function's.

    Raises:
        UsageError: a setting is out of its range, settings exclude each other, a filter is not a pattern on `body`, or
            the visibility timeout is below the function's timeout.
    """
    _within("batchSize", settings.batch_size, 1, FIFO_BATCH_SIZE_MAX if fifo else BATCH_SIZE_MAX)
    _within("maximumBatchingWindowInSeconds", settings.window_ms, 0, WINDOW_MS_MAX, per=limits.SECOND_MS)
    if settings.window_ms % limits.SECOND_MS:
        raise UsageError(
            f"A batching window of {settings.window_ms} ms is not a whole number of seconds.",
            todo="Choose 0s to 300s, in seconds.",
        )
    if fifo and settings.window_ms:
        raise UsageError(
            "Batching window is not supported for FIFO queues",
            meaning=f"{settings.queue} is a FIFO queue; its batches are handed over at once.",
            todo="Leave the window out.",
        )
    if settings.batch_size > BATCH_SIZE_MAX_WITHOUT_WINDOW and not settings.window_ms:
        raise UsageError(
            "Maximum batch window in seconds must be greater than 0 if maximum batch size is greater than 10",
            meaning=f"The batch size is {settings.batch_size:,}, and one receive gives at most 10 messages.",
            todo="Give a window of at least 1s, or a batch size of at most 10.",
        )
    if settings.concurrency_max is not None:
        _within("maximumConcurrency", settings.concurrency_max, CONCURRENCY_MIN, CONCURRENCY_MAX)
    compile_filters(settings.filters)
    if visibility_ms < timeout_ms:
        raise UsageError(
            f"Queue visibility timeout: {_seconds(visibility_ms)} seconds is less than Function timeout: "
            f"{_seconds(timeout_ms)} seconds",
            meaning="A message would be given to somebody else while the function still works on it.",
            todo=f"Raise the visibility timeout of {settings.queue}, best to "
            f"{_seconds(VISIBILITY_FACTOR * timeout_ms)} seconds, or lower the function's timeout.",
        )


def _within(name: str, value: int, least: int, most: int, *, per: int = 1) -> None:
    """Refuse a value that is out of its range, with Lambda's text for a violated constraint."""
    if least <= value <= most:
        return
    bound, word = (least, "greater") if value < least else (most, "less")
    raise UsageError(
        f"1 validation error detected: Value '{value / per:g}' at '{name}' failed to satisfy constraint: "
        f"Member must have value {word} than or equal to {bound // per}",
        todo=f"Choose {least // per:,} to {most // per:,}" + (" seconds." if per > 1 else "."),
    )


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / limits.SECOND_MS:g}"
