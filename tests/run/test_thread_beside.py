"""A thread beside a block: it is stopped with the block, and what ended it is raised there."""

from __future__ import annotations

import threading

import pytest

from onefold.threads import thread_beside


def test_it_runs_while_the_block_does_and_has_ended_after_it() -> None:
    ended, begun, done = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        ended.wait()
        done.set()

    with thread_beside("beside", run, ended.set):
        assert begun.wait(30)
        assert not done.is_set()
    assert done.is_set()


def test_what_ended_it_is_said_at_once_and_raised_at_the_end() -> None:
    failed = threading.Event()

    def run() -> None:
        raise LookupError("gone")

    def block() -> None:
        with thread_beside("beside", run, lambda: None, failed=failed.set):
            assert failed.wait(30)

    with pytest.raises(LookupError, match="gone"):
        block()


def test_the_error_of_the_block_comes_first() -> None:
    def run() -> None:
        raise LookupError("gone")

    with pytest.raises(ZeroDivisionError), thread_beside("beside", run, lambda: None):
        _ = 1 / 0


def test_one_that_does_not_end_is_left_after_its_time() -> None:
    released, done = threading.Event(), threading.Event()

    def run() -> None:
        released.wait()
        done.set()

    with thread_beside("beside", run, lambda: None, join_s=0.01):
        pass
    assert not done.is_set()
    released.set()
    assert done.wait(30)
