# finds: nothing
"""Failed messages are named."""
import json
import logging

logger = logging.getLogger(__name__)


def ship(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    failures = []
    for record in event["Records"]:
        try:
            ship(json.loads(record["body"]))
        except Exception:
            logger.exception("failed")
            failures.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failures}
