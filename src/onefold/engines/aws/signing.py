"""Signatures over the security-relevant attributes of a message: key, run, amendment (`contracts/queue.CLAIMS`).

Anyone who may send to a queue can write any attribute. These three decide more than a sender to that queue should be
able to decide, so a message that has one of them also has `onefold-signature`: an HMAC-SHA256 over app, job, the claims
and the body's digest. Copied onto another body, job or app it is not valid; copied together with all of them it names
the same operation, which is answered from its record. It does not include queue and message id, so that dead letters,
redrives (even SQS's own) and delayed copies stay valid; a job runs only from the queue on which it is declared anyway.

The secret is the first of ONEFOLD_SECRET, which may list several, separated by commas: the first signs, all are
accepted, so that a secret can be replaced. Without it, a secret is generated and kept in the record backend's State:
anyone who can write there can write the records themselves. An unsigned message is trusted only if it was sent before
ONEFOLD_UNSIGNED_BEFORE (an instant), for messages that the previous version left in flight. A copy that is
dead-lettered or moved is younger, so it is signed if the message was trusted (`sqs.Sqs.signed`).

FIFO deduplication ids are derived from the same secret, so that nobody can predict them: with a predictable id, somebody
else could send a message with that id first, and SQS would drop the real one as its duplicate. A process that may not read
the secret sends the ids without this protection.

Never here: which claims a job accepts unsigned because the message's body says the same (`runner/handlers.py`).
Invariant: nothing is signed that onefold of this engine did not send or verify itself.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from onefold import duration, errors, limits
from onefold.contracts.queue import APP_ATTRIBUTE, CLAIMS, JOB_ATTRIBUTE, Attribute
from onefold.contracts.state import Change

if TYPE_CHECKING:
    from onefold.contracts.verbs import State
    from onefold.outside import Clock, Entropy

SECRET_VARIABLE: Final = "ONEFOLD_SECRET"  # noqa: S105 - a variable's name
UNSIGNED_VARIABLE: Final = "ONEFOLD_UNSIGNED_BEFORE"
SECRET_CHARS_MIN: Final = 32
PLACE: Final = "secret"  # its name in State
_FORM: Final = "onefold-1"
_SIGNED: Final = (APP_ATTRIBUTE, JOB_ATTRIBUTE, *CLAIMS)
_AGAIN_MS: Final = limits.MINUTE_MS  # secrets that were read longer ago are read again when a signature is not valid
_SKEW_MS: Final = limits.MINUTE_MS  # ours: this host's clock and the server's do not differ by more


class Signer:
    """Signs and verifies for one engine. Safe to call from any thread.

    Args:
        state: the record backend's; asked only if a message claims something and no secret is configured.
        environment: where the two variables are looked up.

    Raises:
        UsageError: a secret is too short, or a text is not an instant.
    """

    def __init__(
        self, state: Callable[[], State], *, clock: Clock, entropy: Entropy, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._state = state
        self._clock = clock
        self._entropy = entropy
        self._configured = _configured(environment.get(SECRET_VARIABLE, ""))
        self._unsigned_before_ms = _instant(environment.get(UNSIGNED_VARIABLE, ""))
        self._stored: tuple[str, ...] = ()
        self._read_at_ms: int | None = None
        self._read_wall_ms = 0
        self._denied_at_ms: int | None = None
        self._lock = threading.Lock()

    def sign(self, attributes: Mapping[str, Attribute], body: str) -> str:
        """The signature of a message.

        Raises:
            UsageError: the secret cannot be read or created. TransientError: it cannot for now. Then nothing must be
                sent.
        """
        return _signature(self._secrets(make=True)[0], attributes, body)

    def trusts(self, attributes: Mapping[str, Attribute], body: str, signature: str | None, sent_at_ms: int) -> bool:
        """Whether onefold of the same app wrote these attributes.

        Args:
            signature: the one that came with the message; None if none did. sent_at_ms: when it was sent, by the
                server.

        Raises:
            as `sign` does; it is then not known.
        """
        if not all(isinstance(attributes[name].value, str) for name in _SIGNED if name in attributes):
            return False
        if signature is None:
            return self._unsigned_before_ms is not None and sent_at_ms < self._unsigned_before_ms
        if self._holds(signature, attributes, body, self._secrets()):
            return True
        return self._may_be_newer(sent_at_ms) and self._holds(signature, attributes, body, self._secrets(again=True))

    def disguised(self, text: str) -> str:
        """A text derived from another one with the secret, so that nobody without the secret can predict it.

        A process that cannot read the secret gets the text unchanged, and warns once: refusing would stop a sender
        whose messages are valid, only easier to predict.
        """
        if self._denied_at_ms is None or self._clock.monotonic_ms() - self._denied_at_ms >= _AGAIN_MS:
            try:
                secret = self._secrets(make=True)[0]
            except (errors.UsageError, errors.TransientError) as error:
                if self._denied_at_ms is None:
                    _warn(error)
                self._denied_at_ms = self._clock.monotonic_ms()
            else:
                return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
        return text

    @staticmethod
    def _holds(signature: str, attributes: Mapping[str, Attribute], body: str, secrets: tuple[str, ...]) -> bool:
        given = signature.encode(errors="surrogatepass")
        return any(hmac.compare_digest(_signature(one, attributes, body).encode(), given) for one in secrets)

    # -- secrets -------------------------------------------------------------------------------------------------------

    def _may_be_newer(self, sent_at_ms: int) -> bool:
        """Whether a message may be signed with a secret that was stored after this process last read the secrets.

        So a stranger's made-up signature makes it read them once more, which costs less than dead-lettering the message; and
        such signatures never keep the process from seeing a new secret.
        """
        if self._configured or self._read_at_ms is None:
            return False
        is_old = self._clock.monotonic_ms() - self._read_at_ms >= _AGAIN_MS
        return is_old or sent_at_ms > self._read_wall_ms - _SKEW_MS

    def _secrets(self, *, make: bool = False, again: bool = False) -> tuple[str, ...]:
        if self._configured:
            return self._configured
        with self._lock:
            if again or self._read_at_ms is None or (make and not self._stored):
                asked_at_ms = self._clock.monotonic_ms(), self._clock.now_ms()
                try:
                    self._stored = self._read(make=make)
                except errors.UsageError as error:
                    raise errors.UsageError(
                        f"The secret that signs keys, runs and amendments cannot be read: {error.what}",
                        meaning="Such a message cannot be sent, and one that came in cannot be verified; nothing was done.",
                        todo=f"Allow this process to read and write the record backend, or set {SECRET_VARIABLE} for all of"
                        " the app's processes.",
                    ) from error
                self._read_at_ms, self._read_wall_ms = asked_at_ms
            return self._stored

    def _read(self, *, make: bool) -> tuple[str, ...]:
        state = self._state()
        found = state.get([PLACE])[0]
        if found is None and make:
            new = "".join(self._entropy.token() for _ in range(4))
            state.put([Change(PLACE, msgspec.json.encode([new]), 0)])  # not applied if somebody else was first
            found = state.get([PLACE])[0]
        return () if found is None else tuple(msgspec.json.decode(found.value, type=list[str]))


def _signature(secret: str, attributes: Mapping[str, Attribute], body: str) -> str:
    values = [attributes[name].value if name in attributes else None for name in _SIGNED]
    text = msgspec.json.encode([_FORM, *values, hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest()])
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


def _warn(error: errors.OnefoldError) -> None:
    import logging  # a cold start does not need it

    logging.getLogger("onefold").warning(
        "This process sends to FIFO queues with deduplication ids that can be predicted, because it cannot read the "
        "app's secret. Anyone else who may send to such a queue can send an operation's id first, and SQS then drops "
        "the operation's own message for five minutes, although send() succeeded. Set %s to the app's secret in this "
        "process, or allow it to read and write the record backend. %s",
        SECRET_VARIABLE,
        error.what,
    )


def _configured(text: str) -> tuple[str, ...]:
    found = tuple(one.strip() for one in text.split(",") if one.strip())
    if any(len(one) < SECRET_CHARS_MIN for one in found):
        raise errors.UsageError(
            f"A secret in {SECRET_VARIABLE} has fewer than {SECRET_CHARS_MIN} characters.",
            todo='Make one: python -c "import secrets; print(secrets.token_hex(32))"',
        )
    return found


def _instant(text: str) -> int | None:
    if not text:
        return None
    try:
        return duration.instant_ms(datetime.fromisoformat(text), UNSIGNED_VARIABLE)
    except ValueError as error:
        raise errors.UsageError(
            f"{UNSIGNED_VARIABLE}={text[:40]!r} is not an instant.", todo="Write it as 2026-12-01T00:00:00+00:00."
        ) from error
