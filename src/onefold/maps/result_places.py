"""Where the result files of a map run are written: a folder, or a prefix in S3.

A file appears whole or not at all: it is written beside its place and moved there, or uploaded when it is complete.
Never here: what is in the files. S3 clients are handed in. Invariant: nothing but named files of one run is replaced.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from onefold import private_files
from onefold.maps.items import passes

_REFUSED: Final = 400  # HTTP status: from here on the request is at fault


class ResultPlace(Protocol):
    """A place for files. Where it cannot be written, its methods raise OSError."""

    bucket: str
    """The bucket's name; of a folder its path."""
    prefix: str
    """Before the names of files, without a slash at its end; empty for a folder."""

    def writing(self, name: str) -> Any:
        """A context manager that gives a binary file; it appears under `name` when the block ends without an error."""
        ...

    def remove(self, name: str) -> bool:
        """Remove a file; False where there is none."""
        ...


class Folder:
    """A directory on this machine; made when the first file is written.

    Args:
        path: of it.
    """

    def __init__(self, path: str) -> None:
        self.bucket = path
        self.prefix = ""
        self._path = Path(path)

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """As `ResultPlace.writing`."""
        private_files.make_folder(self._path)
        # Two drivers of one run may end it at once; each has a file of its own until it is whole.
        unfinished = self._path / f".{name}.{os.getpid()}-{threading.get_ident()}.unfinished"
        try:
            with open(unfinished, "wb", opener=private_files.opener) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._path / name)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    def remove(self, name: str) -> bool:
        """As `ResultPlace.remove`."""
        try:
            (self._path / name).unlink()
        except FileNotFoundError:
            return False
        return True


class Bucket:
    """A prefix in S3.

    Args:
        url: `s3://bucket/prefix`. client: of boto3, for S3.
    """

    def __init__(self, url: str, client: Any) -> None:
        self.bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self.prefix = prefix.strip("/")
        self._client = client

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """As `ResultPlace.writing`; the file is on this machine's disk until it is uploaded."""
        with tempfile.TemporaryFile(prefix="onefold-results-") as file:
            yield file
            file.seek(0)
            with _refusals():
                self._client.upload_fileobj(file, self.bucket, self._key(name))

    def remove(self, name: str) -> bool:
        """As `ResultPlace.remove`."""
        key = self._key(name)
        with _refusals():
            if not self._client.list_objects_v2(Bucket=self.bucket, Prefix=key).get("KeyCount"):
                return False
            self._client.delete_object(Bucket=self.bucket, Key=key)
        return True


@contextmanager
def _refusals() -> Iterator[None]:
    """What S3 refuses for good becomes an OSError, as of a folder that cannot be written; what may pass stays what it is."""
    try:
        yield
    except Exception as error:  # boto3's own, which is not imported here; that of an upload has S3's answer behind it
        answer = getattr(error, "response", None) or getattr(error.__context__, "response", {})
        if answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) < _REFUSED or passes(answer):
            raise
        raise OSError(f"{answer['Error']['Code']}: {answer['Error']['Message']}") from error


def place_of(place: str, client: Any = None) -> ResultPlace:
    """The place that a path or an s3:// URL names."""
    return Bucket(place, client) if place.startswith("s3://") else Folder(place)
