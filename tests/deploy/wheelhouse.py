"""A folder of wheels that pip can install from without a network: made up ones, and installed distributions packed again."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path

import pytest


def offline(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let pip look into `folder` and nowhere else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def write_wheel(folder: Path, name: str, version: str, files: dict[str, str], tag: str = "py3-none-any") -> Path:
    """A wheel with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    texts = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},,\n" for path in [*texts, f"{info}/RECORD"])
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in [*texts.items(), (f"{info}/RECORD", record)]:
            wheel.writestr(file, text)
    return path


def repack(name: str, folder: Path) -> Path:
    """The wheel of a distribution that is installed here, made from its files."""
    found = metadata.distribution(name)
    wheel_text = found.read_text("WHEEL")
    assert wheel_text is not None
    tags = [line.removeprefix("Tag: ") for line in wheel_text.splitlines() if line.startswith("Tag: ")]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace('-', '_')}-{found.version}-{tags[0]}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in found.files or []:
            if file.suffix != ".pyc" and ".." not in file.parts:
                wheel.write(str(file.locate()), str(file))
    return path
