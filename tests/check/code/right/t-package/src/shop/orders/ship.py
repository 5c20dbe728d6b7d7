import json


def one(record):
    print(json.loads(record["body"]))
