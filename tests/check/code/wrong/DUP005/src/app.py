import json


def ship(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def handler(event, context):
    for record in event["Records"]:
        ship(json.loads(record["body"]))
    return {"statusCode": 200}
