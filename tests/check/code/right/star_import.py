# finds: nothing
from nowhere_known import *  # noqa
from .relative_that_is_not_there import process

def lambda_handler(event, context):
    for record in event["Records"]:
        try:
            handle(record["body"])
        except Exception as e:
            report(e, record)
        process(record)
    return respond()
