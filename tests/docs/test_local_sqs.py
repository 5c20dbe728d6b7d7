"""The page about the local SQS, run as a reader would: a server, the AWS CLI beside it, the story at the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.docs.test_pages import blocks, environment, shell, write_files

PAGE = "docs/local-sqs.md"
URL = "http://127.0.0.1:9324"


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """The server of the page, on a free port; its URL."""
    command = [sys.executable, "-m", "onefold", "serve", "--port", "0", "--json", *options]
    with subprocess.Popen(command, cwd=folder, env=environment(), text=True, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert '"url"' in line, line
            yield line.split('"url":', 1)[1].split('"')[1]
        finally:
            process.terminate()
            assert process.wait(30) == 0


@pytest.mark.slow
@pytest.mark.conformance(operation="Walk-through", case="FIFO, expiry, dead letter, story", source="clients: AWS CLI")
def test_a_message_dies_as_the_page_says(tmp_path: Path) -> None:
    commands = [text for language, _, text in blocks(PAGE) if language == "sh" and "onefold serve" not in text]
    with serving(tmp_path) as url:
        script = "export AWS_CONFIG_FILE=/dev/null AWS_PAGER= AWS_DEFAULT_OUTPUT=json\n" + "\n".join(commands)
        said = shell(script.replace(URL, url), tmp_path)
    assert (tmp_path / ".onefold" / "sqs.db").exists()
    assert said.count('"Body": "o-1: 12 kg"') == 3
    assert '"ApproximateReceiveCount": "2"' in said
    assert '"DeadLetterQueueSourceArn": "arn:aws:sqs:us-east-1:000000000000:orders.fifo"' in said
    story = said[said.rindex("}") :]
    assert story.index("sent") < story.index("received") < story.rindex("moved to orders-dead.fifo")
    assert "12 kg" not in story


@pytest.mark.slow
def test_the_pages_test_passes(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    assert "1 passed" in shell("python -m pytest -q -p no:cacheprovider test_orders.py", tmp_path)


def again(url: str) -> None:
    """Make a queue, delete it, and make one of its name."""
    keys = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
    sqs = boto3.client("sqs", endpoint_url=url, region_name="us-east-1", **keys)
    sqs.delete_queue(QueueUrl=sqs.create_queue(QueueName="orders")["QueueUrl"])
    sqs.create_queue(QueueName="orders")


@pytest.mark.slow
def test_a_name_is_free_again_at_once_where_that_is_said(tmp_path: Path) -> None:
    with serving(tmp_path) as url, pytest.raises(ClientError, match="QueueDeletedRecently"):
        again(url)
    with serving(tmp_path, "--memory", "--no-recreate-wait") as url:
        again(url)
