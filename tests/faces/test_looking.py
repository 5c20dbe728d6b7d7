"""Looking at a file: by who may only read it, from another folder, where there is none yet. Nothing is made or changed."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

import onefold
from onefold.admin import maps
from onefold.cli import main
from onefold.cli.program import COMMANDS
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute
from tests.faces.conftest import Shell

NOBODY = 65534
LOOKS = (
    "status", "why o-1", "held list", "stuck", "dlq list", "queue list", "queue peek orders --bodies", "runs list",
    "names list", "dlq redrive --all --dry-run", "dlq edit --key o-2 --set id=o-3 --dry-run",
    "map list", "map show nightly/1",
)  # fmt: skip
# As another user where this one may do everything; what the command imports is there before rights are given up.
AS_READER = f"""
import os, sys
import concurrent.futures.thread, encodings.idna, rich.table, rich.live, onefold.engines.sqlite.engine
import onefold.cli.main as main
from onefold.cli.program import program
commands = ("status", "why", "held", "stuck", "dlq", "queue", "runs", "resume", "names", "reconcile", "map", "web")
[program.get_command(None, name) for name in commands]
if os.getuid() == 0:
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
sys.exit(main.run(sys.argv[1:]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that other users may enter, with a file of an app that has sent one message."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


@pytest.fixture
def app(folder: Path) -> Iterator[onefold.App]:
    made = onefold.App("shop", url=f"sqlite:///{folder}/shop.db")

    @made.job(made.queue("orders"), key="{id}")
    def book(order: dict[str, str]) -> None: ...

    book.send({"id": "o-1"})
    letter = Entry(body='{"id": "o-2"}', attributes={"onefold.job": Attribute("book")}, key="o-2")
    made.runtime().engine.queues.open("orders-dead").send([letter])

    @made.map(made.queue("items"), key="{id}")
    def grind(row: dict[str, str]) -> None: ...

    (folder / "in.csv").write_text("id\n1\n")
    maps.start(made, "grind", run="nightly/1", items=f"{folder}/in.csv", turns=False)
    yield made
    made.close()


# Says how many messages wait, at the beginning and after each line on its input.
COUNT = f"""
import os, sys
from onefold.admin.session import open_session
session = None
if os.getuid() == 0:
    import onefold.engines.sqlite.engine
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
session = open_session(sys.argv[1], actor="reader", read_only=True)
print(session.engine.queues.open("orders").depth().visible, flush=True)
for _ in sys.stdin:
    print(session.engine.queues.open("orders").depth().visible, flush=True)
"""


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ONEFOLD")}


def as_reader(folder: Path, words: str) -> list[str]:
    return [sys.executable, "-c", AS_READER, *words.split(), "--url", f"sqlite:///{folder}/shop.db"]


def look(folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        as_reader(folder, words), capture_output=True, text=True, timeout=60, check=False, env=environment()
    )


def protect(folder: Path) -> None:
    for one in folder.iterdir():
        if one.is_file():
            one.chmod(0o444)
    folder.chmod(0o555)


def looked(folder: Path) -> None:
    before = sorted(one.name for one in folder.iterdir())
    for words in LOOKS:
        done = look(folder, words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    assert "o-1" in look(folder, "queue peek orders").stdout
    assert sorted(one.name for one in folder.iterdir()) == before


@pytest.mark.slow
def test_reading_is_enough_to_look_at_a_file_in_use(folder: Path, app: onefold.App) -> None:
    assert (folder / "shop.db-wal").stat().st_size  # the message is there, and not in the file yet
    protect(folder)
    looked(folder)
    app.runtime()


@pytest.mark.slow
def test_reading_is_enough_to_look_at_a_file_that_nobody_uses(folder: Path, app: onefold.App) -> None:
    app.close()
    assert not (folder / "shop.db-wal").exists()
    protect(folder)
    looked(folder)


@pytest.mark.slow
def test_who_may_only_read_is_told_so_when_something_is_to_be_written(folder: Path, app: onefold.App) -> None:
    app.close()
    protect(folder)
    done = look(folder, "resume book")
    assert done.returncode == 1
    assert "cannot be opened for writing" in done.stderr
    done = look(folder, "reconcile nightly/2026-06-01")
    assert done.returncode == 1
    assert "A reconciliation writes down what it found, so that reading alone is not enough." in done.stderr


@pytest.mark.slow
def test_who_may_only_read_is_told_so_while_a_worker_has_the_file_open(folder: Path, app: onefold.App) -> None:
    assert (folder / "shop.db-wal").exists()
    protect(folder)
    done = look(folder, "resume book")
    assert done.returncode == 1
    assert f"{folder}/shop.db-wal cannot be opened for writing: Permission denied." in done.stderr
    assert "Check that this user may write the file and its folder." in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [True, False])
def test_reading_is_enough_for_a_page_that_changes_nothing(folder: Path, app: onefold.App, is_open: bool) -> None:
    if not is_open:
        app.close()
    protect(folder)
    command = as_reader(folder, "web --read-only --port 0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as page:
        try:
            assert page.stdout is not None
            opens = re.match(r"Open  (\S+)/\?token=(\S+)", page.stdout.readline())
            assert opens is not None
            asked = urllib.request.Request(f"{opens[1]}/api/status", headers={"Authorization": f"Bearer {opens[2]}"})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                assert b'"orders"' in answer.read()
        finally:
            page.terminate()
    assert page.returncode == 0


@pytest.mark.slow
def test_who_looks_for_long_sees_what_a_later_process_writes(folder: Path, app: onefold.App) -> None:
    """SQLite does not see changes of a file that it opened without a log: `status --watch` would show the old numbers."""
    app.close()
    protect(folder)
    command = [sys.executable, "-c", COUNT, f"sqlite:///{folder}/shop.db"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "1\n"
        if os.getuid() != 0:
            folder.chmod(0o755)
            (folder / "shop.db").chmod(0o644)
        later = onefold.App("shop", url=f"sqlite:///{folder}/shop.db")

        @later.job(later.queue("orders"), key="{id}")
        def book(order: dict[str, str]) -> None: ...

        book.send({"id": "o-3"})
        print("again", file=reader.stdin, flush=True)
        assert reader.stdout.readline() == "2\n"  # it is in the log
        later.close()
        print("again", file=reader.stdin, flush=True)
        assert reader.stdout.readline() == "2\n"
        reader.stdin.close()


@pytest.mark.slow
def test_a_full_disk_does_not_keep_anybody_from_looking(folder: Path, app: onefold.App) -> None:
    """SQLite makes the log's index even to read, when no process has the file open. Here no file can grow."""
    app.close()
    for words in LOOKS:
        done = subprocess.run(
            [sys.executable, "-m", "onefold", *words.split(), "--url", f"sqlite:///{folder}/shop.db"],
            capture_output=True, text=True, timeout=60, check=False, env=environment(),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


@pytest.mark.slow
def test_a_damaged_file_that_may_only_be_read_is_said_to_be_damaged(folder: Path, app: onefold.App) -> None:
    app.close()
    whole = (folder / "shop.db").read_bytes()
    (folder / "shop.db").write_bytes(whole[:4096] + bytes(range(256)) * ((len(whole) - 4096) // 256))
    protect(folder)
    done = look(folder, "status")
    assert done.returncode == 1
    assert f"{folder}/shop.db is not a usable database" in done.stderr


@pytest.mark.slow
def test_reading_is_enough_to_see_that_queues_are_as_declared(folder: Path, app: onefold.App) -> None:
    text = f"import onefold\napp = onefold.App('shop', url='sqlite:///{folder}/shop.db')\nqueue = app.queue('orders')\n"
    for name, more in (("same", ""), ("other", ", visibility='9m'")):
        (folder / f"{name}.py").write_text(text.replace("('orders'", f"('orders'{more}"))
    app.close()
    protect(folder)
    done = []
    for name in ("same", "other"):
        command = [sys.executable, "-c", AS_READER, "queue", "apply", f"{name}:app", "--yes"]
        done.append(
            subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=environment()
            )
        )
    assert (done[0].returncode, done[0].stdout) == (0, "All queues are as declared.\n"), done[0].stderr
    assert done[1].returncode == 1
    assert "cannot be opened for writing" in done[1].stderr


@pytest.mark.slow
def test_a_log_that_cannot_be_read_is_refused_and_said(folder: Path, app: onefold.App) -> None:
    """Without its index, and with no right to make one, the log's messages would be left out of every answer."""
    log = (folder / "shop.db-wal").read_bytes()
    copy = (folder / "shop.db").read_bytes()
    app.close()
    (folder / "shop.db").write_bytes(copy)
    (folder / "shop.db-wal").write_bytes(log)
    protect(folder)
    done = look(folder, "status")
    assert done.returncode == 1
    assert f"the last of what was written is in {folder}/shop.db-wal" in done.stderr
    assert "copy the file and its -wal" in done.stderr


@pytest.mark.slow
def test_a_file_that_may_not_be_read_is_said_to_be_so(folder: Path, app: onefold.App) -> None:
    app.close()
    (folder / "shop.db").chmod(0)
    done = look(folder, "status")
    assert done.returncode == 1
    assert f"error: {folder}/shop.db cannot be read: permission denied." in done.stderr


def test_looking_where_nothing_was_sent_makes_no_file_and_says_where_it_looked(shell: Shell) -> None:
    there = shell.folder / ".onefold" / "shop.db"
    for words in ("status", "why a", "held list", "stuck", "dlq list", "queue list", "runs list"):
        said = " ".join(shell.fails(*words.split(), "shop:app").split())
        assert f"There is no file {there} yet." in said
        assert "A relative path starts at the folder that a process runs in." in said
        assert not there.parent.exists()


def read_only_commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Each command that only looks, by its words."""
    found: list[tuple[tuple[str, ...], click.Command]] = [
        ((name,), getattr(import_module(module), attribute)) for name, (module, attribute, _) in COMMANDS.items()
    ]
    while found:
        words, command = found.pop()
        if isinstance(command, click.Group):
            found += [((*words, name), one) for name, one in command.commands.items()]
        elif getattr(command, "read_only", False):
            yield words, command


def test_no_command_that_only_looks_makes_a_file_or_folder(shell: Shell) -> None:
    url, looked_at = f"sqlite:///{shell.folder}/mispelt/shop.db", 0
    for words, command in read_only_commands():
        forms = [str(one.metavar) for one in command.params if isinstance(one, click.Argument)]
        if len(forms) != 1 or not forms[0].endswith("[APP]"):
            continue
        given = ["2026-06-01" for _ in forms[0].split()[:-1] if not _.startswith("[")]
        has_url = any(one.name == "url" for one in command.params)
        for target in (["shop:app"], *([["--url", url]] if has_url else [])):
            main.run([*words, *given, *target])
            looked_at += 1
    assert looked_at > 20
    left = {one.relative_to(shell.folder).parts[0] for one in shell.folder.rglob("*")}
    assert left - {"__pycache__"} == {"shop.py", "down"}


def test_a_misspelt_folder_is_not_made(shell: Shell) -> None:
    place = shell.folder / "mispelt" / "records.db"
    with pytest.raises(onefold.errors.StorageError) as caught:
        onefold.store(f"sqlite:///{place}")
    assert str(place.parent) in caught.value.what
    assert "misspelt, or a volume is not mounted" in caught.value.meaning
    assert caught.value.todo == f"Correct the URL, or make the folder: mkdir -p {place.parent}"
    text = (shell.folder / "shop.py").read_text().replace('App("shop")', f'App("shop", url="sqlite:///{place}")')
    (shell.folder / "other.py").write_text(text)
    for words in (
        ("worker", "other:app", "--until-empty"),
        ("status", "other:app"),
        ("scheduler", "other:app", "--once"),
    ):
        shell.fails(*words)
        assert not place.parent.exists()
    place.parent.mkdir()
    shell("worker", "other:app", "--until-empty")
    assert place.exists()


def test_a_misspelt_file_is_compared_with_those_that_are_there(shell: Shell) -> None:
    shell.send("a")
    said = shell.fails("status", "--url", "sqlite:///.onefold/shp.db")
    assert "Did you mean sqlite:///.onefold/shop.db?" in said
    (shell.folder / "empty.db").touch()
    said = shell.fails("status", "--url", f"sqlite:///{shell.folder}/empty.db")
    assert "is empty" in said
    assert "Did you mean" not in said
    assert "It is created" not in said
    said = " ".join(shell.fails("status", "--url", f"sqlite:///{shell.folder}/nope/shop.db").split())
    assert f"Its folder does not exist either: {shell.folder}/nope." in said


def test_the_folder_of_the_default_is_made(shell: Shell) -> None:
    shell.send("a")
    assert (shell.folder / ".onefold" / "shop.db").exists()
    with pytest.raises(onefold.errors.StorageError, match="~ is not expanded in a URL"):
        onefold.store("sqlite:///~/records.db")
    with pytest.raises(onefold.errors.StorageError, match="There is no folder"):
        onefold.store(f"sqlite:///{shell.folder}/elsewhere/.onefold/shop.db")


def test_an_empty_file_stays_empty(shell: Shell) -> None:
    (shell.folder / "empty.db").touch()
    assert "is empty" in shell.fails("status", "--url", "sqlite:///empty.db")
    assert not (shell.folder / "empty.db").stat().st_size


def test_the_whole_path_is_shown(shell: Shell) -> None:
    """Two folders have two files of one relative name."""
    shell.send("a")
    url = f"sqlite:///{shell.folder}/.onefold/shop.db"
    assert shell.json("status", "shop:app")["url"] == url
    assert f"has never been seen in {url}." in shell("why", "unknown", "shop:app")
    assert url in shell("status", "shop:app")
    assert "a relative path starts at the folder that the sender ran in" in shell("why", "unknown", "shop:app")


def test_a_folder_that_may_not_be_entered_is_not_said_to_be_without_the_file(shell: Shell) -> None:
    folder = shell.folder / "closed"
    folder.mkdir()
    (folder / "pay.db").write_bytes(b"x")
    folder.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:  # whom permissions do not stop
            os.seteuid(65534)
        said = shell.fails("status", "--url", f"sqlite:///{folder}/pay.db")
    finally:
        if user == 0:
            os.seteuid(0)
        folder.chmod(0o700)
    assert f") may not enter {folder}, or a folder above it." in said
    assert "There is no file" not in said
