# finds: nothing
"""Records of a topic, a stream and a bucket are not messages of a queue."""
import json
import logging
import uuid

logger = logging.getLogger()


def work(what):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def on_topic(event, context):
    for record in event["Records"]:
        try:
            work(json.loads(record["Sns"]["Message"]))
        except Exception:
            logger.exception(record["Sns"]["MessageId"])


def on_stream(event, context):
    for record in event["Records"]:
        try:
            work(record["kinesis"]["data"])
        except Exception:
            logger.exception(str(uuid.uuid4()))
