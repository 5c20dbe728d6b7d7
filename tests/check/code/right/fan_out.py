# finds: nothing
"""Records in threads; what fails is raised by the results."""
import json
from concurrent.futures import ThreadPoolExecutor


def one(record):
    return json.loads(record["body"])


def handler(event, context):
    with ThreadPoolExecutor(max_workers=10) as pool:
        futures = {pool.submit(one, record): record["messageId"] for record in event["Records"]}
    failed = [identity for future, identity in futures.items() if future.exception() is not None]
    return {"batchItemFailures": [{"itemIdentifier": one_id} for one_id in failed]}


def other_handler(event, _):
    with ThreadPoolExecutor() as pool:
        return {"batchItemFailures": [x for x in pool.map(lambda r: None, event["Records"]) if x]}
