"""A store of onefold for the idempotency decorators of AWS Lambda Powertools: keep the decorator, records get a fence.

    from onefold.powertools import OnefoldPersistence

    @idempotent_function(persistence_store=OnefoldPersistence("redis://localhost/0"), data_keyword_argument="order", ...)

A run that exceeds its time and whose key another run has taken over can neither delete nor overwrite what that run has
stored. A run that died is run again, or held for a person. Every store of onefold can be used.
Never here: making keys and hashes, which Powertools does. Invariant: each write names the fence of the claim that it
belongs to.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from typing import Any, Final, Literal

from onefold import duration, errors, extras
from onefold.clock import SystemClock
from onefold.contracts.store import (
    Ask,
    Claimed,
    Complete,
    Completed,
    Conflict,
    Fail,
    Failure,
    Held,
    Hold,
    Record,
    RecordKey,
    Running,
    Unknown,
)
from onefold.contracts.verbs import Store
from onefold.duration import Duration
from onefold.engines.urls import store as opened_store
from onefold.entropy import SystemEntropy
from onefold.options import check_choice
from onefold.outside import Clock
from onefold.runner.call_leases import owner_of_calls

with extras.needed("onefold.powertools", "powertools"):
    from aws_lambda_powertools.utilities.idempotency.exceptions import (
        IdempotencyItemAlreadyExistsError,
        IdempotencyItemNotFoundError,
        IdempotencyValidationError,
    )
    from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
    from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

__all__ = ["OnefoldPersistence"]

_JOB: Final = "powertools"
_JOB_CHARS_MAX: Final = 128
_LOG: Final = logging.getLogger("onefold")


class OnefoldPersistence(BasePersistenceLayer):
    """A persistence layer of Powertools on a store of onefold. Thread-safe.

    Args:
        store: what `onefold.store(url)` returned, or its URL: `dynamodb://REGION/TABLE`, `redis://...`, `postgresql://...`
            or `sqlite:///...`.
        on_unknown: if a run has died with its process, or has exceeded its time: `rerun` it, or `hold` the key until a
            person settles it (`onefold held settle`).
        lease: how long a run keeps its key if Powertools does not say so (no `register_lambda_context`).

    Raises:
        UsageError: the policy is unknown, or the URL is not that of a store.
    """

    def __init__(
        self,
        store: Store | str,
        *,
        on_unknown: Literal["rerun", "hold"] = "rerun",
        lease: Duration = "15m",
        clock: Clock | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Powertools' own
        check_choice(on_unknown, ("rerun", "hold"), "on_unknown")
        self._store: Store = opened_store(store) if isinstance(store, str) else store
        self._on_unknown = on_unknown
        self._lease_ms = duration.to_ms(lease, "lease", least_ms=1)
        self._clock: Clock = clock or SystemClock()
        self._owner = owner_of_calls(self._store, SystemEntropy())
        self._holds: dict[tuple[int, str], Hold] = {}  # holds of the runs in progress, by thread and key

    # -- what Powertools asks for --------------------------------------------------------------------------------------

    def _put_record(self, data_record: DataRecord) -> None:
        now_ms = self._clock.now_ms()
        until_ms = data_record.in_progress_expiry_timestamp or now_ms + self._lease_ms
        expires_at_ms = (data_record.expiry_timestamp or 0) * 1000
        ask = Ask(
            key=_key_of(data_record.idempotency_key), fingerprint=_fingerprint(data_record.payload_hash),
            owner=self._owner, lease_until_ms=until_ms, start=True, expires_at_ms=max(expires_at_ms, until_ms),
        )  # fmt: skip
        (answer,) = self._store.claim([ask], now_ms)
        match answer:
            case Claimed():
                self._begin(data_record, answer, now_ms)
            case Completed():
                raise IdempotencyItemAlreadyExistsError(
                    old_data_record=DataRecord(
                        idempotency_key=data_record.idempotency_key,
                        status="COMPLETED",
                        response_data=answer.result.decode(),
                        payload_hash=data_record.payload_hash,
                        expiry_timestamp=data_record.expiry_timestamp,
                    )
                )
            case Running():
                raise IdempotencyItemAlreadyExistsError(
                    old_data_record=DataRecord(
                        idempotency_key=data_record.idempotency_key,
                        status="INPROGRESS",
                        in_progress_expiry_timestamp=max(answer.until_ms, now_ms + 1_000),
                        payload_hash=data_record.payload_hash,
                        expiry_timestamp=data_record.expiry_timestamp,
                    )
                )
            case Conflict():
                raise IdempotencyValidationError("Payload does not match stored record for this event key")
            case Held():
                raise _held(ask.key)
            case _:
                raise errors.StorageError(answer.what, meaning=answer.meaning, todo=answer.todo)

    def _begin(self, data_record: DataRecord, claimed: Claimed, now_ms: int) -> None:
        hold = claimed.hold
        if claimed.doubt and self._on_unknown == "hold":
            failure = Failure(
                kind="unknown", error="OutcomeUnknown", summary="An earlier run has ended without an answer."
            )
            parked = Unknown(failure=failure, expires_at_ms=(data_record.expiry_timestamp or 0) * 1000, parked=True)
            self._store.write([(hold, parked)], now_ms)
            raise _held(hold.key)
        if not claimed.started and not self._store.start([hold], now_ms)[0]:
            raise _lost(hold)
        self._holds[threading.get_ident(), data_record.idempotency_key] = hold

    def _update_record(self, data_record: DataRecord) -> None:
        hold = self._hold_of(data_record)
        done = Complete(
            result=str(data_record.response_data).encode(), expires_at_ms=(data_record.expiry_timestamp or 0) * 1000
        )
        if not self._store.write([(hold, done)], self._clock.now_ms())[0]:
            raise _lost(hold)

    def _delete_record(self, data_record: DataRecord) -> None:
        """Free the key of a function that raised; the row and its fence stay, so that no late run matches it again."""
        hold = self._hold_of(data_record)
        now_ms = self._clock.now_ms()
        failed = Fail(
            failure=Failure(kind="transient", error="Exception", summary="The function raised."),
            expires_at_ms=now_ms + self.expires_after_seconds * 1000,
        )
        if not self._store.write([(hold, failed)], now_ms)[0]:
            _LOG.error("%s", _lost(hold))  # the function's own exception is raised

    def _get_record(self, idempotency_key: str) -> DataRecord:
        now_ms = self._clock.now_ms()
        (record,) = self._store.read([_key_of(idempotency_key)], now_ms)
        if record is None or record.status in ("failed", "released"):
            raise IdempotencyItemNotFoundError
        if record.parked:
            raise _held(record.key)
        return _as_theirs(idempotency_key, record)

    def _validate_payload(self, data_payload: dict[str, Any] | DataRecord, stored_data_record: DataRecord) -> None:
        if not self.payload_validation_enabled:
            return
        given = (
            data_payload.payload_hash
            if isinstance(data_payload, DataRecord)
            else self._get_hashed_payload(data=data_payload)
        )
        if stored_data_record.payload_hash not in (given, _fingerprint(given)):
            raise IdempotencyValidationError("Payload does not match stored record for this event key")

    def _hold_of(self, data_record: DataRecord) -> Hold:
        hold = self._holds.pop((threading.get_ident(), data_record.idempotency_key), None)
        if hold is None:
            raise errors.UsageError(
                f"{data_record.idempotency_key} did not end in the thread in which it began.",
                meaning="Nothing was stored. Its key is free again when its time is over.",
                todo="Let the function begin and return in one thread.",
            )
        return hold


def _as_theirs(idempotency_key: str, record: Record) -> DataRecord:
    completed = record.status == "completed"
    return DataRecord(
        idempotency_key=idempotency_key,
        status="COMPLETED" if completed else "INPROGRESS",
        in_progress_expiry_timestamp=None if completed else record.lease_until_ms,
        response_data=record.result.decode() if completed and record.result is not None else "",
        payload_hash=record.fingerprint,
        expiry_timestamp=None if record.expires_at_ms is None else record.expires_at_ms // 1000,
    )


def _key_of(idempotency_key: str) -> RecordKey:
    """The operation of a key of the form `function#hash`."""
    function, _, digest = idempotency_key.rpartition("#")
    job = f"{_JOB}.{function}"
    if len(job) > _JOB_CHARS_MAX:
        job = f"{job[:90]}~{hashlib.sha256(job.encode()).hexdigest()[:32]}"
    return RecordKey("", job, digest)


def _fingerprint(payload_hash: str | None) -> str:
    return hashlib.blake2b((payload_hash or "").encode(), digest_size=16).hexdigest()


def _held(key: RecordKey) -> errors.OutcomeUnknown:
    return errors.OutcomeUnknown(
        f"{key.job} {key.key}: a run of it has ended without an answer, and a person decides.",
        meaning="The function was not called.",
        todo="Find out whether its effect happened, then: onefold held settle",
    )


def _lost(hold: Hold) -> errors.LeaseLost:
    return errors.LeaseLost(
        f"The run of {hold.key.job} {hold.key.key} under fence {hold.fence} has exceeded its time.",
        meaning="Another run has taken its key over, and what that one stores counts. Nothing was overwritten.",
        todo="Give the function more time, or make it do less.",
    )
