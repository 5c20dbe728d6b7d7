import json

import pages


def handler(event, context):
    for record in event["Records"]:
        for page in json.loads(record["body"])["pages"]:
            pages.send(page)
