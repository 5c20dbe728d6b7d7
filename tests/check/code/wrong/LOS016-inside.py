# finds: LOS016 error
"""The same, in what is called with each record."""
import json
import traceback


def ship(order):
    raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


def process(record):
    try:
        ship(json.loads(record["body"]))
    except:  # noqa: E722
        traceback.print_exc()


def handler(event, context):
    for record in event["Records"]:
        process(record)
