"""One worker process of the demo: `python -m onefold.demo.worker --url ... --setup ... --partner PORT`.

Prints `ready OWNER` before it receives. Drains on SIGTERM, and stops at once on a second one and when its standard
input ends, so that no worker outlives the process that started it, however that process ended.

With `--plant no-fence` a fault is built in on purpose, so that the demo can show that its judge would notice it: the
guard works without its fence. Every claim of an operation succeeds, even while a run of it is in progress; no run
learns that an earlier run had started; every write is accepted, because fences are not compared; and the probe reads
instead of fencing. Completed operations are still recognised, so this is the fault that many home-made guards have, not
a guard that does nothing.

Here: the worker of `runner/worker_setup.py` with the demo's shop, and wrappers around the real contracts for the fault.
Never here: what a worker does, or kills. Invariant: without `--plant` no wrapper is used; whatever is not named above,
the real store does.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

import onefold
from onefold.contracts.commit import Settlement, Verdict
from onefold.contracts.store import Answer, Ask, Claimed, Hold, Outcome, Record, RecordKey
from onefold.demo.fulfilment import Booked, Courier, Invoice, Probe, shop
from onefold.limits import DAY_MS
from onefold.options import WorkerSettings
from onefold.runner.handlers import Found
from onefold.runner.settlement import Backend, backend_of
from onefold.runner.worker import Worker
from onefold.runner.worker_setup import make_worker

if TYPE_CHECKING:
    from onefold.contracts.verbs import Commit, EffectTransaction, RowsOf, Store


def main(arguments: list[str]) -> int:
    """Run the worker until it is asked to stop; returns 0 if it drained, 3 if work was still in flight."""
    parser = argparse.ArgumentParser(prog="python -m onefold.demo.worker", description="One worker of the demo.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--setup", choices=("keys", "probe", "hold"), required=True)
    parser.add_argument("--partner", type=int, required=True, metavar="PORT")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--plant", choices=("no-fence",))
    options = parser.parse_args(arguments)

    courier = Courier(options.partner)
    probe: Probe | None = None
    if options.plant is not None:
        probe = partial(only_looking, courier)
    app = shop(options.setup, options.url, courier, probe=probe)
    runtime = app.runtime()
    backend = without_fence(backend_of(runtime.engine)) if options.plant is not None else None
    settings = WorkerSettings(threads=options.threads)
    worker = make_worker(
        runtime, app.jobs, app.registry.job_of, settings=settings, history=app.history, backend=backend
    )
    signal.signal(signal.SIGTERM, lambda _number, _frame: worker.stop_now() if worker.draining else worker.drain())
    threading.Thread(target=_stop_at_end_of_input, args=(worker,), daemon=True).start()
    sys.stdout.write(f"ready {runtime.owner}\n")
    sys.stdout.flush()
    report = worker.run()
    if report.code == 0:
        app.close()
    return report.code


def _stop_at_end_of_input(worker: Worker) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    worker.stop_now()


def without_fence(backend: Backend) -> Backend:
    """The same backend with a guard that has no fence."""
    store = NoFence(backend.store)
    commit = None if backend.commit is None else NoFenceCommit(backend.commit, store)
    return replace(backend, store=store, commit=commit)


def only_looking(courier: Courier, invoice: Invoice, _ctx: onefold.Context) -> Found:
    """A probe that only reads: it does not see requests that are still on their way."""
    bookings = courier.look(invoice.number).bookings
    return onefold.Done(Booked(bookings[0])) if bookings else onefold.NotDone()


class NoFence:
    """A store whose claims respect no lease and whose writes compare no fence."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.capabilities = replace(
            store.capabilities, notes_claims=False
        )  # the answers differ from those of the store

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:  # noqa: ARG002 - see above
        """Claim as if every lease had ended, and forget that a run had started."""
        answers = self._store.claim(asks, now_ms + DAY_MS)  # in a day every present lease will have ended
        return [self._forgetful(answer, now_ms) for answer in answers]

    def _forgetful(self, answer: Answer, now_ms: int) -> Answer:
        if not isinstance(answer, Claimed) or answer.started:
            return answer
        self._store.start([answer.hold], now_ms)
        return replace(answer, started=True, doubt=False, crashed=False, attempts=answer.attempts + 1)

    def current(self, hold: Hold) -> Hold:
        """The hold of the record's current owner, instead of the caller's."""
        record = self._store.read([hold.key], 0)[0]
        return hold if record is None else Hold(hold.key, record.owner, record.fence)

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        """Start any caller."""
        return self._store.start([self.current(hold) for hold in holds], now_ms)

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        """Renew the lease for any caller."""
        return self._store.renew([self.current(hold) for hold in holds], lease_until_ms)

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        """Accept every write."""
        return self._store.write([(self.current(hold), outcome) for hold, outcome in writes], now_ms)

    def restore(self, records: Sequence[Record]) -> list[bool]:
        """Pass the call on to the store."""
        return self._store.restore(records)

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        """Pass the call on to the store."""
        return self._store.clear_outbox([self.current(hold) for hold in holds])

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        """Pass the call on to the store."""
        return self._store.read(keys, now_ms)


class NoFenceCommit:
    """Commits the settlements of any caller."""

    def __init__(self, commit: Commit, store: NoFence) -> None:
        self._commit = commit
        self._store = store

    def commit(self, settlements: Sequence[Settlement], now_ms: int) -> list[Verdict]:
        """Commit with the record's current hold instead of the caller's; a late caller's message is settled too."""
        verdicts = self._commit.commit([self._believed(one) for one in settlements], now_ms)
        late = [index for index, verdict in enumerate(verdicts) if not verdict.written]
        settled = self._commit.commit([replace(settlements[index], write=None) for index in late], now_ms)
        for index, verdict in zip(late, settled, strict=True):
            verdicts[index] = verdict
        return verdicts

    def _believed(self, settlement: Settlement) -> Settlement:
        if settlement.write is None:
            return settlement
        hold, outcome = settlement.write
        return replace(settlement, write=(self._store.current(hold), outcome))

    def effects(self, limit_ms: int) -> EffectTransaction:
        """The real store's, unchanged; the demo's job is not transactional."""
        return self._commit.effects(limit_ms)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
