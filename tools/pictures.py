"""What the README and the docs show of onefold is made here, from real runs: nothing in a picture was typed.

    make pictures                    # all of them
    make pictures ARGS="why demo"    # some

`why` is the README's story of a crash: its own commands are run, and what `onefold why` prints goes between two marks.
`history` is docs/assets/history.png, the history page of the local SQS in a browser. `demo` is docs/assets/demo.svg,
what `onefold demo` prints. `check` is docs/assets/check.svg, what `onefold check` prints for the template in
docs/check.md. `page` is docs/assets/page-*.png, the page of a shop in which a few things went wrong.
tests/docs/test_pictures.py runs `why`, `demo` and `check` again and compares.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import boto3
from rich.console import CONSOLE_SVG_FORMAT, Console  # type: ignore[attr-defined]
from rich.text import Text

from onefold.observe.alarm_targets import QUEUE as ALARMS
from tools.browser import browser

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
ASSETS = ROOT / "docs" / "assets"
WHY = re.compile(r"(?<=<!-- --8<-- \[start:why\] -->\n```text\n).*?(?=```\n<!-- --8<-- \[end:why\] -->)", re.DOTALL)
DEMO = ["onefold", "demo", "--run", "keys"]
CHECK = ["onefold", "check", "template.yaml"]
PAGE_SIZE = (1100, 400)
PAGE_OF_WEB, PHONE = (1280, 760), (320, 720)
PAGES = {  # docs/assets/page-NAME.png -> its path
    "now": "/",
    "now-dark": "/",
    "now-phone": "/",
    "dead": "/dead/orders-dead",
    "redrive": "/dead/orders-dead/redrive?reason=permanent",
    "held": "/held",
    "why": "/why/book_courier/o-4",
    "letter": "/dead/orders-dead?key=o-13",
    "alarms": "/alarms",
    "alarms-dark": "/alarms",
    "alarms-phone": "/alarms",
    "run": "/runs",
    "schedules": "/schedules",
    "schedules-phone": "/schedules",
    "run-now": "/schedules/nightly_statements/run-now",
    "workers": "/workers",
    "audit": "/audit",
}
TERMINAL_WIDTH = 86


def environment(**more: str) -> Mapping[str, str]:
    """A shell in which `python` and `onefold` are this environment's, with no settings of ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD", "PYTEST"))}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"} | more


# ------------------------------------------------------------------------------------------------- the story of a crash


def why_printed() -> str:
    """What the README shows of `onefold why`."""
    (found,) = WHY.findall(README.read_text(encoding="utf-8"))
    return str(found)


def why_now(folder: Path) -> str:
    """What `onefold why` prints when the README's file and commands are used as they are printed, in this folder."""
    text = README.read_text(encoding="utf-8")
    (shop,) = re.findall(r'^```python title="shop.py"\n(.*?)^```', text, re.MULTILINE | re.DOTALL)
    (commands,) = re.findall(r"^```sh\n((?:(?!^```).)*POWER_CUT.*?)^```", text, re.MULTILINE | re.DOTALL)
    (folder / "shop.py").write_text(shop, encoding="utf-8")
    printed = ""
    for command in commands.splitlines():
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment(), text=True, capture_output=True, check=False
        )
        if (done.returncode == 0) == ("POWER_CUT" in command):
            raise SystemExit(f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        printed = done.stdout
    return printed


def without_ids(story: str) -> str:
    """A story with its times, ids and dates replaced, so that two runs of the same thing read the same."""
    for pattern, name in (
        (r"\d\d:\d\d:\d\d\.\d{3}", "hh:mm:ss.mmm"),
        (r"\w+day \d{4}-\d\d-\d\d", "Day"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "instant"),
        (r"\b[0-9a-f]{16}(-\d+)?\b", "id"),
    ):
        story = re.sub(pattern, name, story)
    return story


def write_why() -> None:
    """Put what `onefold why` prints now into the README."""
    with tempfile.TemporaryDirectory() as folder:
        story = why_now(Path(folder))
    README.write_text(WHY.sub(lambda _: story, README.read_text(encoding="utf-8")), encoding="utf-8")


# ------------------------------------------------------------------------------------------- the page of the local SQS


@contextmanager
def serving() -> Iterator[str]:
    """A local SQS in memory, on a free port; its URL."""
    command = ["onefold", "serve", "--memory", "--port", "0", "--json"]
    with subprocess.Popen(command, env=environment(), text=True, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split('"url":', 1)[1].split('"')[1]
        finally:
            process.terminate()


def write_history() -> None:
    """Some orders, one of which nobody finishes: received twice, then a dead letter."""
    with serving() as url, tempfile.TemporaryDirectory() as folder:
        sqs = boto3.client(
            "sqs", endpoint_url=url, region_name="us-east-1", aws_access_key_id="any", aws_secret_access_key="any"
        )
        sqs.create_queue(QueueName="orders-dead")
        redrive = '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:orders-dead", "maxReceiveCount": 2}'
        queue = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "1", "RedrivePolicy": redrive})[
            "QueueUrl"
        ]
        sent = [sqs.send_message(QueueUrl=queue, MessageBody=f"o-{n}")["MessageId"] for n in range(1, 6)]
        poison, handled, waits = sent[2], set[str](), 10
        while waits and len(handled) < len(sent):
            waits -= 1
            found = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=2).get("Messages", [])
            for message in found:
                if message["MessageId"] != poison:
                    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
                    handled.add(message["MessageId"])
            if not found:
                handled.add(poison)  # it went to the dead-letter queue instead of a third receive
        sqs.send_message(QueueUrl=queue, MessageBody="o-6")
        with browser(Path(folder) / "profile") as chromium:
            page = chromium.page()
            page.prefer("light")
            page.resize(*PAGE_SIZE)
            page.open(f"{url}/_onefold/history?message={poison}")
            page.picture(ASSETS / "history.png")


# --------------------------------------------------------------------------------------------- what a command prints


def draw(name: str, title: str, command: str, printed: str) -> None:
    """Draw a terminal with a command and what it printed, colours included."""
    console = Console(record=True, width=TERMINAL_WIDTH, file=io.StringIO(), color_system="truecolor")
    console.print(Text(f"$ {command}\n", style="bold"), Text.from_ansi(printed.rstrip("\n")), sep="")
    own_fonts = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # rich's are on a CDN
    svg = console.export_svg(title=title, code_format=own_fonts)
    (ASSETS / f"{name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


def on_a_terminal() -> Mapping[str, str]:
    """The environment of a command that prints what a terminal would show."""
    return environment(COLUMNS=str(TERMINAL_WIDTH), FORCE_COLOR="1", TERM="xterm-256color")


def demo_now(*more: str) -> str:
    """What the demo prints."""
    done = subprocess.run(
        [*DEMO, *more], env=on_a_terminal(), text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    return done.stdout


def write_demo() -> None:
    """Run the whole demo of one policy."""
    draw("demo", "25,943 real invoices, workers killed at work", " ".join(DEMO), demo_now())


def check_now(folder: Path) -> str:
    """What `onefold check` prints for the first template of docs/check.md, written to this folder."""
    text = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    template = re.findall(r'^```yaml title="template.yaml"\n(.*?)^```', text, re.MULTILINE | re.DOTALL)[0]
    (folder / "template.yaml").write_text(template, encoding="utf-8")
    done = subprocess.run(CHECK, cwd=folder, env=on_a_terminal(), text=True, stdout=subprocess.PIPE, check=False)
    if done.returncode != 1:
        raise SystemExit(f"{CHECK} ended with {done.returncode}\n{done.stdout}")
    return done.stdout


def write_check() -> None:
    """Check the template whose numbers AWS has published."""
    with tempfile.TemporaryDirectory() as folder:
        draw("check", "A template that AWS wrote about", " ".join(CHECK), check_now(Path(folder)))


# ------------------------------------------------------------------------------------------------------------ the page


@contextmanager
def the_page(folder: Path) -> Iterator[tuple[str, str]]:
    """The page of `picture_shop.py` after a worker was there; its address, and the one that opens it."""
    shutil.copy(Path(__file__).with_name("picture_shop.py"), folder / "shop.py")

    def run(*words: str) -> None:
        subprocess.run(words, cwd=folder, env=environment(LOGNAME="ada"), check=True, capture_output=True, timeout=120)

    run("python", "shop.py", "fill")
    with subprocess.Popen(
        ["onefold", "worker", "shop:app", "--schedules", "--no-progress"],
        cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as worker:  # fmt: skip
        run("bash", "-c", 'until onefold runs list shop:app | grep -q "complete\\|ended"; do :; done')
        worker.terminate()
    run(
        "onefold",
        "dlq",
        "redrive",
        "shop:app",
        "--key",
        "o-4",
        "--no-watch",
        "--reason-text",
        "the depot was to open today",
    )
    run("onefold", "worker", "shop:app", "--until-empty", "--no-progress")
    run("python", "shop.py", "leave")
    command = ["onefold", "web", "shop:app", "--port", "0", "--json"]
    some = ["onefold", "worker", "shop:app", "--no-progress", "--queues", f"payments,parcels.fifo,{ALARMS}"]
    with (
        subprocess.Popen(
            some, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as worker,
        subprocess.Popen(
            command, cwd=folder, env=environment(LOGNAME="ada"), text=True, stdout=subprocess.PIPE
        ) as process,
    ):
        try:
            run("bash", "-c", "until onefold workers list shop:app | grep -q payments; do :; done")
            run("bash", "-c", "until onefold alarms list shop:app | grep -q 'held-not-empty of payments'; do :; done")
            reason = "the bank answers tomorrow, billing knows"
            run("onefold", "alarms", "silence", "held-not-empty", "shop:app", "--for", "1d", "--reason", reason)
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            yield found["url"].rstrip("/"), found["open"]
        finally:
            process.terminate()
            worker.terminate()


def write_page() -> None:
    """Each page that docs/page.md shows."""
    with (
        tempfile.TemporaryDirectory() as folder,
        the_page(Path(folder)) as (url, opens),
        browser(Path(folder) / "profile") as chromium,
    ):
        page = chromium.page()
        page.open(opens)
        for name, path in PAGES.items():
            page.prefer("dark" if name.endswith("dark") else "light")
            page.resize(*(PHONE if name.endswith("phone") else PAGE_OF_WEB))
            page.open(url + path)
            if name in ("run", "letter"):
                page.open(str(page.evaluate("[...document.querySelectorAll('tbody th a')].at(-1).href")))
            page.picture(ASSETS / f"page-{name}.png")


MAKERS: Mapping[str, Callable[[], None]] = {
    "why": write_why,
    "history": write_history,
    "demo": write_demo,
    "check": write_check,
    "page": write_page,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the pictures that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("what", nargs="*", choices=[[], *MAKERS], help="which of them; all unless given")
    for name in parser.parse_args(arguments).what or MAKERS:
        print(f"making {name}")
        MAKERS[name]()


if __name__ == "__main__":
    main()
