# finds: nothing
"""A handler that retries inside, and gives up by raising; one whose helper keeps what failed."""
import json
import logging
import boto3
import requests

log = logging.getLogger()
sqs = boto3.client("sqs")


def post(order):
    for attempt in range(3):
        try:
            return requests.post("https://ship.example", json=order, timeout=3).raise_for_status()
        except requests.RequestException:
            log.warning("attempt %d", attempt)
    raise RuntimeError("gave up")


def on_orders(event, context):
    for record in event["Records"]:
        post(json.loads(record["body"]))


def keeps(order):
    try:
        post(order)
    except Exception:
        sqs.send_message(QueueUrl="https://sqs.eu-west-1.amazonaws.com/123456789012/parked", MessageBody=json.dumps(order))
        raise


def on_parcels(event, context):
    for record in event["Records"]:
        try:
            keeps(json.loads(record["body"]))
        except Exception:
            log.exception("parked")
