"""Events matched against many rules: microseconds an event, with 10 rules and with 1,000.

`python -m benchmarks.batches.matching --rules 1000 --count 20000` prints one JSON line. The rules are a shop's: most name a
source and a detail type, with an amount, a prefix or a list beside it; one in ten names a customer, one in a hundred
neither. One event of about 400 bytes in twenty matches a rule that names its customer.
Never here: what a rule does. Invariant: every event has the envelope's eight fields.
"""

from __future__ import annotations

import argparse
import json
import time

from onefold.events.patterns import compile_pattern
from onefold.events.rules import Router

EVENTS = 200


def pattern(number: int) -> dict[str, object]:
    """The pattern of a rule."""
    if number % 100 == 99:
        return {"detail": {"note": [{"prefix": f"urgent-{number}"}]}}
    if number % 10 == 9:
        return {"detail": {"customer": [f"customer-{number}"]}}
    detail: dict[str, object] = {"amount": [{"numeric": [">", number % 50 * 10]}]}
    if number % 3 == 0:
        detail = {"status": ["paid", "shipped"], "country": [{"anything-but": ["FR", "DE"]}]}
    return {"source": [f"shop.{number // 4}"], "detail-type": ["order", "refund"], "detail": detail}


def event(number: int, rules: int) -> dict[str, object]:
    """One event."""
    return {
        "version": "0", "id": f"{number:032x}", "detail-type": "order", "source": f"shop.{number * 7 % (rules // 4 + 1)}",
        "account": "000000000000", "time": "2026-06-01T02:00:00Z", "region": "eu-west-1", "resources": [],
        "detail": {
            "customer": f"customer-{number}", "amount": number % 700, "status": "paid", "country": "GB",
            "note": "by hand", "lines": [{"sku": f"sku-{line}", "quantity": line} for line in range(4)],
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", type=int, required=True)
    parser.add_argument("--count", type=int, default=20_000)
    options = parser.parse_args()
    router = Router([(compile_pattern(json.dumps(pattern(number))), number) for number in range(options.rules)])
    events = [event(number, options.rules) for number in range(EVENTS)]
    matched = 0
    begun = time.perf_counter()
    for number in range(options.count):
        matched += len(router.matching(events[number % EVENTS]))
    seconds = time.perf_counter() - begun
    print(json.dumps({"us": seconds * 1e6 / options.count, "matched_an_event": matched / options.count}))


if __name__ == "__main__":
    main()
