"""Where the items of a map run come from (`Source`), and where its result files go (`ResultLocation`): files and S3.

A source is a file, a directory, an object in S3 or a prefix there; `identity` describes its present version, so that a
change between a crash and a resume is detected. Reading is streamed: memory does not grow with the file. A row that
cannot be read is returned as `Malformed`, with its line and the reason, and reading continues after it. A result file
appears complete or not at all: it is written under a temporary name and renamed, or uploaded when complete.
Never here: formats (`formats.py`), sending, payload types. S3 clients are passed in.
Invariants: reading from the position that came with an item yields exactly the items after it; a run replaces no result
files but its own.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

from msgspec import Struct, json

from onefold import errors, private_files

RECORD_BYTES_MAX: Final = 8 * 1024 * 1024  # DG input-output-itemreader: a raw item can have 8 MB
_HEAD_BYTES: Final = 65_536
_SERVER_ERROR: Final = 500  # the lowest HTTP status of a server's error
# S3's error codes below 500 that are temporary too
_PASSING: Final = frozenset({"ExpiredToken", "OperationAborted", "RequestTimeout"})
_GZIP: Final = ".gz"
_GZIP_MAGIC: Final = b"\x1f\x8b"


class Position(Struct, frozen=True, gc=False, array_like=True):
    """A position between two items.

    Args:
        offset: bytes of text before it (after decompression); 0 if the format cannot be read from the middle.
        line: lines before it.
        index: items before it, including malformed ones.
    """

    offset: int = 0
    line: int = 0
    index: int = 0


class Item(Struct, frozen=True, gc=False):
    """One item.

    Args:
        value: a CSV row or a listing's entry, by column; None if there is `text`.
        text: a JSON value as it is written in the file.
        line: the line on which it begins, 1 or more; in a listing, its number.
        end: the position after it.
    """

    value: dict[str, Any] | None
    text: str | None
    line: int
    end: Position


class Malformed(Struct, frozen=True, gc=False):
    """A row that is not an item.

    Args:
        line: the line on which it begins. reason: what is wrong with it. text: the row, as far as it can be shown.
        end: the position after it.
    """

    line: int
    reason: str
    text: str
    end: Position


Read = Item | Malformed


class SourceIdentity(Struct, frozen=True, kw_only=True):
    """Describes a version of a source, so that a change is noticed.

    Args:
        size: in bytes; for a listing, the number of entries.
        stamp: modification time in ns, or the ETag in S3.
        head: digest of the first 64 KiB. whole: digest of everything; empty in S3, which has the ETag.
    """

    size: int
    stamp: str
    head: str
    whole: str


class Source(Protocol):
    """Something that items are read from."""

    name: str

    def identity(self) -> SourceIdentity:
        """The identity of its present version; reads everything if nothing cheaper identifies it.

        Raises:
            NotFoundError: the source does not exist (any more). TransientError: S3 cannot answer for now.
        """
        ...

    def stamp(self) -> tuple[int, str] | None:
        """Size and modification time, if they cost nothing to get; while they are the same, so is the source."""
        ...

    def open(self, offset: int) -> BinaryIO:
        """Its bytes from `offset` on, decompressed."""
        ...

    def entries(self) -> Iterator[dict[str, Any]]:
        """Its entries, ordered by key, as Step Functions lists objects: Key, Size, Etag, LastModified, StorageClass."""
        ...


class LocalSource:
    """A file or a directory on this machine.

    Args:
        path: the path of the file or directory.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        self._path = Path(path)

    def identity(self) -> SourceIdentity:
        """See `Source.identity`."""
        try:
            if self._path.is_dir():
                entries = list(self.entries())
                digest = hashlib.blake2b(json.encode(entries), digest_size=16).hexdigest()
                return SourceIdentity(size=len(entries), stamp="", head=digest, whole=digest)
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                head = hashlib.blake2b(file.read(_HEAD_BYTES), digest_size=16).hexdigest()
                file.seek(0)
                whole = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        except OSError as error:
            raise self._unreadable(error) from error
        return SourceIdentity(size=found.st_size, stamp=str(found.st_mtime_ns), head=head, whole=whole)

    def stamp(self) -> tuple[int, str] | None:
        """See `Source.stamp`; None for a directory."""
        try:
            found = self._path.stat()
        except OSError as error:
            raise self._unreadable(error) from error
        return None if self._path.is_dir() else (found.st_size, str(found.st_mtime_ns))

    def open(self, offset: int) -> BinaryIO:
        """See `Source.open`. A compressed file is read from its beginning up to the offset."""
        try:
            file = self._path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from error
        return _from(file, self.name, offset, seekable=True)

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every file below the directory, ordered by name."""
        if not self._path.is_dir():
            raise errors.NotFoundError(
                f"{self.name} is not a directory.", todo='Name one, or read the file itself with items="csv" or "json".'
            )
        for path in sorted(one for one in self._path.rglob("*") if one.is_file()):
            found = path.stat()
            yield {
                "Etag": f"{found.st_mtime_ns:x}-{found.st_size:x}",
                "Key": path.relative_to(self._path).as_posix(),
                "LastModified": found.st_mtime_ns // 1_000_000_000,
                "Size": found.st_size,
                "StorageClass": "STANDARD",
            }

    def _unreadable(self, error: OSError) -> errors.NotFoundError:
        return errors.NotFoundError(
            f"{self.name} cannot be read: {error.strerror}.",
            meaning=f"It is looked up from {os.getcwd()}." if not self._path.is_absolute() else "",
            todo="Check its name and rights, or put it back.",
        )


class S3Source:
    """An object, or a prefix that ends in /, in S3.

    Args:
        url: `s3://bucket/key`. client: of boto3, for S3.
    """

    def __init__(self, url: str, client: Any) -> None:
        self.name = url
        self._bucket, _, self._key = url.removeprefix("s3://").partition("/")
        self._client = client
        self._etag: str | None = None
        if not self._bucket:
            raise errors.UsageError(f"{url!r} names no bucket.", todo="Write s3://bucket/key.")

    def identity(self) -> SourceIdentity:
        """See `Source.identity`; makes two calls at most."""
        if not self._key or self._key.endswith("/"):
            entries = list(self.entries())
            digest = hashlib.blake2b(json.encode(entries), digest_size=16).hexdigest()
            return SourceIdentity(size=len(entries), stamp="", head=digest, whole=digest)
        try:
            found = self._client.head_object(Bucket=self._bucket, Key=self._key)
        except self._client.exceptions.ClientError as error:
            raise self._unreadable(error) from error
        self._etag = str(found["ETag"])
        return SourceIdentity(size=int(found["ContentLength"]), stamp=self._etag, head=self._etag, whole="")

    def stamp(self) -> tuple[int, str] | None:
        """None, because a stamp would cost a call. S3 refuses to read on in an object that has changed (see `open`)."""
        return None

    def open(self, offset: int) -> BinaryIO:
        """See `Source.open`; S3 refuses an object that has changed since `identity` (If-Match)."""
        settings: dict[str, str] = {"IfMatch": self._etag} if self._etag else {}
        compressed = self._key.endswith(_GZIP)
        if offset and not compressed:
            settings["Range"] = f"bytes={offset}-"
        try:
            body = self._client.get_object(Bucket=self._bucket, Key=self._key, **settings)["Body"]
        except self._client.exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") == "InvalidRange":  # the object has nothing after the offset
                return io.BytesIO()
            raise self._unreadable(error) from error
        return _from(
            cast(BinaryIO, io.BufferedReader(_Streamed(body, self.name))), self.name, offset if compressed else 0
        )

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every object below the prefix, ordered by key (ListObjectsV2)."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._key)
        try:
            for page in pages:
                for one in page.get("Contents", ()):
                    yield {
                        "Etag": one["ETag"],
                        "Key": one["Key"],
                        "LastModified": int(one["LastModified"].timestamp()),
                        "Size": one["Size"],
                        "StorageClass": one.get("StorageClass", "STANDARD"),
                    }
        except self._client.exceptions.ClientError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Any) -> errors.OnefoldError:
        said = error.response.get("Error", {})
        what = f"{self.name} cannot be read: {said.get('Code')}: {said.get('Message')}."
        if passes(error.response):
            return errors.TransientError(what, meaning="S3 cannot answer for now.", todo="Try again in some minutes.")
        return errors.NotFoundError(what, todo="Check the URL, and that s3:GetObject and s3:ListBucket are allowed.")


def passes(response: Mapping[str, Any]) -> bool:
    """Whether S3's error response, in boto3's form, is temporary: the same request may succeed in a while.

    Source: Amazon S3 API reference, Error responses, list of error codes.
    """
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= _SERVER_ERROR or response.get("Error", {}).get("Code") in _PASSING


class _Streamed(io.RawIOBase):
    """botocore's streaming body as a raw stream, so that it can be buffered.

    The server may drop a stream that was not read for long; the run then opens it again at the same offset.
    """

    def __init__(self, body: Any, name: str) -> None:
        self._body = body
        self._name = name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        from botocore.exceptions import BotoCoreError  # installed if S3 is used

        try:
            data: bytes = self._body.read(len(buffer))
        except BotoCoreError as error:
            raise errors.TransientError(
                f"{self._name} could not be read further: {error}", meaning="The connection to S3 was dropped."
            ) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._body.close()
        super().close()


class _Unpacked(gzip.GzipFile):
    """The decompressed contents of a file; closing it closes the file too."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        super().__init__(fileobj=packed, mode="rb")

    def close(self) -> None:
        super().close()
        self._packed.close()


def source_of(location: str, s3_client: Callable[[], Any] | None = None) -> Source:
    """The source that a path or URL names.

    Args:
        location: path of a file or directory, or `s3://bucket/key`. s3_client: makes boto3's client for S3 if needed.

    Raises:
        UsageError: the URL has another scheme, or is in S3 and there is no client.
    """
    if location.startswith("s3://"):
        if s3_client is None:
            raise errors.UsageError(f"{location} needs an S3 client.", todo="pip install 'onefold[aws]'.")
        return S3Source(location, s3_client())
    scheme, there, _ = location.partition("://")
    if there:
        raise errors.UsageError(f"{location} has the scheme {scheme!r}.", todo="Give a path or an s3:// URL.")
    return LocalSource(location)


def changed(before: SourceIdentity, now: SourceIdentity) -> str | None:
    """How a source has changed; None if it is the same, even with another modification time."""
    if before.size != now.size:
        return f"its size was {before.size} and is {now.size}"
    if before.head != now.head:
        return "its beginning has changed"
    if before.whole != now.whole:
        return "its contents have changed"
    return None


@contextmanager
def unpacking(name: str) -> Iterator[None]:
    """Turn the errors of decompression into onefold's.

    Raises:
        UsageError: the compressed file is incomplete or damaged.
    """
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        broken = "breaks off in the middle" if isinstance(error, EOFError) else "is damaged, or is not gzip at all"
        raise errors.UsageError(
            f"{name} {broken}: {str(error).rstrip('.')}.",
            meaning="The rest of it cannot be read.",
            todo="Get the file again; `gzip -t` shows whether it is complete.",
        ) from error


def _from(file: BinaryIO, name: str, offset: int, *, seekable: bool = False) -> BinaryIO:
    """A stream of the file's text from `offset` on; the name or the first bytes show whether it is compressed."""
    compressed = name.endswith(_GZIP)
    if seekable and not compressed:
        compressed = file.read(2) == _GZIP_MAGIC
        file.seek(0)
    if compressed:
        text = cast(BinaryIO, io.BufferedReader(cast(Any, _Unpacked(file))))
        text.seek(offset)
        return text
    if offset:
        file.seek(offset)
    return file


# -- where results go ------------------------------------------------------------------------------------------------

_REFUSED: Final = 400  # the lowest HTTP status that means an error


class ResultLocation(Protocol):
    """A place for result files. Its methods raise OSError if it cannot be written."""

    bucket: str
    """The bucket's name, or a folder's path."""
    prefix: str
    """The prefix of the files' names, without a slash at its end; empty for a folder."""

    def writing(self, name: str) -> Any:
        """A context manager with a binary file, which appears under `name` if the block ends without an error."""
        ...

    def remove(self, name: str) -> bool:
        """Remove a file; returns False if there is none."""
        ...


class FolderResults:
    """A directory on this machine, which is created when the first file is written.

    Args:
        path: the path of the directory.
    """

    def __init__(self, path: str) -> None:
        self.bucket = path
        self.prefix = ""
        self._path = Path(path)

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """See `ResultLocation.writing`."""
        # Two drivers of one run may end it at the same time; each writes a file of its own until it is complete.
        with private_files.replacing(self._path / name) as file:
            yield file

    def remove(self, name: str) -> bool:
        """See `ResultLocation.remove`."""
        try:
            (self._path / name).unlink()
        except FileNotFoundError:
            return False
        return True


class S3Results:
    """A prefix in S3.

    Args:
        url: `s3://bucket/prefix`. client: of boto3, for S3.
    """

    def __init__(self, url: str, client: Any) -> None:
        self.bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self.prefix: str = prefix.strip("/")
        self._client = client

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """See `ResultLocation.writing`; the file is on this machine's disk until it is uploaded."""
        with tempfile.TemporaryFile(prefix="onefold-results-") as file:
            yield file
            file.seek(0)
            with _refusals():
                self._client.upload_fileobj(file, self.bucket, self._key(name))

    def remove(self, name: str) -> bool:
        """See `ResultLocation.remove`."""
        key = self._key(name)
        with _refusals():
            if not self._client.list_objects_v2(Bucket=self.bucket, Prefix=key).get("KeyCount"):
                return False
            self._client.delete_object(Bucket=self.bucket, Key=key)
        return True


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn a lasting refusal by S3 into an OSError, like that of a folder; a temporary one is raised unchanged."""
    try:
        yield
    except Exception as error:  # boto3's errors, not imported here; an upload's error has S3's answer as its cause
        answer = getattr(error, "response", None) or getattr(error.__context__, "response", {})
        if answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) < _REFUSED or passes(answer):
            raise
        raise OSError(f"{answer['Error']['Code']}: {answer['Error']['Message']}") from error


def result_location(location: str, s3_client: Callable[[], Any]) -> ResultLocation:
    """The folder or bucket that a path or an s3:// URL names."""
    return S3Results(location, s3_client()) if location.startswith("s3://") else FolderResults(location)
