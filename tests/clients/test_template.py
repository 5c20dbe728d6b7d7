"""The page about serving a template, followed: it is served, a message sent, and what its function sent received."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest

from tests.clients.serving import CREDENTIALS, serving
from tests.docs.test_pages import blocks, shell
from tests.emulators.servers import free_port

PAGE = "docs/how-to/serve-a-template.md"
URL = "http://127.0.0.1:9324"


@pytest.mark.slow
@pytest.mark.conformance(
    operation="Walk-through",
    case="a SAM template's queue, function and mapping, served",
    source="clients: AWS CLI, boto3",
)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    for _, title, text in blocks(PAGE):
        if title:
            (tmp_path / title).parent.mkdir(exist_ok=True)
            (tmp_path / title).write_text(text, encoding="utf-8")
    scripts = [text for language, _, text in blocks(PAGE) if language == "sh"]
    serve, ask = scripts
    assert "onefold serve template.yaml" in serve
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with serving("template.yaml", "--memory", folder=tmp_path, port=port, AWS_ENDPOINT_URL=url):
        said = shell(
            "export AWS_CONFIG_FILE=/dev/null AWS_PAGER= AWS_DEFAULT_OUTPUT=json\n" + ask.replace(URL, url), tmp_path
        )
        (publishing,) = [text for language, title, text in blocks(PAGE) if language == "python" and not title]
        exec(publishing.replace(URL, url), {})
        sqs = boto3.client("sqs", endpoint_url=url, **CREDENTIALS)
        queue = sqs.get_queue_url(QueueName="receipts-dev")["QueueUrl"]
        bodies: set[str] = set()
        while "booked o-2" not in bodies:
            found = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20).get("Messages", [])
            assert found, f"only {bodies}"
            bodies |= {one["Body"] for one in found}
    assert '"Body": "booked o-1"' in said
