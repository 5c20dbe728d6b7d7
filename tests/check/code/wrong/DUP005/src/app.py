import json


def ship(order):
    raise NotImplementedError


def handler(event, context):
    for record in event["Records"]:
        ship(json.loads(record["body"]))
    return {"statusCode": 200}
