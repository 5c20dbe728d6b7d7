"""Lambda handlers on Powertools' batch processing; a body is {"report": port, "do": text}, and "poison" always fails."""

from __future__ import annotations

import json
import socket
from typing import Any

from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    SqsFifoPartialProcessor,
    process_partial_response,
)
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

STANDARD = BatchProcessor(event_type=EventType.SQS)
FIFO = SqsFifoPartialProcessor()


def carry_out(record: SQSRecord) -> None:
    body = json.loads(record.body)
    line = f"{body['do']} {record.attributes.approximate_receive_count}\n"
    with socket.create_connection(("127.0.0.1", body["report"]), timeout=60) as connection:
        connection.sendall(line.encode())
    if body["do"].startswith("poison"):
        raise ValueError("poison")


def standard(event: dict[str, Any], context: LambdaContext) -> Any:
    return process_partial_response(event=event, record_handler=carry_out, processor=STANDARD, context=context)


def fifo(event: dict[str, Any], context: LambdaContext) -> Any:
    return process_partial_response(event=event, record_handler=carry_out, processor=FIFO, context=context)
