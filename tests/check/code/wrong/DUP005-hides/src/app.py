import json
import logging

from work import ship

logger = logging.getLogger()


def handler(event, context):
    for record in event["Records"]:
        try:
            ship(json.loads(record["body"]))
        except Exception:
            logger.exception("failed")
