"""Credentials that could be had once and cannot be renewed for a while: not for now. A start without any is an error."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions as failures
import botocore.session
import pytest
from botocore.credentials import Credentials, DeferredRefreshableCredentials, RefreshableCredentials
from botocore.loaders import create_loader
from botocore.stub import Stubber

import onefold.testing
from onefold import errors
from onefold.clock import SystemClock
from onefold.engines.aws.session import Session, aws_errors

LOADER = create_loader()  # reads the descriptions of services once for all tests
SCRIPT = """#!/bin/sh
[ -e {folder}/fails ] && echo 'metadata service: timeout' >&2 && exit 1
cat {folder}/credentials.json
"""
KEYS = '{{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": "{end}"}}'


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with onefold.testing.sqs() as endpoint:
        yield endpoint.url


def end_of_keys() -> datetime:
    """So soon that botocore asks for new ones at every call."""
    return datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC) + timedelta(minutes=5)


def session(url: str, credentials: Credentials) -> Session:
    core = botocore.session.Session()
    core.register_component("data_loader", LOADER)
    core._credentials = credentials
    return Session("eu-west-1", {"sqs": url}, session=boto3.session.Session(botocore_session=core), tries=1)


def keys() -> dict[str, str]:
    return {"access_key": "a", "secret_key": "s", "token": "t", "expiry_time": end_of_keys().isoformat()}


def ask(aws: Session) -> None:
    with aws_errors("sqs:ListQueues", "all queues"):
        aws.client("sqs").list_queues()


def test_a_source_that_fails_for_a_while_is_asked_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script"
    script.write_text(SCRIPT.format(folder=tmp_path))
    (tmp_path / "credentials.json").write_text(KEYS.format(end=end_of_keys().isoformat()))
    (tmp_path / "config").write_text(f"[default]\ncredential_process = /bin/sh {script}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    fails = tmp_path / "fails"
    fails.touch()
    with pytest.raises(errors.UsageError, match="metadata service: timeout"):
        ask(Session("eu-west-1", {"sqs": url}))  # the first credentials of a process
    fails.unlink()
    aws = Session("eu-west-1", {"sqs": url})
    ask(aws)
    fails.touch()
    for _ in range(2):
        with pytest.raises(errors.TransientError, match=r"for sqs:ListQueues could not be renewed.*timeout"):
            ask(aws)
    fails.unlink()
    ask(aws)
    aws.close()


def refused(code: str) -> failures.ClientError:
    return failures.ClientError({"Error": {"Code": code, "Message": "no"}}, "AssumeRole")


@pytest.mark.parametrize(
    "raised",
    [
        failures.CredentialRetrievalError(provider="container-role", error_msg="timeout"),
        failures.ConnectTimeoutError(endpoint_url="http://169.254.169.254"),
        failures.UnauthorizedSSOTokenError(),
        refused("AccessDenied"),
        refused("ExpiredToken"),
        OSError(errno.EMFILE, "Too many open files"),
        FileNotFoundError(errno.ENOENT, "No such file", "/var/run/secrets/token"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
    ],
    ids=lambda raised: type(raised).__name__,
)
def test_whatever_a_renewal_raises_is_not_for_now(url: str, raised: Exception) -> None:
    ways: list[Exception] = []

    def renew() -> dict[str, str]:
        if ways:
            raise ways.pop()
        return keys()

    aws = session(url, RefreshableCredentials("a", "s", "t", end_of_keys(), renew, "test"))
    ask(aws)
    ways.append(raised)
    with pytest.raises(errors.TransientError, match="could not be renewed") as caught:
        ask(aws)
    assert caught.value.__cause__ is raised
    ask(aws)


def test_renewed_credentials_that_are_over_already_are_not_for_now(url: str) -> None:
    given = [keys() | {"expiry_time": datetime(2020, 1, 1, tzinfo=UTC).isoformat()}, keys()]
    aws = session(url, RefreshableCredentials("a", "s", "t", end_of_keys(), lambda: given.pop(0), "test"))
    with pytest.raises(errors.TransientError, match="still expired"):
        ask(aws)
    ask(aws)


def test_the_first_credentials_of_a_role_that_cannot_be_had_are_an_error(url: str) -> None:
    def first() -> dict[str, str]:
        raise refused("AccessDenied")

    with pytest.raises(errors.UsageError, match="does not allow"):
        ask(session(url, DeferredRefreshableCredentials(first, "assume-role")))


@pytest.mark.parametrize("code", ["ExpiredToken", "ExpiredTokenException"])
def test_expired_credentials_are_not_for_now_where_new_ones_come(url: str, code: str) -> None:
    renewable = session(url, RefreshableCredentials("a", "s", "t", end_of_keys(), keys, "test"))
    expected: list[tuple[Session, type[errors.OnefoldError]]] = [
        (renewable, errors.TransientError),
        (session(url, Credentials("a", "s", "t")), errors.UsageError),
    ]
    for aws, kind in expected:
        client: Any = aws.client("sqs")
        with Stubber(client) as stub:
            stub.add_client_error("list_queues", code)
            with pytest.raises(kind, match=code):
                ask(aws)


def test_no_descriptor_for_botocores_own_files_is_not_for_now(url: str) -> None:
    def without(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files", "service-2.json")

    own = boto3.session.Session()
    own.client = without
    with pytest.raises(errors.TransientError, match="Too many open files"):
        Session("eu-west-1", {"sqs": url}, session=own).client("sqs")
