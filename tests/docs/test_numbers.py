"""Numbers that pages state in their sentences are those of the code; a sentence is found again whatever its line breaks.

Pages whose own tests look at their numbers are not here.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
import urllib.request

import pytest

import onefold
import onefold.testing
from onefold import limits
from onefold.aws import lambda_function as lambda_handler
from onefold.deploy import package
from onefold.engines import urls
from onefold.engines.aws.dynamodb.items import ITEM_BYTES_MAX
from onefold.engines.sqlite import file
from onefold.events import bus, rules
from onefold.local import batching as mapping
from onefold.local import faults, functions, history, queue_operations, serving, settings
from onefold.options import ItemRetry
from onefold.reconcile import survey as surveying
from onefold.runner import executors, lambda_invocation
from onefold.runner import lambda_invocation as batch
from onefold.schedules import scheduler, ticks
from tests.docs.test_pages import ROOT

SECOND_MS, MINUTE_MS = limits.SECOND_MS, limits.MINUTE_MS


def page(name: str) -> str:
    """A page with every run of spaces and line breaks as one space."""
    return re.sub(r"\s+", " ", (ROOT / name).read_text(encoding="utf-8"))


def default(method: str, option: str) -> object:
    """What an option of the app's is when it is not given."""
    return inspect.signature(getattr(onefold.App, method)).parameters[option].default


def once(option: str) -> object:
    """What an option of the guard's is when it is not given."""
    return inspect.signature(onefold.once).parameters[option].default


def table(name: str, head: str) -> list[str]:
    """The names in code in the first column of the table with this head."""
    lines = (ROOT / name).read_text(encoding="utf-8").partition(f"| {head} |")[2].splitlines()[2:]
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [one for row in rows for one in re.findall(r"`([^`?=]+)[^`]*`", row.split("|")[1])]


@pytest.mark.parametrize(
    ("name", "sentence", "said", "meant"),
    [
        ("docs/tutorial-schedules.md", "notices within ten seconds", 10 * SECOND_MS, scheduler.LOOK_MS),
        ("docs/tutorial-schedules.md", "more than a minute late", MINUTE_MS, ticks.PRECISION_MS),
        ("docs/tutorial-map-runs.md", "but `PermanentError`, three times", 3, ItemRetry().retries),
        ("docs/tutorial-reconciliation.md", "its records a thousand at a time", 1_000, surveying.PAGE),
        ("docs/tutorial-reconciliation.md", "for longer than 15 minutes", 15 * MINUTE_MS, limits.DELAY_MS_MAX),
        ("docs/local-sqs.md", "`http://127.0.0.1:9324`", 9324, serving.PORT),
        ("docs/local-sqs.md", "60 seconds after its queue was deleted", 60 * SECOND_MS, queue_operations.RECREATE_MS),
        ("docs/local-sqs.md", "the last 10,000 events", 10_000, history.EVENTS_MAX),
        ("docs/how-to/inject-faults.md", "in memory, 10,000 at most", 10_000, faults._COPIES_MAX),
        ("docs/how-to/run-a-lambda.md", "At most 32 invocations of a function", 32, functions.MACHINE_MAX),
        ("docs/how-to/run-a-lambda.md", "AWS goes to 1,250 of a mapping", 1_250, mapping.CONCURRENCY_CAP),
        ("docs/how-to/run-a-lambda.md", "One init phase, 10 seconds", 10 * SECOND_MS, settings.INIT_MS_MAX),
        ("docs/operating.md", "gives up after 10 s", 10 * SECOND_MS, file.FOR_WORKERS.busy_ms),
        ("docs/how-to/lambda-handler.md", "end within 5 ms of each other", 5, executors.COMMIT_WITHIN_MS),
        ("docs/how-to/lambda-handler.md", "noticed within 5 s", 5 * SECOND_MS, lambda_handler.BREAKER_CACHE_MS),
        ("docs/how-to/lambda-handler.md", "three times its longest run", 3, batch.LONGEST_TIMES),
        ("docs/how-to/lambda-handler.md", "visibilities of 30 s", 30 * SECOND_MS, lambda_invocation.HEARTBEAT_LEASE_MS),
        ("docs/how-to/events.md", "to one to five queues", 5, rules.TARGETS_MAX),
        ("docs/how-to/events.md", "1 MiB less 4,096 bytes", 1_048_576 - 4_096, bus._ANY_QUEUE.message_bytes_max),
        ("docs/how-to/deploy-to-aws.md", "More than 250 MB unzipped", 250 * 1024 * 1024, package.UNZIPPED_BYTES_MAX),
        ("docs/how-to/dispatch-and-join.md", "5 minutes unless given", "5m", default("schedule", "timeout")),
        ("docs/tutorial-schedules.md", "(100 unless you say more", 100, default("schedule", "missed_max")),
        (
            "docs/how-to/lambda-handler.md",
            "less `margin` (1 s",
            "1s",
            default("lambda_handler", "margin"),
        ),
        ("docs/how-to/lambda-handler.md", "`concurrency=10`", 10, default("lambda_handler", "concurrency")),
        ("docs/how-to/adopt-only-the-guard.md", "end of its lease (60 s", "60s", once("lease")),
        ("docs/how-to/adopt-only-the-guard.md", "waits for its answer; refused with", "wait", once("on_running")),
        ("docs/how-to/choose-a-store.md", "400 KB", 400 * 1024, ITEM_BYTES_MAX),
        (
            "docs/how-to/schedules-and-maps-on-aws.md",
            "delays a message for 15 minutes",
            15 * MINUTE_MS,
            limits.DELAY_MS_MAX,
        ),
    ],
)
def test_a_number_of_a_page_is_that_of_the_code(name: str, sentence: str, said: object, meant: object) -> None:
    assert sentence in page(name)
    assert said == meant


def test_the_options_of_aws_urls_are_those_there_are() -> None:
    assert sorted(table("docs/how-to/choose-a-store.md", "option of `aws://`")) == sorted(urls._OPTIONS)


def test_what_is_under_onefold_is_in_the_table() -> None:
    with onefold.testing.sqs() as endpoint, urllib.request.urlopen(f"{endpoint.url}/_onefold") as answer:
        paths = json.load(answer)["paths"]
    told = table("docs/local-sqs.md", "path under `/_onefold`")
    assert sorted(paths) == sorted(f"/_onefold/{name}" for name in told)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(
        str(path) for path in pages if not re.match(r"decisions/\d|reference/rule-", str(path))
    )


def test_the_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^):]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).is_file()] == []
    assert len(links) > 20


@pytest.mark.parametrize("name", ["docs/architecture.md", "docs/guarantees.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_are_there(name: str) -> None:
    named = re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.py)?)`", (ROOT / name).read_text(encoding="utf-8"))
    places_of_code = (ROOT, ROOT / "src", ROOT / "src/onefold")
    assert [path for path in named if not any((place / path).exists() for place in places_of_code)] == []
