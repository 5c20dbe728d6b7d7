# finds: LOS016 error
"""The failure of a message is logged, and the message deleted."""
import json
import logging

logger = logging.getLogger(__name__)


def ship(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    logger.info("%d records", len(event["Records"]))
    for record in event["Records"]:
        logger.info(record["messageId"])
        try:
            ship(json.loads(record["body"]))
        except Exception as error:
            logger.error("failed: %s", error)
            continue
    return {"statusCode": 200, "body": json.dumps("done")}
