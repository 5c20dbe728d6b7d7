"""Handlers that behave."""

from __future__ import annotations

import asyncio
import decimal
import json
import logging
import os
import sys
import threading
from typing import Any

calls: list[str] = []


def echo(event: Any, context: Any) -> Any:
    return event


def count(event: Any, context: Any) -> dict[str, int]:
    """How often this process was called, and which process it is."""
    calls.append(context.aws_request_id)
    return {"calls": len(calls), "pid": os.getpid()}


def talk(event: Any, context: Any) -> None:
    """Speaks in every way there is; the last line has no end."""
    sys.stdout.write(f"to stdout {context.aws_request_id}\n")
    sys.stderr.write("to stderr\n")
    logging.getLogger().setLevel(logging.INFO)
    logging.getLogger("orders").info("through logging")
    sys.stdout.write("no end")


def about(event: Any, context: Any) -> dict[str, Any]:
    """What the handler is told about itself and its world."""
    names = (
        "TZ", "_HANDLER", "AWS_REGION", "AWS_LAMBDA_FUNCTION_NAME", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "AWS_EXECUTION_ENV",
        "LAMBDA_TASK_ROOT", "_X_AMZN_TRACE_ID", "TABLE",
    )  # fmt: skip
    told = ("aws_request_id", "function_name", "function_version", "invoked_function_arn", "memory_limit_in_mb")
    return {
        "env": {name: os.environ.get(name) for name in names},
        "context": {name: getattr(context, name) for name in told},
        "groups": [context.log_group_name, context.log_stream_name],
        "nobody": [context.identity.cognito_identity_id, context.client_context],
        "remaining_ms": context.get_remaining_time_in_millis(),
        "argv": sys.argv[1:],
        "first": sys.path[0],
        "cwd": os.getcwd(),
        "stdin": sys.stdin.read(),
        "onefold": [name for name in sys.modules if name.startswith("onefold")],
        "threads": threading.active_count(),
    }


def money(event: Any, context: Any) -> Any:
    return {"total": decimal.Decimal("12.5"), "text": "\u00e9\ud83d"}


def powertools(event: Any, context: Any) -> Any:
    """Powertools' batch processor and logger, as in its documentation; the body `bad` fails."""
    from aws_lambda_powertools import Logger
    from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

    logger = Logger(service="orders")

    def handle(record: Any) -> None:
        logger.info("record", extra={"id": record.message_id})
        if json.loads(record.body)["kind"] == "bad":
            raise ValueError("bad")

    @logger.inject_lambda_context
    def handler(event: Any, context: Any) -> Any:
        processor = BatchProcessor(event_type=EventType.SQS)
        return process_partial_response(event=event, record_handler=handle, processor=processor, context=context)

    return handler(event, context)


class Desk:
    @staticmethod
    def answer(event: Any, context: Any) -> str:
        return "from the desk"


async def awaited(event: Any, context: Any) -> None:
    await asyncio.Event().wait()
