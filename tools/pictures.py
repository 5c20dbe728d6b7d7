"""What the README and the docs show of onefold is made here, from real runs: nothing in a picture was typed.

    make pictures                    # all of them
    make pictures ARGS="why demo"    # some

`why` is the README's story of a crash: its own commands are run, and what `onefold why` prints goes between two marks.
`history` is docs/assets/history.png, the history page of the local SQS in a browser. `demo` is docs/assets/demo.svg,
what `onefold demo` prints. tests/docs/test_pictures.py runs the first and the last again and compares.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import boto3
from rich.console import CONSOLE_SVG_FORMAT, Console  # type: ignore[attr-defined]
from rich.text import Text

from tools.browser import browser

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
ASSETS = ROOT / "docs" / "assets"
WHY = re.compile(r"(?<=<!-- --8<-- \[start:why\] -->\n```text\n).*?(?=```\n<!-- --8<-- \[end:why\] -->)", re.DOTALL)
DEMO = ["onefold", "demo", "--run", "keys"]
PAGE_SIZE = (1100, 400)
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


# -------------------------------------------------------------------------------------------------------------- the demo


def demo_now(*more: str) -> str:
    """What the demo prints on a terminal, with its colours."""
    done = subprocess.run(
        [*DEMO, *more], env=environment(COLUMNS=str(TERMINAL_WIDTH), FORCE_COLOR="1", TERM="xterm-256color"),
        text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    return done.stdout


def write_demo() -> None:
    """Run the whole demo of one policy and draw what it printed."""
    console = Console(record=True, width=TERMINAL_WIDTH, file=io.StringIO(), color_system="truecolor")
    console.print(Text(f"$ {' '.join(DEMO)}\n", style="bold"), Text.from_ansi(demo_now().rstrip("\n")), sep="")
    own_fonts = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # rich's are on a CDN
    svg = console.export_svg(title="25,943 real invoices, workers killed at work", code_format=own_fonts)
    (ASSETS / "demo.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


MAKERS: Mapping[str, Callable[[], None]] = {"why": write_why, "history": write_history, "demo": write_demo}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the pictures that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("what", nargs="*", choices=[[], *MAKERS], help="which of them; all unless given")
    for name in parser.parse_args(arguments).what or MAKERS:
        print(f"making {name}")
        MAKERS[name]()


if __name__ == "__main__":
    main()
