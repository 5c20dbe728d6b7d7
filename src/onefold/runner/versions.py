"""Versions of a job's payload: which version a message has, and how an older payload is upgraded to the present one.

A message carries its version in the attribute `onefold.version`; without it the version is 1. Before an older payload
is validated, the job's upgrade functions are applied to its JSON, each from one version to the next. The key is made
from the result.

A record keeps the fingerprint of the payload as it was sent. From version 2 on a fingerprint begins with a mark of its
version, so that fingerprints of different versions are not compared: the operation's key alone decides then.
Never here: which functions a job has (`declaring.py`). Invariant: the stored body of a message is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from onefold import codec, errors
from onefold.contracts.queue import PAYLOAD_VERSIONS_MAX, VERSION_ATTRIBUTE
from onefold.interrupts import let_through

if TYPE_CHECKING:
    from onefold.contracts.queue import Attribute

Upgrade = Callable[[Any], Any]
"""Takes a payload of one version as plain JSON values (dict, list, str, ...), returns it in the next version's form."""


def version_of(attributes: Mapping[str, Attribute]) -> int:
    """The version of a message's payload, 1 or more.

    Raises:
        PayloadError: its attribute is not a version.
    """
    given = attributes.get(VERSION_ATTRIBUTE)
    if given is None:
        return 1
    text = given.value if isinstance(given.value, str) else ""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:9]) <= PAYLOAD_VERSIONS_MAX:
        raise errors.PayloadError(
            f"Its attribute {VERSION_ATTRIBUTE}={str(given.value)!r:.40} is not a version.",
            todo=f"Send 1 to {PAYLOAD_VERSIONS_MAX:,}, or leave it out for 1.",
        )
    return int(text)


def marked(fingerprint: str, version: int) -> str:
    """The fingerprint of a payload with a mark of its version."""
    return (
        fingerprint if version == 1 else _mark(version) + fingerprint[codec.VERSION_MARK_CHARS :]
    )  # the rest suffices


def _mark(version: int) -> str:
    return codec.digest(b"onefold payload version %d" % version)[: codec.VERSION_MARK_CHARS]


class Versions:
    """The versions of one job's payload.

    Args:
        present: the version that the job takes and sends.
    """

    def __init__(self, job: str, present: int) -> None:
        self._job = job
        self.present = present
        self._upgrades: dict[int, Upgrade] = {}

    def version_of(self, attributes: Mapping[str, Attribute]) -> int:
        """See the function `version_of`."""
        return version_of(attributes)

    def marked(self, fingerprint: str, version: int) -> str:
        """See the function `marked`."""
        return marked(fingerprint, version)

    def add(self, from_version: int, upgrade: Upgrade) -> None:
        """Add the function that upgrades payloads of one version to the next.

        Raises:
            UsageError: not an earlier version, or not a function. ConflictError: that version has a function already.
        """
        if type(from_version) is not int or not 1 <= from_version < self.present:
            raise errors.UsageError(
                f"{self._job} has no payload version {from_version!r:.40} to upgrade from: it is at version {self.present}.",
                todo=f"Write app.job(..., version={from_version + 1})."
                if type(from_version) is int and 1 <= from_version < PAYLOAD_VERSIONS_MAX
                else "Number the versions from 1 on.",
            )
        if not callable(upgrade):
            raise errors.UsageError(
                f"The upgrade of {self._job} from version {from_version} is {upgrade!r:.80}.",
                todo="Give a function that takes the old payload as a dict and returns the new one.",
            )
        if from_version in self._upgrades:
            raise errors.ConflictError(f"{self._job} has two upgrades from version {from_version}.", todo="Keep one.")
        self._upgrades[from_version] = upgrade

    def check(self) -> None:
        """Refuse to run unless each earlier version has a function.

        Raises:
            UsageError: one is missing.
        """
        for version in range(1, self.present):
            if version not in self._upgrades:
                raise errors.UsageError(
                    f"{self._job} is at version {self.present} of its payload and has no upgrade from version {version}.",
                    meaning="Messages of that version could not be read.",
                    todo=f"Declare @{self._job}.upgrade(from_version={version}); it may return the payload unchanged.",
                )

    def upgraded(self, body: bytes | str, version: int) -> bytes | str:
        """A payload's JSON in the form of the present version.

        Raises:
            PayloadError: it is not JSON, a function is missing, or one raised or returned what has no JSON form.
        """
        if version == self.present:
            return body
        try:
            value = msgspec.json.decode(body)
        except (ValueError, RecursionError) as error:
            let_through(error)
            raise errors.PayloadError("The body is not JSON.", meaning="It cannot be upgraded.") from None
        for step in range(version, self.present):
            upgrade = self._upgrades.get(step)
            if upgrade is None:
                raise errors.PayloadError(
                    f"{self._job} has no upgrade from version {step} of its payload.",
                    meaning=f"This one has version {version}, and the job takes version {self.present}.",
                    todo=f"Declare @{self._job}.upgrade(from_version={step}), then redrive it.",
                )
            try:
                value = upgrade(value)
            except Exception as error:
                let_through(error)
                raise errors.PayloadError(
                    f"The upgrade of {self._job} from version {step} raised {type(error).__name__}.",
                    todo="Fix the function, then redrive it.",
                ) from error
        return codec.encode(value)

    def is_other(self, mine: str, first: str) -> bool:
        """Whether two fingerprints are of payloads of different versions, as far as that is known."""
        return self._version(mine) != self._version(first)

    def _version(self, fingerprint: str) -> int:
        known = range(2, self.present + 1)
        return next((version for version in known if fingerprint.startswith(_mark(version))), 1)
