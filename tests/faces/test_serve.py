"""`onefold serve` as a process: what it prints, who else may have its file, how it ends."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PATIENCE_S = 60.0


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server with --json, and its line."""
    command = [sys.executable, "-m", "onefold", "serve", "--port", "0", "--json", *options]
    with subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A server that is expected to end by itself."""
    command = [sys.executable, "-m", "onefold", "serve", *options]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=PATIENCE_S, check=False)


def ask(port: int, operation: str, **members: object) -> dict[str, Any]:
    headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
    status, body = request(port, "POST", "/", json.dumps(members), headers)
    assert status == 200, body
    return json.loads(body or "{}")  # type: ignore[no-any-return]  # an object by protocol


def request(
    port: int, method: str, path: str, body: str = "", headers: dict[str, str] | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_and_ends_when_told(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path, "--memory", "--region", "eu-west-1", "--account", "123456789012") as (process, line):
        assert line["url"] == f"http://127.0.0.1:{line['port']}"
        assert (line["region"], line["account"], line["data"]) == ("eu-west-1", "123456789012", None)
        assert line["pid"] == process.pid
        url = ask(line["port"], "CreateQueue", QueueName="orders")["QueueUrl"]
        assert url == f"{line['url']}/123456789012/orders"
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""
    assert list(tmp_path.iterdir()) == []


def what_people_are_told(work: Path, *options: str) -> str:
    command = [sys.executable, "-u", "-m", "onefold", "serve", "--port", "0", *options]
    with subprocess.Popen(command, cwd=work, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = "".join(iter(process.stdout.readline, "Ctrl-C stops it.\n"))
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    return said


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "is not shown: other machines can reach this server"),
        (("--admin-token", "sesame"), "/_onefold/history, with the header"),
    ],
)
def test_people_are_told_what_the_history_of_an_open_server_asks_for(
    tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    said = what_people_are_told(tmp_path, "--memory", "--host", "0.0.0.0", *options)
    assert told in said
    assert "sesame" not in said


def test_people_are_told_how_to_point_a_client_at_it(tmp_path: Path) -> None:
    said = what_people_are_told(tmp_path, "--fault", "lose-ack=10%", "--seed", "7")
    url = said.split()[2]
    assert url.startswith("http://127.0.0.1:")
    assert f'endpoint_url="{url}"' in said
    assert f"aws --endpoint-url {url} --region us-east-1 sqs" in said
    assert ".onefold/sqs.db" in said
    assert f"{url}/_onefold/history" in said
    assert "lose-ack=10% (seed 7)" in said


def test_what_was_sent_is_there_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, line):
        ask(line["port"], "CreateQueue", QueueName="orders")
        ask(line["port"], "SendMessage", QueueUrl="orders", MessageBody="o-1")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert (tmp_path / ".onefold" / "sqs.db").exists()
    with serving(tmp_path) as (_, line):
        assert ask(line["port"], "ReceiveMessage", QueueUrl="orders")["Messages"][0]["Body"] == "o-1"


def test_a_second_server_on_the_file_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "--data", "one.db") as (process, line):
        second = run(tmp_path, "--port", "0", "--data", "one.db")
        assert second.returncode == 1
        assert second.stdout == ""
        assert f"one.db is being served already, by process {process.pid} at {line['url']}" in second.stderr
        assert "--data FILE" in second.stderr
        ask(line["port"], "ListQueues")
        process.kill()
        process.wait(PATIENCE_S)
    with serving(tmp_path, "--data", "one.db") as (_, line):
        ask(line["port"], "ListQueues")


def test_a_long_poll_is_answered_at_once_when_the_server_ends(tmp_path: Path) -> None:
    with serving(tmp_path, "--memory") as (process, line):
        port = line["port"]
        ask(port, "CreateQueue", QueueName="orders")
        answers: list[dict[str, Any]] = []
        poll = threading.Thread(
            target=lambda: answers.append(ask(port, "ReceiveMessage", QueueUrl="orders", WaitTimeSeconds=20))
        )
        poll.start()
        while json.loads(request(port, "GET", "/_onefold/waiting")[1]) != {"waiting": {"orders": 1}}:
            assert poll.is_alive()
        process.terminate()
        assert process.wait(15) == 0  # the poll would go on for 20 s
        poll.join(PATIENCE_S)
        assert answers == [{}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fault", "loose-ack=1"], "Did you mean lose-ack?"),
        (["--memory", "--data", "a.db"], "Both --memory and --data"),
        (["--access-key", "AKIA"], "Give both keys"),
        (["--access-key", "AKIA", "--secret-key", ""], "An empty text was given for --secret-key."),
        (["--access-key", "", "--secret-key", ""], "An empty text was given for --access-key."),
        (["--admin-token", ""], "An empty text was given for --admin-token."),
        (["--account", "12"], "It has 12 digits."),
        (["--region", "a b"], "is not a region"),
        (["--function", "book"], "NAME=MODULE:FUNCTION"),
        (["--parameter", "Stage=dev"], "--parameter is given without a template"),
        (["template.yaml", "--parameter", "Stage"], "is not NAME=VALUE"),
        (["main.tf", "--memory"], "is a Terraform file"),
        (["--data", "/dev/null/sqs.db"], "cannot be written"),
        (["--host", "192.0.2.7", "--memory"], "not an address of this machine"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(tmp_path: Path, options: list[str], said: str) -> None:
    ended = run(tmp_path, *options)
    assert ended.returncode == 1
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    with serving(tmp_path, "--memory") as (_, line):
        ended = run(tmp_path, "--memory", "--port", str(line["port"]))
        assert ended.returncode == 1
        assert f"Port {line['port']} of 127.0.0.1 is taken" in ended.stderr


def test_with_keys_only_signed_requests_are_taken(tmp_path: Path) -> None:
    import boto3
    from botocore.exceptions import ClientError

    def client(access: str, secret: str) -> Any:
        return boto3.client(
            "sqs",
            endpoint_url=line["url"],
            region_name="us-east-1",
            aws_access_key_id=access,
            aws_secret_access_key=secret,
        )

    with serving(tmp_path, "--memory", "--access-key", "AKIAONE", "--secret-key", "s3cret") as (_, line):
        assert client("AKIAONE", "s3cret").create_queue(QueueName="orders")["QueueUrl"].endswith("/orders")
        with pytest.raises(ClientError) as caught:
            client("AKIAONE", "other").list_queues()
        assert caught.value.response["Error"]["Code"] == "SignatureDoesNotMatch"
        with pytest.raises(ClientError) as caught:
            client("AKIATWO", "s3cret").list_queues()
        assert caught.value.response["Error"]["Code"] == "InvalidClientTokenId"
        status, _ = request(line["port"], "GET", "/?Action=ListQueues")
        assert status == 403
        assert request(line["port"], "GET", "/_onefold/health")[0] == 200


def test_a_signal_that_comes_twice_is_one(tmp_path: Path) -> None:
    with serving(tmp_path, "--memory") as (process, _):
        for _ in range(3):
            process.terminate()
        assert process.wait(PATIENCE_S) == 0


TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Orders: {Type: AWS::SQS::Queue, Properties: {QueueName: orders, VisibilityTimeout: 60}}
  Table: {Type: AWS::DynamoDB::Table}
  Work:
    Type: AWS::Serverless::Function
    Properties:
      FunctionName: work
      Runtime: python3.12
      Handler: shop.handler
      CodeUri: .
      Events: {Sqs: {Type: SQS, Properties: {Queue: !GetAtt Orders.Arn}}}
  Loose: {Type: AWS::Lambda::EventSourceMapping, Properties: {EventSourceArn: !GetAtt Orders.Arn, FunctionName: gone}}
"""


def test_a_template_is_served_and_what_was_left_out_is_said(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    (tmp_path / "shop.py").write_text("def handler(event, context):\n    print(event['Records'][0]['body'].upper())\n")
    command = [sys.executable, "-u", "-m", "onefold", "serve", "template.yaml", "--port", "0"]
    for _ in range(2):  # the second time everything is there already
        with subprocess.Popen(
            command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            said = "".join(iter(process.stdout.readline, "Ctrl-C stops it.\n"))
            assert "mappings: orders -> work" in said
            assert said.count("left out: ") == 2  # each thing once
            assert "AWS::Lambda::EventSourceMapping Loose: its function gone is not in this template" in said
            assert "template.yaml:5: AWS::DynamoDB::Table Table" in said
            port = int(said.split()[2].rpartition(":")[2])
            ask(port, "SendMessage", QueueUrl="orders", MessageBody="o-1")
            assert next(line for line in process.stderr if "O-1" in line).endswith(" | O-1\n")
            assert len(json.loads(request(port, "GET", "/_onefold/mappings")[1])["mappings"]) == 1
            process.terminate()
            assert process.wait(PATIENCE_S) == 0


def test_a_zip_is_unpacked_and_parameters_are_those_given(tmp_path: Path) -> None:
    template = f"Parameters: {{Stage: {{Type: String}}}}\n{TEMPLATE}".replace("CodeUri: .", "CodeUri: shop.zip")
    template = template.replace("QueueName: orders,", "QueueName: !Sub 'orders-${Stage}',")
    (tmp_path / "template.yaml").write_text(template)
    with zipfile.ZipFile(tmp_path / "shop.zip", "w") as archive:
        archive.writestr("shop.py", "import wide\n\ndef handler(event, context):\n    print(wide.WORD)\n")
        archive.writestr("wide/__init__.py", "WORD = 'unpacked'\n")
    command = [sys.executable, "-u", "-m", "onefold", "serve", "template.yaml", "--memory", "--port", "0"]
    with subprocess.Popen(
        [*command, "--parameter", "Stage=dev"], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = "".join(iter(process.stdout.readline, "Ctrl-C stops it.\n"))
        assert "mappings: orders-dev -> work" in said
        ask(int(said.split()[2].rpartition(":")[2]), "SendMessage", QueueUrl="orders-dev", MessageBody="o-1")
        assert next(line for line in process.stderr if "unpacked" in line).endswith(" | unpacked\n")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
