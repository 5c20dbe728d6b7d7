"""Items of a map run: where they lie (`Source`), where one stands among them (`Position`), and how one comes out.

A source is a file, a directory, an object in S3 or a prefix there; it says what it is now (`identity`), so that a change
between a crash and a resume is found. Reading is streamed: memory does not grow with the file. A row that cannot be read
comes out as `Malformed`, with its line and the reason, and reading goes on behind it.
Never here: formats (items_csv.py, items_json.py), sending, payload types. S3 clients are handed in.
Invariant: reading from a position that came out with an item yields exactly the items behind it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

from msgspec import Struct, json

from onefold import errors

RECORD_BYTES_MAX: Final = 8 * 1024 * 1024  # DG input-output-itemreader: a raw item may have 8 MB
_HEAD_BYTES: Final = 65_536
_SERVER_ERROR: Final = 500  # HTTP status: from here on the fault is the server's
# S3's error codes below 500 that pass too
_PASSING: Final = frozenset({"ExpiredToken", "OperationAborted", "RequestTimeout"})
_GZIP: Final = ".gz"
_GZIP_MAGIC: Final = b"\x1f\x8b"


class Position(Struct, frozen=True, gc=False, array_like=True):
    """Between two items.

    Args:
        offset: bytes of text before it (after decompression); 0 where the format cannot be entered in the middle.
        line: lines before it.
        index: items before it, the malformed ones too.
    """

    offset: int = 0
    line: int = 0
    index: int = 0


class Item(Struct, frozen=True, gc=False):
    """One item.

    Args:
        value: a CSV row or a listing's entry by column; None where there is `text`.
        text: of a JSON value, as it stands in the file.
        line: on which it begins, 1 or more; of a listing its number.
        end: the position behind it.
    """

    value: dict[str, Any] | None
    text: str | None
    line: int
    end: Position


class Malformed(Struct, frozen=True, gc=False):
    """A row that is no item.

    Args:
        line: on which it begins. reason: what is wrong with it. text: the row, as far as it can be shown.
        end: the position behind it.
    """

    line: int
    reason: str
    text: str
    end: Position


Read = Item | Malformed


class Identity(Struct, frozen=True, kw_only=True):
    """What a source is, to notice that it has become another.

    Args:
        size: bytes; of a listing the number of entries.
        stamp: modification time in ns, or the ETag in S3.
        head: digest of the first 64 KiB. whole: of everything; empty in S3, whose ETag says it.
    """

    size: int
    stamp: str
    head: str
    whole: str


class Source(Protocol):
    """Something that items are read from."""

    name: str

    def identity(self) -> Identity:
        """What it is now; reads it all where nothing else tells.

        Raises:
            NotFoundError: it is not there (any more). TransientError: S3 cannot answer for now.
        """
        ...

    def stamp(self) -> tuple[int, str] | None:
        """Size and time, where they cost nothing to know; while they stay, so does the source."""
        ...

    def open(self, offset: int) -> BinaryIO:
        """Its bytes from `offset` on, decompressed."""
        ...

    def entries(self) -> Iterator[dict[str, Any]]:
        """What is in it, by key, as Step Functions lists objects: Key, Size, Etag, LastModified, StorageClass."""
        ...


class LocalSource:
    """A file or a directory on this machine.

    Args:
        path: of it.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        self._path = Path(path)

    def identity(self) -> Identity:
        """As `Source.identity`."""
        try:
            if self._path.is_dir():
                entries = list(self.entries())
                digest = hashlib.blake2b(json.encode(entries), digest_size=16).hexdigest()
                return Identity(size=len(entries), stamp="", head=digest, whole=digest)
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                head = hashlib.blake2b(file.read(_HEAD_BYTES), digest_size=16).hexdigest()
                file.seek(0)
                whole = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        except OSError as error:
            raise self._unreadable(error) from error
        return Identity(size=found.st_size, stamp=str(found.st_mtime_ns), head=head, whole=whole)

    def stamp(self) -> tuple[int, str] | None:
        """As `Source.stamp`; None for a directory."""
        try:
            found = self._path.stat()
        except OSError as error:
            raise self._unreadable(error) from error
        return None if self._path.is_dir() else (found.st_size, str(found.st_mtime_ns))

    def open(self, offset: int) -> BinaryIO:
        """As `Source.open`. A compressed file is read from its beginning to get there."""
        try:
            file = self._path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from error
        return _from(file, self.name, offset, seekable=True)

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every file below the directory, by name."""
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

    def identity(self) -> Identity:
        """As `Source.identity`; two calls at most."""
        if not self._key or self._key.endswith("/"):
            entries = list(self.entries())
            digest = hashlib.blake2b(json.encode(entries), digest_size=16).hexdigest()
            return Identity(size=len(entries), stamp="", head=digest, whole=digest)
        try:
            found = self._client.head_object(Bucket=self._bucket, Key=self._key)
        except self._client.exceptions.ClientError as error:
            raise self._unreadable(error) from error
        self._etag = str(found["ETag"])
        return Identity(size=int(found["ContentLength"]), stamp=self._etag, head=self._etag, whole="")

    def stamp(self) -> tuple[int, str] | None:
        """None: it costs a call. What is being read is refused by S3 when it changes (see `open`)."""
        return None

    def open(self, offset: int) -> BinaryIO:
        """As `Source.open`; an object that has changed since `identity` is refused by S3 (If-Match)."""
        settings: dict[str, str] = {"IfMatch": self._etag} if self._etag else {}
        compressed = self._key.endswith(_GZIP)
        if offset and not compressed:
            settings["Range"] = f"bytes={offset}-"
        try:
            body = self._client.get_object(Bucket=self._bucket, Key=self._key, **settings)["Body"]
        except self._client.exceptions.ClientError as error:
            if error.response.get("Error", {}).get("Code") == "InvalidRange":  # nothing is left behind it
                return io.BytesIO()
            raise self._unreadable(error) from error
        return _from(
            cast(BinaryIO, io.BufferedReader(_Streamed(body, self.name))), self.name, offset if compressed else 0
        )

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every object below the prefix, by key (ListObjectsV2)."""
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
    """Whether what S3 answered, in boto3's form, is no refusal for good: the same request may succeed in a while.

    Source: Amazon S3 API reference, Error responses, list of error codes.
    """
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= _SERVER_ERROR or response.get("Error", {}).get("Code") in _PASSING


class _Streamed(io.RawIOBase):
    """botocore's streaming body as a raw stream, so that a buffer can stand before it.

    One that lay unread for long may have been dropped by the server: what reads it begins anew, where it is.
    """

    def __init__(self, body: Any, name: str) -> None:
        self._body = body
        self._name = name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        from botocore.exceptions import BotoCoreError  # who reads from S3 has it

        try:
            data: bytes = self._body.read(len(buffer))
        except BotoCoreError as error:
            raise errors.TransientError(
                f"{self._name} could not be read on: {error}", meaning="The connection to S3 was dropped."
            ) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._body.close()
        super().close()


class _Unpacked(gzip.GzipFile):
    """A compressed file as its text; closing it closes the file too."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        super().__init__(fileobj=packed, mode="rb")

    def close(self) -> None:
        super().close()
        self._packed.close()


def source_of(place: str, client: Any = None) -> Source:
    """The source that a path or URL names.

    Args:
        place: path of a file or directory, or `s3://bucket/key`. client: boto3's for S3, where it is needed.

    Raises:
        UsageError: another scheme, or S3 without a client.
    """
    if place.startswith("s3://"):
        if client is None:
            raise errors.UsageError(f"{place} needs an S3 client.", todo="pip install 'onefold[aws]'.")
        return S3Source(place, client)
    scheme, there, _ = place.partition("://")
    if there:
        raise errors.UsageError(f"{place} has the scheme {scheme!r}.", todo="Give a path or an s3:// URL.")
    return LocalSource(place)


def changed(before: Identity, now: Identity) -> str | None:
    """What says that a source is not what it was; None: it is the same, whatever its time says."""
    if before.size != now.size:
        return f"its size was {before.size} and is {now.size}"
    if before.head != now.head:
        return "its beginning is another"
    if before.whole != now.whole:
        return "its contents are others"
    return None


@contextmanager
def unpacking(name: str) -> Iterator[None]:
    """Say what compression finds wrong with a file as an error of ours.

    Raises:
        UsageError: it breaks off, or is damaged.
    """
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        broken = "breaks off in the middle" if isinstance(error, EOFError) else "is damaged, or is not gzip at all"
        raise errors.UsageError(
            f"{name} {broken}: {str(error).rstrip('.')}.",
            meaning="What is behind that place cannot be read.",
            todo="Get the file again; `gzip -t` tells whether it is whole.",
        ) from error


def _from(file: BinaryIO, name: str, offset: int, *, seekable: bool = False) -> BinaryIO:
    """A stream at `offset` of its text; compression is told by the name, or by the first bytes."""
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
