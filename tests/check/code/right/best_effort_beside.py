# finds: nothing
"""Only the notice is best effort; the work is outside of the try."""
import json
import logging
import urllib.request

logger = logging.getLogger()


def ship(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        ship(order)
        try:
            urllib.request.urlopen("https://hooks.example/shipped")
        except Exception:
            logger.warning("no notice")
