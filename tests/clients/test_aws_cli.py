"""The AWS CLI as a person in a terminal uses it, as processes of their own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.serving import PATIENCE_S, environment, unique


def aws(server: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["aws", "--endpoint-url", server, "sqs", *words],
        env=environment(), text=True, capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def told(server: str, *words: str) -> Any:
    done = aws(server, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


@pytest.mark.conformance(
    operation="Walk-through", case="FIFO queue, batch from a file, receive, delete", source="clients: AWS CLI"
)
def test_a_terminal_session(server: str, tmp_path: Path) -> None:
    name = unique("shell.fifo")
    url = told(server, "create-queue", "--queue-name", name, "--attributes", "FifoQueue=true", "--tags", "owner=ada")[
        "QueueUrl"
    ]
    entries = [
        {"Id": str(n), "MessageBody": f"o-{n}", "MessageGroupId": "g", "MessageDeduplicationId": str(n)}
        for n in range(3)
    ]
    file = tmp_path / "entries.json"
    file.write_text(json.dumps(entries))
    sent = told(server, "send-message-batch", "--queue-url", url, "--entries", f"file://{file}")
    assert [one["Id"] for one in sent["Successful"]] == ["0", "1", "2"]
    found = told(
        server, "receive-message", "--queue-url", name, "--max-number-of-messages", "10",
        "--wait-time-seconds", "5", "--message-system-attribute-names", "All",
    )["Messages"]  # fmt: skip
    assert [message["Body"] for message in found] == ["o-0", "o-1", "o-2"]
    assert found[0]["Attributes"]["MessageGroupId"] == "g"
    assert told(server, "delete-message", "--queue-url", url, "--receipt-handle", found[0]["ReceiptHandle"]) is None
    shown = told(server, "get-queue-attributes", "--queue-url", url, "--attribute-names", "All")["Attributes"]
    assert shown["ApproximateNumberOfMessagesNotVisible"] == "2"
    assert shown["FifoQueue"] == "true"
    listed = told(server, "list-queues", "--queue-name-prefix", name.removesuffix(".fifo"))
    assert listed["QueueUrls"] == [url]


@pytest.mark.conformance(
    operation="Errors", case="the CLI shows AWS's code and text and exits with 255", source="clients: AWS CLI"
)
def test_an_error_in_the_terminal(server: str) -> None:
    done = aws(server, "get-queue-url", "--queue-name", "nobody-made-it")
    assert done.returncode == 255
    assert "(AWS.SimpleQueueService.NonExistentQueue)" in done.stderr
    assert "The specified queue does not exist." in done.stderr
