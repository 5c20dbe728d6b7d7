# finds: nothing
"""What is known to be harmless is passed over, the rest is raised."""
import json
import logging

logger = logging.getLogger()


class AlreadyShipped(Exception):
    pass


def ship(order):
    raise AlreadyShipped


def handler(event, context):
    for record in event["Records"]:
        try:
            ship(json.loads(record["body"]))
        except AlreadyShipped:
            logger.info("shipped before")
        except json.JSONDecodeError:
            logger.warning("not JSON: dropped")
