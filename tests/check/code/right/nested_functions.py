# finds: nothing
"""Functions inside of functions, partials, lambdas, a generator of results."""
import functools
import json


def make(table):
    def one(record, *, table=table):
        body = json.loads(record["body"])
        table[body["id"]] = body
        return None

    return functools.partial(one, table=table)


work = make({})


def results(records):
    for record in records:
        try:
            yield record["messageId"], work(record)
        except Exception as error:
            yield record["messageId"], error


def handler(event, context):
    failed = [key for key, result in results(event["Records"]) if isinstance(result, Exception)]
    return {"batchItemFailures": list(map(lambda key: {"itemIdentifier": key}, failed))}
