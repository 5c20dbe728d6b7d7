# finds: nothing
"""Newer syntax: match, walrus, exception groups, type statements of annotations."""
from __future__ import annotations
import json

def route(record: dict) -> None:
    match json.loads(record["body"]):
        case {"type": "order", "id": str(order_id)}:
            print(order_id)
        case {"type": kind, **rest} if rest:
            raise ValueError(kind)
        case _:
            raise ValueError("unknown")


def handler(event: dict, context: object) -> dict[str, list[dict[str, str]]]:
    failed: list[str] = []
    for record in event["Records"]:
        try:
            route(record)
        except* ValueError as group:
            failed.append(record["messageId"])
    return {"batchItemFailures": [{"itemIdentifier": one} for one in failed]}
