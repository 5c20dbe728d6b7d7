# finds: DUP007 error, DUP007 error, DUP007 warning
"""Keys for partners: drawn anew, the invocation's, the message's."""
import json
from uuid import uuid4

import redis
import requests
import stripe

cache = redis.Redis(host="cache")


def lambda_handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        stripe.PaymentIntent.create(amount=order["amount"], idempotency_key=uuid4().hex)
        headers = {"Idempotency-Key": context.aws_request_id}
        requests.post("https://mail.example/send", json=order, headers=headers, timeout=5)


def other_handler(event, context):
    for record in event["Records"]:
        cache.set("seen:" + record["messageId"], 1, nx=True, ex=86400)
