# finds: nothing
"""A partner's key from the order, and a random request id that is no key."""
import json
import uuid
import requests


def handler(event, context):
    for record in event["Records"]:
        order = json.loads(record["body"])
        requests.post(
            "https://pay.example/charges",
            json={"amount": order["amount"]},
            headers={"Idempotency-Key": f"charge-{order['id']}", "X-Request-Id": str(uuid.uuid4())},
            timeout=10,
        )
