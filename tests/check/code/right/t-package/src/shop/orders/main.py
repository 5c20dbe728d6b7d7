from shop.common.batch import each
from ..common import batch
from . import ship


def handler(event, context):
    if not event.get("Records"):
        return batch.each([], ship.one)
    return each(event["Records"], ship.one)
