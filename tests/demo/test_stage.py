"""Every demo's own folder, and its end by a signal: nothing is mixed up, and no process of it is left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.cli import main
from onefold.demo import billing, cloud, enrich

DEMOS = {
    "billing": (billing, "perform", ()),
    "enrich": (enrich, "perform", ()),
    "aws": (cloud, "perform", ("--emulator", "none")),
}


@pytest.fixture
def signals() -> Iterator[list[int]]:
    """Signals that nobody but the test heard."""
    heard: list[int] = []
    before = {
        one: signal.signal(one, lambda number, _: heard.append(number)) for one in (signal.SIGTERM, signal.SIGHUP)
    }
    yield heard
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.parametrize("name", DEMOS)
def test_a_folder_that_holds_something_is_no_place_for_a_demo(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").touch()
    assert main.run(["demo", name, *DEMOS[name][2], "--keep", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"error: --keep {tmp_path} exists and is not an empty folder." in said
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", DEMOS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_a_demo_end_what_it_has_started(
    monkeypatch: pytest.MonkeyPatch, signals: list[int], name: str, number: signal.Signals
) -> None:
    ended: list[Path] = []

    def perform(_settings: Any, folder: Path, *_: Any) -> None:
        try:
            signal.raise_signal(number)
        finally:
            ended.append(folder)

    module, function, options = DEMOS[name]
    monkeypatch.setattr(module, function, perform)
    with pytest.raises(SystemExit) as end:
        main.run(["demo", name, *options])
    assert end.value.code == 128 + number
    assert signals == []
    assert not ended[0].exists(), "it was temporary"
    signal.raise_signal(number)
    assert signals == [number], "what heard it before hears it again"
