"""The operator's verbs over SQS: settings both ways, looking without harm, moving by task and by copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from onefold import errors, limits
from onefold.contracts.admin import Edit, MoveTask
from onefold.contracts.entries import Entry, Sent
from onefold.contracts.queue import Attribute, Delivery, MoveTo
from onefold.contracts.settings import QueueSettings
from onefold.engines.aws import inspecting
from onefold.engines.aws.sqs import Sqs, SqsQueue
from onefold.engines.aws.sqs_admin import SqsQueues
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock
from tests.aws.sqs import rig

FULL = QueueSettings(
    name="orders.fifo",
    fifo=True,
    visibility_ms=45_000,
    retention_ms=2 * limits.DAY_MS,
    delay_ms=5_000,
    message_bytes_max=2_048,
    dead_letter="dead.fifo",
    receives_max=7,
    held="held.fifo",
    content_dedup=True,
    dedup_scope="messageGroup",
    redrive_allow="byQueue",
    redrive_sources=("held.fifo",),
)


def make(queues: SqsQueues, *names: str, dead: str = "dead", **settings: Any) -> None:
    """Queues that share a dead-letter queue."""
    queues.create(QueueSettings(name=dead, fifo=dead.endswith(".fifo"), retention_ms=rig.FOURTEEN_DAYS))
    for name in names:
        fifo = name.endswith(".fifo")
        queues.create(
            QueueSettings(name=name, fifo=fifo, content_dedup=fifo, dead_letter=dead, receives_max=9, **settings)
        )


def send(queues: SqsQueues, name: str, *bodies: str, **options: Any) -> list[str]:
    answers = queues.open(name).send([Entry(body=body, **options) for body in bodies])
    return [one.message_id for one in answers if isinstance(one, Sent)]


def receive(queues: SqsQueues, name: str) -> list[Delivery]:
    return sorted(queues.open(name).receive(100), key=lambda one: one.body)


def move_aside(queues: SqsQueues, name: str, *bodies: str, to: Any = "dead-letter", **options: Any) -> dict[str, str]:
    """Send and bury messages; their first ids by body."""
    send(queues, name, *bodies, **options)
    held = receive(queues, name)
    assert queues.open(name).move_aside([(one.receipt, MoveTo(to, rig.WRONG)) for one in held]) == [True] * len(bodies)
    return {one.body: one.message_id for one in held}


def letters(queues: SqsQueues, name: str = "dead") -> dict[str, str]:
    """Ids of dead letters by body."""
    return {one.body: one.message_id for one in queues.peek(name)}


def test_threads_that_open_a_queue_at_once_get_the_same_one(queues: SqsQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the object that received a message can bury it."""
    make(queues, "orders")
    others: list[Any] = []

    def interrupted(*args: Any, **options: Any) -> SqsQueue:
        monkeypatch.undo()
        others.append(queues.open("orders"))  # another thread, while this one makes its own
        return SqsQueue(*args, **options)

    monkeypatch.setattr("onefold.engines.aws.sqs.SqsQueue", interrupted)
    mine = queues.open("orders")
    assert others == [mine]


# -- settings ----------------------------------------------------------------------------------------------------------


def test_every_setting_comes_back(queues: SqsQueues) -> None:
    for name in ("dead.fifo", "held.fifo"):
        queues.create(QueueSettings(name=name, fifo=True, retention_ms=rig.FOURTEEN_DAYS))
    queues.create(FULL)
    assert queues.setting("orders.fifo") == FULL
    queues.create(FULL)
    plain = QueueSettings(name="orders.fifo", fifo=True)
    with pytest.raises(errors.ConflictError, match=r"held is held\.fifo, declared None"):
        queues.create(plain)
    queues.change(plain)
    assert queues.setting("orders.fifo") == plain
    queues.change(FULL)
    assert [one for one in queues.settings() if one.name == "orders.fifo"] == [FULL]


def test_a_prefix_is_put_before_names_on_aws_and_other_queues_are_not_seen(
    session: rig.HookedSession, queues: SqsQueues, clock: ManualClock
) -> None:
    make(queues, "orders")
    other = Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="other-", wait_s=0).admin
    assert other.settings() == []
    urls = session.client("sqs").list_queues()["QueueUrls"]
    assert sorted(url.rpartition("/")[2] for url in urls) == ["app-dead", "app-orders"]
    all_of_it = Sqs(session, clock=clock, entropy=SystemEntropy(), wait_s=0).admin
    assert [(one.name, one.dead_letter) for one in all_of_it.settings()] == [
        ("app-dead", None),
        ("app-orders", "app-dead"),
    ]


def test_a_queue_that_somebody_else_made_is_known_by_its_url(session: rig.HookedSession, queues: SqsQueues) -> None:
    url = session.client("sqs").create_queue(QueueName="Legacy_Orders-DLQ")["QueueUrl"]
    session.client("sqs").send_message(QueueUrl=url, MessageBody="plain")
    name = queues.know(url)
    assert name == "Legacy_Orders-DLQ"
    assert queues.setting(name).name == name
    (peeked,) = queues.peek(name)
    assert (peeked.body, peeked.reason, peeked.source) == ("plain", None, None)
    assert queues.remove([peeked.message_id]) == [True]


@pytest.mark.parametrize(
    "settings",
    [
        {"visibility_ms": 1_500},
        {"retention_ms": 60_001},
        {"delay_ms": 1},
        {"in_flight_max": 3},
        {"visibility_ms": -1_000},
        {"dead_letter": "dead"},
        {"fifo": True},
    ],
)
def test_settings_that_sqs_has_no_place_for(
    session: rig.HookedSession, queues: SqsQueues, settings: dict[str, Any]
) -> None:
    with pytest.raises(errors.UsageError):
        queues.create(QueueSettings(name="orders", **settings))
    assert session.calls == []


def test_targets_that_do_not_fit(queues: SqsQueues) -> None:
    with pytest.raises(errors.NotFoundError, match="app-dead"):
        queues.create(QueueSettings(name="orders", dead_letter="dead", receives_max=3))
    queues.create(QueueSettings(name="dead", retention_ms=limits.DAY_MS))
    with pytest.raises(errors.UsageError, match="keeps messages for 1 days"):
        queues.create(QueueSettings(name="orders", dead_letter="dead", receives_max=3))
    with pytest.raises(errors.UsageError, match="Both must be of one type"):
        queues.create(QueueSettings(name="orders.fifo", fifo=True, held="dead"))
    queues.change(QueueSettings(name="dead", retention_ms=rig.FOURTEEN_DAYS))
    queues.create(QueueSettings(name="orders", dead_letter="dead", receives_max=3))
    with pytest.raises(errors.UsageError, match="keeps messages for 1 days"):
        queues.change(QueueSettings(name="dead", retention_ms=limits.DAY_MS))
    with pytest.raises(errors.UsageError, match="orders would send messages there"):
        queues.drop("dead")


def test_a_queue_that_is_made_by_two_at_once(session: rig.HookedSession, queues: SqsQueues) -> None:
    settings = QueueSettings(name="orders", visibility_ms=45_000)

    def late(_: Mapping[str, Any], answer: rig.Answer) -> Any:
        answer(Attributes={"VisibilityTimeout": "45"})
        raise rig.client_error("QueueAlreadyExists")

    session.hooks["create_queue"] = late
    queues.create(settings)
    with pytest.raises(errors.ConflictError):
        queues.create(QueueSettings(name="orders"))


def test_a_change_that_sqs_refuses_in_its_middle_is_read_anew(session: rig.HookedSession, queues: SqsQueues) -> None:
    make(queues, "orders", visibility_ms=30_000)
    queues.create(QueueSettings(name="held"))
    send(queues, "orders", "a")
    session.hooks["tag_queue"] = rig.refuse("AccessDenied")
    with pytest.raises(errors.UsageError, match="TagQueue"):
        queues.change(structs.replace(queues.setting("orders"), visibility_ms=90_000, held="held"))
    (delivery,) = receive(queues, "orders")
    assert delivery.visible_ms == 90_000, "as SQS has it since"


def test_purging(queues: SqsQueues) -> None:
    make(queues, "orders")
    send(queues, "orders", "a", "b")
    queues.open("orders").receive(1)
    assert queues.purge("orders") == 2
    assert queues.depth("orders").visible == 0
    with pytest.raises(errors.UsageError, match="every 60 seconds"):
        queues.purge("orders")


# -- looking -----------------------------------------------------------------------------------------------------------


def test_a_look_shows_everything_once_and_lets_go(queues: SqsQueues) -> None:
    make(queues, "orders")
    move_aside(queues, "orders", *map(str, range(25)), key="k", attributes={"a": Attribute("v")})
    first = queues.peek("dead", limit=20)
    rest = queues.peek("dead", limit=20, after=first[-1].message_id)
    assert sorted(int(one.body) for one in first + rest) == list(range(25))
    one = first[0]
    assert (one.queue, one.source, one.reason, one.key) == ("dead", "orders", rig.WRONG, "k")
    assert one.attributes == {"a": Attribute("v")}
    assert one.expires_at_ms == one.sent_at_ms + rig.FOURTEEN_DAYS
    assert queues.depth("dead").visible == 25
    with pytest.raises(errors.UsageError, match="Begin again with the first page"):
        queues.peek("dead", after="nobody")


def test_a_look_is_a_receive_and_pages_are_one_look(session: rig.HookedSession, queues: SqsQueues) -> None:
    make(queues, "orders")
    move_aside(queues, "orders", "a", "b")
    (before, last) = queues.peek("dead")
    session.calls.clear()
    assert queues.peek("dead", after=last.message_id) == []
    assert queues.find([before.message_id]) != [None]
    assert "receive_message" not in session.calls
    assert {one.receive_count for one in queues.peek("dead")} == {2}


def test_a_short_page_is_a_short_look(session: rig.HookedSession, queues: SqsQueues) -> None:
    make(queues, "orders")
    move_aside(queues, "orders", *map(str, range(40)))
    session.calls.clear()
    shown = queues.peek("dead", limit=3)
    assert session.calls.count("receive_message") == 1
    while page := queues.peek("dead", limit=15, after=shown[-1].message_id):
        shown += page
    assert sorted(int(one.body) for one in shown) == list(range(40))


def test_working_queues_are_not_searched_unasked(session: rig.HookedSession, queues: SqsQueues) -> None:
    make(queues, "orders")
    (waiting,) = send(queues, "orders", "waits", key="k")
    move_id = letters(queues)
    assert move_id == {}
    assert queues.find([waiting]) == [None]
    assert queues.find_key("k") == []
    (held,) = receive(queues, "orders")
    assert held.receive_count == 1


def test_a_letter_is_found_by_the_id_it_had_and_by_its_key(queues: SqsQueues) -> None:
    make(queues, "orders", "parcels")
    before = move_aside(queues, "orders", "a", key="k-1")
    other = move_aside(queues, "parcels", "b", key="k-2")
    found = queues.find([other["b"], "nobody", before["a"]])
    assert [None if one is None else (one.body, one.source) for one in found] == [
        ("b", "parcels"),
        None,
        ("a", "orders"),
    ]
    assert [one.body for one in queues.find_key("k-2")] == ["b"]
    assert queues.find_key("k-3") == []


def test_a_fifo_letter_beyond_the_first_ten_of_its_group_is_not_seen(queues: SqsQueues) -> None:
    make(queues, "orders.fifo", dead="dead.fifo")
    for number in range(12):
        move_aside(queues, "orders.fifo", f"{number:02}", group="g")
    assert sorted(letters(queues, "dead.fifo")) == [f"{number:02}" for number in range(10)]
    assert queues.depth("dead.fifo").visible == 12


def test_a_look_ends(queues: SqsQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    make(queues, "orders")
    move_aside(queues, "orders", *map(str, range(30)))
    monkeypatch.setattr(inspecting, "COUNT_MAX", 20)
    assert len(queues.peek("dead", limit=100)) == 20
    assert queues.depth("dead").visible == 30


# -- moving ------------------------------------------------------------------------------------------------------------


def test_chosen_letters_go_back_where_they_came_from(queues: SqsQueues) -> None:
    make(queues, "orders", "parcels")
    move_aside(queues, "orders", "a", "b", key="k", attributes={"x": Attribute("y")})
    move_aside(queues, "parcels", "c")
    ids = letters(queues)
    moved = queues.move([(ids["c"], None, None), ("nobody", None, None), (ids["a"], None, None)])
    assert [None if one is None else one.queue for one in moved] == ["parcels", None, "orders"]
    (back,) = receive(queues, "orders")
    assert (back.body, back.key, back.attributes) == ("a", "k", {"x": Attribute("y")})
    assert (back.reason, back.source, back.receive_count) == (None, None, 1)
    assert moved[2] is not None
    assert back.message_id == moved[2].new_message_id
    assert letters(queues) == {"b": ids["b"]}
    assert {(one.source, one.target) for one in queues.take_transfers()} == {("dead", "parcels"), ("dead", "orders")}
    assert queues.take_transfers() == []


def test_a_letter_can_be_edited_on_its_way_and_in_place(queues: SqsQueues) -> None:
    make(queues, "orders")
    move_aside(queues, "orders", "a", "b", key="k")
    ids = letters(queues)
    edit = Edit(body="mended", attributes={"n": Attribute("1", "Number")})
    assert not queues.edit(ids["a"], Edit(body="\x00", attributes={}))
    assert letters(queues) == ids
    (moved,) = queues.move([(ids["a"], None, edit)])
    assert moved is not None
    (back,) = receive(queues, "orders")
    assert (back.body, back.attributes, back.key) == ("mended", edit.attributes, "k")
    assert queues.edit(ids["b"], edit)
    (letter,) = queues.peek("dead")
    assert (letter.body, letter.reason, letter.source, letter.key) == ("mended", rig.WRONG, "orders", "k")
    assert not queues.edit(ids["b"], edit)


def test_a_letter_of_unknown_origin_needs_a_target(queues: SqsQueues) -> None:
    make(queues, "orders", "parcels")
    send(queues, "dead", "stray")
    move_aside(queues, "orders", "a")
    ids = letters(queues)
    with pytest.raises(errors.UsageError, match="It is not known which queue"):
        queues.move([(ids["a"], None, None), (ids["stray"], None, None)])
    assert queues.depth("dead").visible == 2
    with pytest.raises(errors.NotFoundError):
        queues.move([(ids["stray"], "nobody", None)])
    queues.create(QueueSettings(name="x.fifo", fifo=True))
    with pytest.raises(errors.UsageError, match="one is a FIFO queue"):
        queues.move([(ids["stray"], "x.fifo", None)])
    assert queues.move([(ids["stray"], "parcels", None)]) != [None]


def test_a_target_that_does_not_take_a_letter_leaves_it(queues: SqsQueues) -> None:
    make(queues, "orders", message_bytes_max=1_024)
    move_aside(queues, "orders", "a", "b")
    ids = letters(queues)
    moved = queues.move([(ids["a"], None, Edit(body="x" * 1_025, attributes={})), (ids["b"], None, None)])
    assert [one is None for one in moved] == [True, False]
    assert letters(queues) == {"a": ids["a"]}


def test_a_move_whose_answer_is_lost_keeps_the_letter(
    session: rig.HookedSession, queues: SqsQueues, clock: ManualClock
) -> None:
    make(queues, "orders")
    move_aside(queues, "orders", "a")
    ids = letters(queues)
    session.hooks["send_message_batch"] = rig.lose_answer
    with pytest.raises(errors.TransientError):
        queues.move([(ids["a"], None, None)])
    session.hooks.clear()
    assert [one.body for one in receive(queues, "orders")] == ["a"]  # it was applied all the same
    clock.advance(inspecting.SHOWN_S * 1_000)
    assert letters(queues) == ids  # nothing is lost: the job's key makes the second run harmless


def test_what_was_sent_on_is_followed_as_far_as_sqs_tells(queues: SqsQueues) -> None:
    make(queues, "orders")
    move_aside(queues, "orders", "a", "b")
    ids = letters(queues)
    moved = queues.move([(ids["a"], None, None), (ids["b"], None, None)])
    new = [one.new_message_id for one in moved if one is not None]
    assert [one and (one.queue, one.state, one.receive_count) for one in queues.find(new)] == [
        ("orders", "visible", 0)
    ] * 2
    first, second = receive(queues, "orders")
    assert [one and one.state for one in queues.find(new)] == ["in_flight"] * 2
    queues.open("orders").delete([first.receipt])
    queues.open("orders").move_aside([(second.receipt, MoveTo("dead-letter", rig.WRONG))])
    assert [one and one.queue for one in queues.find(new)] == [None, "dead"]


def test_removing_letters(queues: SqsQueues) -> None:
    make(queues, "orders")
    move_aside(queues, "orders", "a", "b", "c")
    ids = letters(queues)
    assert queues.remove([ids["a"], "nobody", ids["c"]]) == [True, False, True]
    assert letters(queues) == {"b": ids["b"]}


def newest(queues: SqsQueues) -> MoveTask:
    """The newest task (the server's list outlives its queues)."""
    return queues.moves("dead")[0]


# -- move tasks --------------------------------------------------------------------------------------------------------


def test_with_one_source_the_task_is_sqs_s_own(
    session: rig.HookedSession, queues: SqsQueues, clock: ManualClock
) -> None:
    make(queues, "orders")
    move_aside(queues, "orders", "a", "b", key="k")
    asked: list[Mapping[str, Any]] = []

    def note(request: Mapping[str, Any], answer: rig.Answer) -> Any:
        asked.append(request)
        return answer()

    session.hooks["start_message_move_task"] = note
    task = queues.start_move("dead", per_second_max=100)
    assert asked[0]["DestinationArn"].endswith(":app-orders")  # the letters were sent there by us: SQS knows no origin
    clock.advance(1_000)
    done = newest(queues)
    assert (done.handle, done.status, done.moved, done.source) == (task.handle, "COMPLETED", 2, "dead")
    assert not queues.moving()
    back = receive(queues, "orders")
    assert [(one.body, one.key, one.reason, one.source) for one in back] == [
        ("a", "k", None, None),
        ("b", "k", None, None),
    ]
    again = queues.open("orders").move_aside([(back[0].receipt, MoveTo("dead-letter", rig.WRONG))])
    assert again == [True]
    assert [one.reason for one in queues.peek("dead")] == [rig.WRONG]


def test_with_several_sources_it_is_a_copy_to_each_one_s_own(queues: SqsQueues, clock: ManualClock) -> None:
    make(queues, "orders", "parcels")
    move_aside(queues, "orders", "a", "b")
    move_aside(queues, "parcels", "c")
    send(queues, "dead", "stray")
    task = queues.start_move("dead")
    assert (task.status, task.to_move, queues.moving()) == ("RUNNING", 4, True)
    with pytest.raises(errors.UsageError, match="already a task running"):
        queues.start_move("dead")
    assert queues.step_moves() == 3
    assert queues.step_moves() == 0
    done = newest(queues)
    assert (done.handle, done.status, done.moved) == (task.handle, "COMPLETED", 3)
    assert "1 messages stay" in (done.failure or "")
    assert not queues.moving()
    assert [one.body for one in receive(queues, "orders")] == ["a", "b"]
    assert [one.body for one in receive(queues, "parcels")] == ["c"]
    clock.advance(inspecting.SHOWN_S * 1_000)
    assert list(letters(queues)) == ["stray"]


def test_a_copy_ends_though_a_target_refuses_some(queues: SqsQueues) -> None:
    make(queues, "orders", "parcels", dead="dead")
    queues.create(QueueSettings(name="small", message_bytes_max=1_024))
    move_aside(queues, "orders", "a", "x" * 1_025, "y" * 1_025)
    queues._mover._start_copy("dead", "small", None)
    queues.step_moves()
    assert newest(queues).status == "COMPLETED"
    assert [one.body for one in receive(queues, "small")] == ["a"]
    assert "2 messages stay" in (newest(queues).failure or "")


def test_a_copy_keeps_its_rate(queues: SqsQueues, clock: ManualClock) -> None:
    make(queues, "orders", "parcels")
    move_aside(queues, "orders", *map(str, range(30)))
    queues.start_move("dead", per_second_max=5)
    assert queues.step_moves() == 5
    assert queues.step_moves() == 0
    clock.advance(2_000)
    assert queues.step_moves() == 10
    task = newest(queues)
    assert (task.status, task.moved) == ("RUNNING", 15)
    assert queues.cancel_move(task.handle).status == "CANCELLED"
    assert queues.step_moves() == 0
    with pytest.raises(errors.UsageError, match="CANCELLED"):
        queues.cancel_move(task.handle)


def test_a_copy_to_a_queue_that_vanishes_fails(queues: SqsQueues, clock: ManualClock) -> None:
    make(queues, "orders", "parcels")
    queues.create(QueueSettings(name="elsewhere"))
    move_aside(queues, "orders", "a")
    task = queues._mover._start_copy("dead", "elsewhere", None)
    queues.drop("elsewhere")
    assert queues.step_moves() == 0
    assert (queues.moves("dead")[0].handle, queues.moves("dead")[0].status) == (task.handle, "FAILED")
    clock.advance(inspecting.SHOWN_S * 1_000)
    assert list(letters(queues)) == ["a"]


def test_a_server_without_move_tasks_gets_a_copy(session: rig.HookedSession, queues: SqsQueues) -> None:
    make(queues, "orders")
    move_aside(queues, "orders", "a")
    for method in ("start_message_move_task", "list_message_move_tasks", "list_dead_letter_source_queues"):
        session.hooks[method] = rig.refuse("InvalidAction", "The action is not valid for this endpoint.")
    task = queues.start_move("dead")
    assert task.handle.startswith("copy-")
    assert queues.step_moves() == 1
    assert queues.moves("dead")[0].moved == 1


def test_errors_of_a_move_are_sqs_s(session: rig.HookedSession, queues: SqsQueues) -> None:
    make(queues, "orders")
    with pytest.raises(errors.UsageError, match="must be configured as a Dead Letter Queue"):
        queues.start_move("orders")
    with pytest.raises(errors.NotFoundError):
        queues.start_move("dead", "nobody")
    with pytest.raises(errors.UsageError, match="1 to 500"):
        queues.start_move("dead", per_second_max=501)
    session.hooks["start_message_move_task"] = rig.refuse("InvalidParameterValue", "There is already a task running.")
    with pytest.raises(errors.UsageError, match=r"^There is already a task running\. Nothing was moved"):
        queues.start_move("dead")
    with pytest.raises(errors.UsageError, match="TaskHandle"):
        queues.cancel_move("garbage")


def test_a_running_task_of_sqs_is_cancelled(session: rig.HookedSession, queues: SqsQueues) -> None:
    make(queues, "orders")
    shown = {"TaskHandle": "t", "Status": "RUNNING", "SourceArn": "arn:aws:sqs:r:1:app-dead", "StartedTimestamp": 5}
    session.hooks["start_message_move_task"] = lambda *_: {"TaskHandle": "t"}
    session.hooks["list_message_move_tasks"] = lambda *_: {"Results": [dict(shown)]}
    session.hooks["cancel_message_move_task"] = lambda *_: shown.update(Status="CANCELLING") or shown.pop("TaskHandle")
    task = queues.start_move("dead")
    assert (task.handle, task.status, queues.moving()) == ("t", "RUNNING", True)
    cancelled = queues.cancel_move("t")
    assert isinstance(cancelled, MoveTask)
    assert (cancelled.handle, cancelled.status) == ("t", "CANCELLING")


def test_a_task_of_another_process_is_cancelled_by_its_handle(
    session: rig.HookedSession, queues: SqsQueues, clock: ManualClock
) -> None:
    make(queues, "orders")
    move_aside(queues, "orders", *map(str, range(20)))
    session.hooks["list_message_move_tasks"] = lambda *_: {}
    task = queues.start_move("dead", per_second_max=1)
    session.hooks.clear()
    other = Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-", wait_s=0).admin
    assert other.moving()
    cancelled = other.cancel_move(task.handle)
    assert (cancelled.source, cancelled.status) in {("dead", "CANCELLED"), ("dead", "CANCELLING")}
    assert not other.moving()


# -- what SQS does not tell --------------------------------------------------------------------------------------------


def test_what_sqs_does_not_tell(queues: SqsQueues) -> None:
    make(queues, "orders")
    send(queues, "orders", "a")
    (held,) = receive(queues, "orders")
    queue = queues.open("orders")
    assert not queue.capabilities.inspectable
    assert queue.depth().oldest_age_ms is None
    assert queues.next_ready_ms("orders") is None
    assert queues.dedup_memory("orders") == []
    with pytest.raises(errors.UsageError, match="does not report the state of a receipt"):
        queue.receipt_states([held.receipt])
