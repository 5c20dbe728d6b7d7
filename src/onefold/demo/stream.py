"""What is sent in a run: every row of the file in its order, some of them twice, in chunks, while the workers run already.

About a tenth of the messages is sent again with the same payload: half of those close behind the first, so that another
worker meets it while it is under way, half any time later, so that it is met when it is done.
Here: the list of messages and the thread that sends them. Never here: receiving, judging.
Invariant: the same seed sends the same messages in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import onefold
from onefold.demo import data
from onefold.demo.fulfilment import Booked, Invoice, invoice_of

if TYPE_CHECKING:
    from onefold.outside import Entropy

AGAIN_SHARE = 0.1
CLOSE_MESSAGES = 60
CHUNK = 1_000


def messages(rows: Iterable[data.Invoice], entropy: Entropy) -> list[Invoice]:
    """The messages of a run, in the order in which they are sent."""
    invoices = [invoice_of(row) for row in rows]
    placed: list[tuple[float, Invoice]] = list(enumerate(invoices))
    for place, invoice in enumerate(invoices):
        if entropy.fraction() < AGAIN_SHARE:
            far = CLOSE_MESSAGES if entropy.fraction() < 0.5 else len(invoices) - place
            placed.append((place + far * entropy.fraction(), invoice))
    placed.sort(key=lambda one: one[0])
    return [invoice for _, invoice in placed]


class Sending:
    """Sends messages in the background, CHUNK at a time, each chunk durable before the next."""

    def __init__(self, job: onefold.Job[Invoice, Booked], invoices: Sequence[Invoice]) -> None:
        self._job = job
        self._invoices = invoices
        self._stopped = False
        self._error: BaseException | None = None
        self.sent = 0
        """Messages accepted by now."""
        self._thread = threading.Thread(target=self._send, name="demo-sender", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether everything was sent.

        Raises:
            OnefoldError: what stopped the sending.
        """
        if self._error is not None:
            raise self._error
        return self.sent == len(self._invoices)

    def close(self) -> None:
        """Stop after the chunk that is under way."""
        self._stopped = True
        self._thread.join()

    def _send(self) -> None:
        try:
            while self.sent < len(self._invoices) and not self._stopped:
                chunk = self._invoices[self.sent : self.sent + CHUNK]
                self._job.send_many(chunk)
                self.sent += len(chunk)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever asks whether it is done
            self._error = error
