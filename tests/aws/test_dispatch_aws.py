"""Dispatch on SQS: batches of ten, entries tried again alone, a run's messages and numbers, records in a shared file."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from onefold import errors
from onefold.runner import runs
from onefold.runner.completion import Closer
from onefold.runner.dispatcher import Dispatch
from onefold.testing import Endpoint
from onefold.testing.wire_faults import wire_faults
from tests.crash import victim
from tests.run.billing import NOMINAL_MS, RUN, Billing, customers, of_run


@pytest.fixture
def billing(url: str) -> Iterator[Billing]:
    one = Billing(url)
    yield one
    one.app.close()


def dispatch(billing: Billing, count: int) -> int:
    one = Dispatch(billing.app.runtime(), runs.of_tick(RUN, "billing", NOMINAL_MS, 1, dispatches=True), batch=25)
    for customer in customers(count):
        if one.add(billing.charge.message({"customer": customer})):
            one.flush()
    return one.end()


@pytest.mark.slow
def test_a_run_on_sqs_is_sent_in_tens_done_and_closed(billing: Billing, endpoint: Endpoint) -> None:
    assert dispatch(billing, 42) == 42
    messages = endpoint.peek("bills")
    assert sorted(str(message.body) for message in messages) == sorted(
        f'{{"customer":"{customer}"}}' for customer in customers(42)
    )
    assert {of_run(message) for message in messages} == {RUN}
    assert billing.counts() == runs.Counts(expected=42, missing=42)
    victim.work(billing.app, billing.runtime)
    assert sorted(billing.charged) == customers(42)
    assert billing.counts() == runs.Counts(expected=42, done=42)
    closer = Closer(billing.runtime.engine, billing.app.jobs, billing.runtime.clock)
    closer.touch(RUN)
    assert closer.check() == 1
    victim.work(billing.app, billing.runtime)
    assert [one.expected for one in billing.closed] == [42]


@pytest.mark.slow
def test_through_a_faulty_wire_a_dispatch_goes_on_until_everything_is_sent(
    endpoint: Endpoint, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Billing(url).runtime.close()  # makes the queues
    tries = 0
    with wire_faults(endpoint.url, rate=0.1, faults=["error", "before", "after"], seed=5) as wire:
        monkeypatch.setenv("AWS_ENDPOINT_URL", wire.url)
        while True:
            tries += 1
            billing = Billing(url)  # a process of its own
            try:
                expected = dispatch(billing, 60)
                break
            except errors.TransientError:
                billing.app.close()
        assert wire.calls["SendMessageBatch"] > 6
        assert wire.met
    sent = [json.loads(message.body)["customer"] for message in endpoint.peek("bills")]
    assert set(sent) == set(customers(60))  # none is missing; what was sent twice has the same key
    assert (expected, billing.run().dispatched) == (60, 60)
    assert billing.told("dispatch-restarted") == []
    billing.app.close()
