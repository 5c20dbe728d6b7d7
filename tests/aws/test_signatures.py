"""Secrets that are stored, made and replaced while others verify: `engines/aws/signing.py` by itself."""

from __future__ import annotations

import json
from typing import Any

import onefold
from onefold.contracts.queue import Attribute
from onefold.contracts.state import Change
from onefold.engines.aws import signing
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.testing import inline


def signers(state: Any, count: int) -> list[signing.Signer]:
    """Of several processes that share one State."""
    clock = ManualClock(1_000_000)
    return [
        signing.Signer(lambda: state, clock=clock, entropy=SeededEntropy(number), environment={})
        for number in range(count)
    ]


CLAIMING = {"onefold.app": Attribute("bank"), "onefold.job": Attribute("pay"), "onefold.key": Attribute("k-1")}


def test_a_made_up_signature_does_not_hide_the_first_secret() -> None:
    with inline(onefold.App("own")) as world:
        worker, sender = signers(world.app.runtime().engine.state, 2)
        assert not worker.trusts(CLAIMING, "{}", "0" * 64, 1_000_000)
        signature = sender.sign(CLAIMING, "{}")
        assert worker.trusts(CLAIMING, "{}", signature, 1_000_000), "it is younger than what the worker has read"


def test_a_secret_that_was_replaced_a_moment_ago_is_seen_at_once() -> None:
    with inline(onefold.App("own")) as world:
        state = world.app.runtime().engine.state
        worker, sender, begun = signers(state, 3)
        assert worker.trusts(CLAIMING, "{}", sender.sign(CLAIMING, "{}"), 1_000_000)
        assert not worker.trusts(CLAIMING, "{}", "0" * 64, 1_000_000)
        (stored,) = state.get([signing.PLACE])
        assert stored is not None
        state.put([Change(signing.PLACE, json.dumps(["n" * 32]).encode(), stored.version)])
        assert worker.trusts(CLAIMING, "{}", begun.sign(CLAIMING, "{}"), 1_000_000)


def test_old_messages_with_made_up_signatures_cost_no_look_each() -> None:
    asked: list[int] = []

    def state() -> Any:
        asked.append(1)
        return world.app.runtime().engine.state

    with inline(onefold.App("own")) as world:
        signer = signing.Signer(state, clock=ManualClock(1_000_000), entropy=SeededEntropy(1), environment={})
        assert not any(signer.trusts(CLAIMING, "{}", "0" * 64, 900_000 + number) for number in range(20))
        assert len(asked) == 1
