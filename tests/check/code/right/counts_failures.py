# finds: nothing
"""Failures are counted, and the batch fails at its end."""
import json
import logging

logger = logging.getLogger()


def ship(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    failed = 0
    for record in event["Records"]:
        try:
            ship(json.loads(record["body"]))
        except Exception:
            logger.exception("failed")
            failed += 1
    if failed:
        raise RuntimeError(f"{failed} messages failed")
