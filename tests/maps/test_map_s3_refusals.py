"""What S3 refuses ends in a person's hands, with the way out; what it cannot do for now is tried again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import ClientError, ResponseStreamingError

from onefold import errors
from onefold.admin import maps
from onefold.maps import mapper
from onefold.maps.sources import S3Results, S3Source
from onefold.testing.inline import inline
from tests.maps.map_world import RUN, Mill, drive


class Client:
    """An S3 that answers everything with one error."""

    exceptions = SimpleNamespace(ClientError=ClientError)

    def __init__(self, code: str, status: int) -> None:
        self._error = ClientError(
            {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Call"
        )

    def head_object(self, **_: Any) -> Any:
        raise self._error

    get_object = list_objects_v2 = head_object

    def upload_fileobj(self, *_: Any) -> None:
        try:
            raise self._error
        except ClientError as error:
            raise S3UploadFailedError(f"Failed to upload: {error}") from error


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [("AccessDenied", 403, errors.NotFoundError), ("NoSuchKey", 404, errors.NotFoundError),
     ("SlowDown", 503, errors.TransientError), ("InternalError", 500, errors.TransientError),
     ("ExpiredToken", 400, errors.TransientError)],
)  # fmt: skip
def test_an_object_that_cannot_be_read(code: str, status: int, kind: type[Exception]) -> None:
    source = S3Source("s3://nightly/in.csv", Client(code, status))
    with pytest.raises(kind, match=f"s3://nightly/in.csv cannot be read: {code}: no") as refused:
        source.identity()
    assert isinstance(refused.value, errors.UsageError) == (kind is errors.NotFoundError), (
        "a turn halts for a person, or is tried again"
    )
    with pytest.raises(kind):
        source.open(0)


@pytest.mark.parametrize(("status", "kind"), [(403, OSError), (404, OSError), (503, S3UploadFailedError)])
def test_results_that_cannot_be_uploaded(status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind), S3Results("s3://nightly/out", Client("Code", status)).writing("manifest.json") as file:
        file.write(b"{}")


def test_results_that_s3_refuses_halt_the_run_in_plain_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mill = Mill(tmp_path)
    with inline(mill.app) as world:
        maps.start(mill.app, "grind", run=RUN, items=mill.file(3))
        with monkeypatch.context() as refusing:
            refusing.setattr(
                mapper, "result_location", lambda *_: S3Results("s3://nightly/out", Client("AccessDenied", 403))
            )
            world.run_for(10_000)
            found = maps.progress(mill.app, RUN)
            assert found.status == "halted"
            assert "cannot be written: AccessDenied: no" in (found.failure or "")
        maps.resume(mill.app, RUN, turns=False)
        assert drive(mill, world).status == "succeeded"
        assert mapper.Mapper(mill.app.runtime(), mill.map, RUN).over


class Dropped:
    """A body that the server gave up while it lay unread."""

    def read(self, _: int) -> bytes:
        raise ResponseStreamingError(error="Connection broken")

    def close(self) -> None:
        pass


def test_a_body_that_was_dropped_is_read_again_later() -> None:
    client = SimpleNamespace(exceptions=Client.exceptions, get_object=lambda **_: {"Body": Dropped()})
    with (
        S3Source("s3://nightly/in.csv", client).open(0) as body,
        pytest.raises(errors.TransientError, match=r"in\.csv"),
    ):
        body.read(1)
