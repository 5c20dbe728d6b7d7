"""What is worked out from declarations: sizes, who redrives where, what a function may run, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import onefold
from onefold import errors, limits
from onefold.deploy.plan import DeployPlan, QueuePlan
from onefold.deploy.stack import LOG_DAYS, Stack, engine_url, stack_of
from onefold.local.settings import TIMEOUT_MS_MAX, VISIBILITY_FACTOR, WINDOW_MS_MAX
from onefold.options import Function
from tests.deploy.declared import KEY, WIDE, declared, demo, planned, wide

SECOND_MS, MINUTE_MS, DAY_MS = limits.SECOND_MS, limits.MINUTE_MS, limits.DAY_MS


def queue_of(plan: DeployPlan, name: str) -> QueuePlan:
    return next(queue for queue in plan.queues if queue.settings.name == name)


# -- sizes -----------------------------------------------------------------------------------------------------------


def test_the_demo_gets_three_queues_a_function_and_a_table() -> None:
    plan = planned(demo)

    assert plan.name == "demo-shop"
    assert [(queue.id, queue.role, queue.settings.name) for queue in plan.queues] == [
        ("Invoices", "main", "demo-invoices"),
        ("InvoicesDead", "dead", "demo-invoices-dead"),
        ("InvoicesHeld", "held", "demo-invoices-held"),
    ]
    assert [(function.name, function.jobs) for function in plan.functions] == [("demo-shop-invoices", ("fulfil",))]
    assert plan.table == "shop"
    assert plan.url == "aws://{region}?prefix=demo-&table=shop"


def test_visibility_is_six_timeouts_and_the_window_unless_more_is_declared() -> None:
    plan = planned(declared(Function(timeout="1m", window="20s")))
    assert queue_of(plan, "orders").settings.visibility_ms == 6 * MINUTE_MS + 20 * SECOND_MS

    plan = planned(declared(Function(timeout="1m"), visibility="2h"))
    assert queue_of(plan, "orders").settings.visibility_ms == 2 * 60 * MINUTE_MS


def test_a_queue_that_workers_run_keeps_its_visibility_and_has_no_function() -> None:
    plan = planned(wide, WIDE)
    assert queue_of(plan, "prod-Cards_2").settings.visibility_ms == limits.VISIBILITY_MS_DEFAULT
    assert [function.mapping.queue for function in plan.functions] == ["prod-letters", "prod-orders.fifo"]


def test_a_queue_without_jobs_has_no_function() -> None:
    app = onefold.App("shop")
    app.queue("orders")
    assert planned(app).functions == ()


@pytest.mark.parametrize(
    ("timeout", "batch", "function_s"),
    [
        ("60s", 10, 130),  # one run's timeout may begin in the first half
        ("60s", 1, 70),  # nothing else is waiting
        ("500ms", 1, 11),  # whole seconds
        ("10m", 10, 900),  # as much room as Lambda has
        ("890s", 10, 900),
    ],
)
def test_a_functions_timeout_follows_from_its_longest_job(timeout: str, batch: int, function_s: int) -> None:
    (function,) = planned(declared(Function(batch=batch), timeout=timeout)).functions
    assert function.settings.timeout_ms == function_s * SECOND_MS


def test_the_largest_function_still_fits_below_the_longest_visibility() -> None:
    assert VISIBILITY_FACTOR * TIMEOUT_MS_MAX + WINDOW_MS_MAX <= limits.VISIBILITY_MS_MAX


def test_dead_letters_stay_as_declared_and_only_their_sources_redrive_to_them() -> None:
    plan = planned(wide, WIDE)

    shared = queue_of(plan, "prod-lost").settings
    assert shared.retention_ms == 14 * DAY_MS
    assert (shared.redrive_allow, shared.redrive_sources) == ("byQueue", ("prod-Cards_2", "prod-letters"))
    assert queue_of(plan, "prod-lost").owner == "letters team + post & co"
    for name in ("prod-letters", "prod-letters-held"):
        assert queue_of(plan, name).settings.redrive_allow == "denyAll"
    source = queue_of(plan, "prod-orders.fifo").settings
    assert (source.dead_letter, source.receives_max) == ("prod-lost.fifo", 7)


def test_every_queue_is_one_that_sqs_takes_and_fifo_has_fifo_companions() -> None:
    plan = planned(wide, WIDE)
    fifo = {queue.settings.name for queue in plan.queues if queue.settings.fifo}
    assert fifo == {"prod-orders.fifo", "prod-lost.fifo", "prod-orders-held.fifo"}


def test_a_mapping_reports_failures_and_has_what_was_chosen() -> None:
    orders = next(function for function in planned(wide, WIDE).functions if function.mapping.queue.endswith("fifo"))
    mapping = orders.mapping
    assert mapping.reports_failures
    assert (mapping.batch_size, mapping.window_ms, mapping.concurrency_max) == (5, 0, 2)
    assert (orders.runtime, orders.architecture, orders.settings.memory_mib) == ("python3.12", "arm64", 1_024)
    assert orders.settings.handler == "handlers/mail.orders"
    assert orders.subnets == ("subnet-0aa4cba6ca1b6ab8a", "subnet-0bb5dba7db2c7bc9b")


def test_the_order_of_declarations_changes_nothing() -> None:
    def app(names: list[str]) -> onefold.App:
        made = onefold.App("shop")
        for name in names:
            queue = made.queue(name)

            @made.job(queue, key="{id}", name=f"do-{name}")
            def handler(payload: dict[str, Any]) -> None:
                """Nothing."""

        return made

    assert planned(app(["a", "b", "c"])) == planned(app(["c", "a", "b"]))


# -- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "queue", "said"),
    [
        (Function(timeout="16m"), {}, ["timeout of 16m", "15 minutes"]),
        (Function(timeout="1500ms"), {}, ["1s500ms", "whole seconds"]),
        (Function(timeout="5s"), {}, ["timeout is 5s", "job pack 10s"]),
        (Function(timeout="10s"), {}, ["timeout is 10s", "job pack 10s"]),
        (Function(window="30s"), {"fifo": True}, ["queue orders.fifo", "Batching window is not supported for FIFO"]),
        (Function(window="6m"), {}, ["360", "300"]),
        (Function(batch=11), {}, ["batch window", "greater than 0"]),
        (Function(batch=11), {"fifo": True}, ["'11'", "less than or equal to 10"]),
        (Function(concurrency=1), {}, ["maximumConcurrency", "2 to 1,000"]),
        (Function(memory_mb=64), {}, ["memorySize", "128"]),
        (Function(runtime="python2.7"), {}, ["python2.7", "python3.13"]),
        (Function(architecture="x86"), {}, ["'x86'", "arm64"]),  # type: ignore[arg-type]
        (Function(handler="shop handler"), {}, ["shop handler"]),
        (Function(sends_to=["order"]), {}, ["'order'", "Did you mean 'orders'?"]),
        (Function(environment={"AWS_REGION": "x"}), {}, ["reserved", "AWS_REGION"]),
        (Function(environment={"ONEFOLD_URL": "x"}), {}, ["ONEFOLD_URL"]),
        (Function(environment={"PORT": 1}), {}, ["not text"]),  # type: ignore[dict-item]
        (Function(memory_mb="512"), {}, ["memory_mb='512'"]),  # type: ignore[arg-type]
        (Function(batch=True), {}, ["batch=True", "whole number"]),
        (Function(policies="arn:aws:iam::aws:policy/x"), {}, ["policies=", "list"]),
        (Function(policies=["s3-read"]), {}, ["'s3-read'", "arn:{partition}:iam"]),
        (Function(sends_to="orders"), {}, ["sends_to='orders'", "list"]),
        (Function(subnets=["subnet-0a"]), {}, ["go together"]),
        (Function(subnets=["net"], security_groups=["sg-0a"]), {}, ["'net'", "subnet-0"]),
        (Function(environment={"BIG": "x" * 4_096}), {}, ["4KB"]),
    ],
)
def test_what_lambda_would_refuse_is_refused_with_the_reason(
    function: Function, queue: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(errors.UsageError) as refused:
        planned(declared(function, **queue))
    assert "queue orders" in str(refused.value)
    assert all(part in str(refused.value) for part in said)
    assert refused.value.todo


def test_a_job_that_lambda_cannot_run_is_refused() -> None:
    with pytest.raises(errors.UsageError, match=r"job pack: 20m.*at most 14m50s.*function=None"):
        planned(declared(timeout="20m"))
    assert planned(declared(timeout="20m", function=None)).functions == ()


def test_names_that_are_too_long_with_their_prefix_are_refused() -> None:
    app = onefold.App("a")
    app.queue("q" * 70)
    with pytest.raises(
        errors.UsageError, match=r"Queue q+-dead would be called pppppp-q+-dead, which is 82 characters"
    ):
        planned(app, Stack(prefix="pppppp-"))

    app = onefold.App("a" * 40)
    queue = app.queue("q" * 30)

    @app.job(queue, key="{id}")
    def pack(payload: dict[str, Any]) -> None:
        """Nothing."""

    with pytest.raises(errors.UsageError, match=r"The function of queue q+: It would be called a+-q+, which is 71"):
        planned(app)


@pytest.mark.parametrize("prefix", ["prod.", "p" * 41, "a b", "é"])
def test_a_prefix_is_one_that_every_name_can_begin_with(prefix: str) -> None:
    with pytest.raises(errors.UsageError, match="cannot be a prefix of names"):
        planned(declared(), Stack(prefix=prefix))


def test_queues_that_would_be_one_are_refused() -> None:
    app = onefold.App("shop")
    app.queue("orders")
    app.queue("orders-dead")
    with pytest.raises(errors.UsageError, match="orders-dead is declared in two ways"):
        planned(app)

    app = onefold.App("shop")
    app.queue("orders", dead_letter=onefold.DeadLetter(name="lost", retention="10d"))
    app.queue("mails", dead_letter=onefold.DeadLetter(name="lost"))
    with pytest.raises(errors.UsageError, match="lost is declared in two ways"):
        planned(app)


def test_queues_whose_names_lead_to_one_logical_id_are_refused() -> None:
    app = onefold.App("shop")
    app.queue("a-f-i-f-o")
    app.queue("a.fifo", fifo=True)
    with pytest.raises(errors.UsageError, match="same id AFIFO"):
        planned(app)


def test_more_sources_than_a_dead_letter_queue_may_name_are_refused() -> None:
    app = onefold.App("shop")
    for number in range(11):
        app.queue(f"orders{number}", dead_letter=onefold.DeadLetter(name="lost"))
    with pytest.raises(errors.UsageError, match="11 queues share the dead-letter queue lost"):
        planned(app)


def test_parts_of_a_second_that_sqs_does_not_keep_are_refused() -> None:
    with pytest.raises(errors.UsageError, match="whole seconds"):
        planned(declared(delay="1500ms"))


def test_an_app_without_queues_is_refused() -> None:
    with pytest.raises(errors.UsageError, match="declares no queue"):
        planned(onefold.App("shop"))


# -- the stack -------------------------------------------------------------------------------------------------------


def test_an_aws_url_has_made_its_choices_and_its_endpoint_stays_here() -> None:
    url = "aws://eu-west-1?table=shop&prefix=dev-&payloads=bodies/shop&endpoint=http://127.0.0.1:4566&create=yes"
    stack = stack_of(url)
    assert stack == Stack(prefix="dev-", table="shop", layout=1, payloads="bodies/shop")
    assert engine_url(stack, "dev-shop") == "aws://{region}?payloads=bodies/shop&prefix=dev-&table=shop"


def test_records_elsewhere_need_no_table() -> None:
    plan = planned(declared(), stack_of("aws://eu-west-1?records=postgresql://app@db.example/shop"))
    assert plan.table is None
    assert plan.url == "aws://{region}?records=postgresql://app@db.example/shop"
    assert "KeepRecords" not in {statement.sid for statement in plan.functions[0].statements}


def test_a_table_is_called_after_the_app_unless_an_aws_url_says_otherwise() -> None:
    assert planned(declared(), stack_of("sqlite:///shop.db")).table == "shop"
    assert planned(declared(), Stack(prefix="prod-")).table == "prod-shop"
    assert planned(declared(), stack_of("aws://eu-west-1")).table == "onefold"


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": "t"},
        {"payloads": "Bucket/x"},
        {"kms_key": "alias/mine"},
        {"log_days": 31},
        {"records": "postgresql://app:secret@db/shop"},
        {"records": "postgresql://db/shop?user=app&password=secret"},
        {"records": "sqlite:///shop.db"},
        {"records": "dynamodb://eu-west-1/shop"},
        {"records": "mysql://db/shop"},
        {"records": "redis://["},
        {"tags": {"aws:x": "y"}},
        {"tags": {"x": "a,b"}},
        {"tags": {"x": "y" * 257}},
    ],
)
def test_choices_that_aws_would_refuse_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.UsageError) as refused:
        Stack(**wrong)
    assert refused.value.todo
    assert "secret" not in str(refused.value)


def test_the_days_that_logs_may_be_kept_are_those_of_cloudwatch() -> None:
    import boto3

    model = boto3.client("logs", region_name="eu-west-1").meta.service_model.shape_for("PutRetentionPolicyRequest")
    said = model.members["retentionInDays"].documentation
    assert all(str(days) in said for days in LOG_DAYS)
    assert Stack(log_days=LOG_DAYS[-1], kms_key=KEY).log_days == 3653
