from __future__ import annotations

from typing import Any, Callable


def each(records: list[dict[str, Any]], work: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    failed = []
    for record in records:
        try:
            work(record)
        except Exception as error:
            print("failed", error)
            failed.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failed}
