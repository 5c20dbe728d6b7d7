# finds: nothing
"""A handler in a class, with clients in its attributes, and another that hides behind a decorator of its own."""
import functools
import json
import boto3


class Processor:
    def __init__(self, client=None):
        self.sqs = client or boto3.client("sqs")
        self.failures = []

    def __call__(self, event, context):
        for record in event["Records"]:
            self.one(record)
        return {"batchItemFailures": self.failures}

    def one(self, record):
        try:
            self.work(json.loads(record["body"]))
        except Exception:
            self.failures.append({"itemIdentifier": record["messageId"]})

    def work(self, order):
        raise NotImplementedError  # stands for an effect that is written elsewhere and can fail


handler = Processor()


def answers(function):
    @functools.wraps(function)
    def wrapped(event, context):
        failed = []
        for record in event["Records"]:
            try:
                function(record, context)
            except Exception:
                failed.append(record["messageId"])
        return {"batchItemFailures": [{"itemIdentifier": one} for one in failed]}

    return wrapped


@answers
def one_record(record, context):
    print(json.loads(record["body"]))
