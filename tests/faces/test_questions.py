"""What commands ask at a terminal: refused before the question, nothing changed after "no", done after "yes"."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.faces.conftest import Shell


def asked(shell: Shell, *words: str, answer: str | None) -> tuple[int, str]:
    """Run a command whose standard input is a terminal at which this is typed; its exit code, and what it wrote."""
    ours, theirs = pty.openpty()
    try:
        if answer is not None:
            os.write(ours, f"{answer}\n".encode())
        done = subprocess.run(
            [sys.executable, "-m", "onefold", *words],
            cwd=shell.folder,
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def dead(shell: Shell) -> Shell:
    """Two dead letters."""
    for order in ("ill-1", "ill-2"):
        shell.send(order, "Atlantis")
    shell.work()
    return shell


@pytest.mark.slow
def test_no_changes_nothing_and_is_not_an_interrupt(dead: Shell) -> None:
    code, said = asked(dead, "dlq", "purge", "shop:app", "--all", answer="n")
    assert (code, "Nothing was changed." in said, "interrupted" in said) == (1, True, False), said
    code, said = asked(dead, "dlq", "redrive", "shop:app", "--all", "--no-watch", answer="n")
    assert code == 1
    assert "2 messages: 2 would" in said
    assert "Send them back? [y/N]" in said
    assert len(dead.json("dlq", "list", "shop:app", "--all")["letters"]) == 2


@pytest.mark.slow
def test_yes_sends_them_back(dead: Shell) -> None:
    code, said = asked(dead, "dlq", "redrive", "shop:app", "--all", "--no-watch", answer="y")
    assert code == 0, said
    assert dead.json("dlq", "list", "shop:app", "--all")["letters"] == []


@pytest.mark.slow
def test_without_a_question_where_it_was_said_before(dead: Shell) -> None:
    code, said = asked(dead, "dlq", "redrive", "shop:app", "--all", "--no-watch", "--yes", answer=None)
    assert (code, "[y/N]" in said) == (0, False), said
