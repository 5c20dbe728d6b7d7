"""Batches: cut where SQS cuts, one answer per entry, failed ones tried again alone and not for ever."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import errors
from onefold.engines.aws import batches
from onefold.engines.aws.batches import BATCH_BYTES_MAX, TRIES, FailedEntry
from onefold.engines.aws.session import aws_errors
from tests.aws.sqs.rig import client_error


@given(st.lists(st.integers(1, BATCH_BYTES_MAX), max_size=60))
def test_batches_are_in_order_and_within_the_limits(sizes: list[int]) -> None:
    cut = list(batches.cut(sizes))
    assert [place for batch in cut for place in batch] == list(range(len(sizes)))
    assert all(1 <= len(batch) <= 10 and sum(sizes[place] for place in batch) <= BATCH_BYTES_MAX for batch in cut)
    for batch, after in itertools.pairwise(cut):  # none could have taken the next one's first
        assert len(batch) == 10 or sum(sizes[place] for place in [*batch, after[0]]) > BATCH_BYTES_MAX


class Server:
    """Answers entry by entry: each entry's `how`, one word per try, the last for ever."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, entries: list[dict[str, Any]]) -> Mapping[str, Any]:
        self.asked.append([one["name"] for one in entries])
        successful, failed = [], []
        for one in entries:
            word = one["how"].pop(0) if len(one["how"]) > 1 else one["how"][0]
            if word == "ok":
                successful.append({"Id": one["Id"], "said": one["name"]})
            elif word != "silent":
                failed.append({"Id": one["Id"], "SenderFault": word == "wrong", "Code": "Code", "Message": word})
        return {"Successful": successful, "Failed": failed} if failed else {"Successful": successful}


def entry(name: str, *how: str) -> dict[str, Any]:
    return {"name": name, "how": list(how)}


def test_only_what_failed_for_now_is_tried_again() -> None:
    server = Server()
    entries = [entry("a", "ok"), entry("b", "later", "ok"), entry("c", "wrong"), entry("d", "silent", "later", "ok")]
    answers = batches.carry_out(server, entries)
    assert server.asked == [["a", "b", "c", "d"], ["b", "d"], ["d"]]
    assert [one if isinstance(one, FailedEntry) else one["said"] for one in answers] == [
        "a",
        "b",
        FailedEntry("Code", "wrong", passing=False),
        "d",
    ]


def test_tries_end() -> None:
    server = Server()
    answers = batches.carry_out(server, [entry("a", "later"), entry("b", "ok")])
    assert len(server.asked) == TRIES
    assert answers[0] == FailedEntry("Code", "later", passing=True)
    assert not isinstance(answers[1], FailedEntry)


def test_a_request_refused_for_one_entry_is_made_again_entry_by_entry() -> None:
    asked: list[list[str]] = []

    def call(entries: list[dict[str, Any]]) -> Mapping[str, Any]:
        asked.append([one["name"] for one in entries])
        with aws_errors("sqs:SendMessage", "queue q"):
            if any(one["name"] == "bad" for one in entries):
                raise client_error("InvalidParameterValue", "MessageGroupId")
        return {"Successful": [{"Id": one["Id"]} for one in entries]}

    answers = batches.carry_out(call, [{"name": "a"}, {"name": "bad"}, {"name": "c"}])
    assert asked == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]
    assert [isinstance(one, FailedEntry) for one in answers] == [False, True, False]
    assert answers[1] == FailedEntry("InvalidParameterValue", "MessageGroupId", passing=False)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AccessDenied", errors.UsageError),
        ("QueueDoesNotExist", errors.NotFoundError),
        ("Throttling", errors.TransientError),
    ],
)
def test_a_failure_of_the_whole_call_is_an_error(code: str, kind: type[Exception]) -> None:
    def call(_: list[dict[str, Any]]) -> Mapping[str, Any]:
        with aws_errors("sqs:SendMessage", "queue q"):
            raise client_error(code)

    with pytest.raises(kind):
        batches.carry_out(call, [{}, {}])
