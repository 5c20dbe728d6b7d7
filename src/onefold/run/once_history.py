"""What the history of its store keeps of guarded calls: each death, with the claim that notices it, and each failure.

The rows are those of a job's runs. Where a store writes them in the claim's transaction they stand or fall with it;
elsewhere they are appended after the claim and before the function is called. In memory none are kept. A failure whose row
the store refuses (a role without the permission) is warned of once; a death whose row it refuses ends the call.
Never here: records. Invariant: no function is called again before the death of the call before it is in the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal

from msgspec.structs import replace

from onefold import errors
from onefold.contracts.ledger import Row
from onefold.contracts.store import Answer, Ask, Claimed, Failure
from onefold.decide import guard
from onefold.decide.delivery import Backoff, Policy

if TYPE_CHECKING:
    from onefold.contracts.verbs import Ledger, Store
    from onefold.decide.delivery import Failed

Detail = Mapping[str, str | int | bool | None]
_ROWS_LOOKED_AT: Final = 100  # for the death that a claim before could not write
_ENDLESS: Final = 1 << 62  # of attempts: calls have no budget


class History:
    """The history of one guarded function.

    Args:
        store: its records; its attribute `ledger` is where rows go, if it has one.
        name: of the operation. on_unknown, crashes: as `once` takes them.
    """

    def __init__(self, store: Store, name: str, on_unknown: Literal["rerun", "hold"], crashes: int) -> None:
        self._store = store
        self._ledger: Ledger | None = getattr(store, "ledger", None)
        self._warned = False
        self._policy = Policy(
            job=name, queue="", effect="external", attempts_max=_ENDLESS, crashes_max=crashes, backoff=Backoff(),
            on_unknown=on_unknown, after_failure="skip", timeout_ms=1, keep_ms=1,
        )  # fmt: skip

    def claim(self, ask: Ask, now_ms: int) -> Answer:
        """Claim, and write what that shows of the call before.

        Raises:
            OnefoldError: the store cannot be used; or the death of the call before could not be written: the claim ends with
                its lease, and the next one writes it.
        """
        if self._ledger is None:
            return self._store.claim((ask,), now_ms)[0]
        if self._store.capabilities.notes_claims:
            return self._store.claim((ask,), now_ms, lambda _, found: self._noticed(found, now_ms))[0]
        (found,) = self._store.claim((ask,), now_ms)
        if isinstance(found, Claimed) and found.found != "absent":
            try:
                self._append(self._ledger, found, now_ms)
            except errors.OnefoldError as error:
                if found.doubt:
                    raise
                self._warn(error)
        return found

    def _noticed(self, found: Claimed, now_ms: int) -> list[Row]:
        return [self._row(found, now_ms, note.event, note.detail) for note in guard.noticed(found, self._policy)]

    def _append(self, ledger: Ledger, found: Claimed, now_ms: int) -> None:
        rows = self._noticed(found, now_ms)
        if found.found == "in_progress" and found.doubt and not found.crashed:
            before = found.hold.fence - 1
            known = ledger.of_key(found.hold.key, _ROWS_LOOKED_AT)
            if not any(row.event in ("takeover", "unknown") and row.detail.get("fence") == before for row in known):
                unsaid = replace(found, hold=replace(found.hold, fence=before), crashed=True, previous_owner=None)
                rows = [*self._noticed(unsaid, now_ms), *rows]
        if rows:
            ledger.append(rows)

    def note(
        self, claimed: Claimed, now_ms: int, event: str, failure: Failure | None = None, raised: Failed | None = None
    ) -> None:
        """Note how a call ended that did not complete; a history that cannot be written now goes without.

        Args:
            event: `failed`, `unknown`, `held` or `lease-lost`.
            raised: with the place and the whole text of the exception.
        """
        if self._ledger is None:
            return
        detail: Detail = {"attempt": claimed.attempts + (not claimed.started), "fence": claimed.hold.fence}
        if failure is not None:
            detail = {**detail, "error": failure.error, "summary": failure.summary, "kind": failure.kind}
        if raised is not None:
            detail = {
                **detail,
                **{name: text for name, text in (("where", raised.at), ("trace", raised.trace)) if text},
            }
        if event == "unknown":
            detail = {**detail, "policy": self._policy.on_unknown}
        try:
            self._ledger.append([self._row(claimed, now_ms, event, detail)])
        except errors.OnefoldError as error:
            self._warn(error)

    def _warn(self, error: errors.OnefoldError) -> None:
        """Once, of what does not pass by itself."""
        if not self._warned and not isinstance(error, errors.TransientError):
            self._warned = True
            import logging  # most stores take their rows

            logging.getLogger("onefold").warning(
                "The history of %s is not kept: %s %s Its calls go on, but one whose process has died cannot be made again "
                "until the store takes the row that says so.",
                self._policy.job,
                error.what,
                error.todo,
            )

    def _row(self, found: Claimed, now_ms: int, event: str, detail: Detail) -> Row:
        return Row(at_ms=now_ms, event=event, key=found.hold.key, actor=found.hold.owner, detail=detail)
