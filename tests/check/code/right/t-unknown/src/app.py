from company.lambda_tools import with_batch, respond
import json


@with_batch
def handler(record, context):
    print(json.loads(record["body"]))


def other(event, context):
    return respond(event)
