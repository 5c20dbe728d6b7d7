# finds: nothing
"""One function behind an API, a topic, a bucket and a queue: what cannot be told is not reported."""
import json
import logging

logger = logging.getLogger()


def dispatch(kind, payload):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    try:
        if "httpMethod" in event:
            dispatch("api", event["body"])
        for record in event.get("Records", []):
            if record.get("eventSource") == "aws:sqs":
                dispatch("queue", record["body"])
            elif "s3" in record:
                dispatch("bucket", record["s3"])
            elif "Sns" in record:
                dispatch("topic", record["Sns"]["Message"])
    except Exception:
        logger.exception("failed")
    return {"statusCode": 200}
