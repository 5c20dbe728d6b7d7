"""Fills a queue: `python -m benchmarks.serving.load --url URL --queue NAME --count N`, in batches of 10 on 16 connections.

What is sent is delayed by nothing and never received here. Never here: measuring.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.serving.lean import BATCH, BODY, Client, prepared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--count", type=int, required=True)
    options = parser.parse_args()
    client = Client(options.url, 16)
    queue = client.ask("CreateQueue", QueueName=options.queue)["QueueUrl"]
    entries = [{"Id": str(number), "MessageBody": BODY} for number in range(BATCH)]
    request = prepared(client.host, "SendMessageBatch", {"QueueUrl": queue, "Entries": entries})
    seconds, _ = client.timed([request] * (options.count // BATCH))
    print(json.dumps({"load_per_s": options.count / seconds}))


if __name__ == "__main__":
    main()
