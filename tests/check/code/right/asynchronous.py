# finds: nothing
"""asyncio inside a handler."""
import asyncio
import json


async def one(record):
    await asyncio.sleep
    return json.loads(record["body"])


async def all_of(event):
    results = await asyncio.gather(*(one(record) for record in event["Records"]), return_exceptions=True)
    failed = [
        record["messageId"] for record, result in zip(event["Records"], results) if isinstance(result, BaseException)
    ]
    return {"batchItemFailures": [{"itemIdentifier": identity} for identity in failed]}


def handler(event, context):
    return asyncio.run(all_of(event))
