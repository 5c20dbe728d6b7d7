"""What `make release` holds an archive to, on small archives; and the wheel as it is built from this tree."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, SRC
from tests.architecture.test_project import locked_names
from tools import release


def whole_package() -> dict[str, bytes]:
    """The files that an archive must have below `onefold/`."""
    return {
        str(one.relative_to(SRC)): one.read_bytes()
        for one in (SRC / "onefold").rglob("*")
        if one.is_file() and "__pycache__" not in one.parts
    }


def test_an_archive_with_the_package_and_nothing_else_is_good() -> None:
    package = whole_package()
    assert "onefold/py.typed" in package
    assert release.check_package(package, package) == []


@pytest.mark.parametrize("name", ["onefold/py.typed", "onefold/observe/prices.json", "onefold/app.py"])
def test_a_file_that_is_missing_is_named(name: str) -> None:
    package = {one: data for one, data in whole_package().items() if one != name}
    assert release.check_package(package, package) == [f"{name} is missing"]


@pytest.mark.parametrize(
    "name", ["tests/test_x.py", "onefold/tests/test_x.py", ".coverage", "onefold/__pycache__/app.pyc", "docs/index.md"]
)
def test_a_file_that_does_not_belong_there_is_named(name: str) -> None:
    package = whole_package()
    assert release.check_package(package, {**package, name: b""}) == [f"{name} does not belong in an archive"]


def test_a_module_that_was_deleted_is_named() -> None:
    package = {**whole_package(), "onefold/gone.py": b""}
    assert release.check_package(package, package) == ["onefold/gone.py is not in the source tree"]


def test_a_path_of_the_machine_that_built_it_is_named() -> None:
    package = whole_package()
    said = release.check_package(package, {**package, "METADATA": f"built in {ROOT}/src".encode()})
    assert said == [f"METADATA names {ROOT}"]


def test_both_archives_are_read(tmp_path: Path) -> None:
    wheel, sdist = tmp_path / "a.whl", tmp_path / "a.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("stranger.py", "")
        for name, data in whole_package().items():
            archive.writestr(name, data)
    with tarfile.open(sdist, "w:gz") as archive:
        for name, data in {f"src/{one}": data for one, data in whole_package().items()}.items():
            entry = tarfile.TarInfo(f"onefold-0/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    assert release.check_wheel(wheel) == ["stranger.py is neither the package nor its metadata"]
    lacking = [f"the sdist lacks {name}" for name in ("LICENSE", "README.md", "pyproject.toml")]
    assert release.check_sdist(sdist) == lacking


def test_a_public_name_without_a_complete_type_is_named() -> None:
    def symbol(name: str, *, known: bool, message: str = "") -> dict[str, object]:
        return {
            "name": name, "isExported": True, "isTypeKnown": known, "isTypeAmbiguous": False,
            "diagnostics": [{"message": message}] if message else [],
        }  # fmt: skip

    symbols = [
        symbol("onefold.app.App", known=True),
        symbol("onefold.app.App.url", known=False, message="Type is missing\n  Inferred type is X"),
        symbol("onefold.app.Apprentice", known=False),
        symbol("onefold.private.Thing", known=False),
    ]
    report = {"typeCompleteness": {"symbols": symbols}}
    assert release.type_completeness(report, ["onefold.App", "onefold.app.App"]) == (
        ["onefold.app.App"],
        {"onefold.app.App.url": "Type is missing"},
    )


def test_what_is_run_is_what_the_readme_says() -> None:
    assert {"shop.py", "charges.py"} <= release.readme_files().keys()
    commands = release.readme_commands()
    assert [" ".join(each.split()[:2]) for each in commands] == [
        "python shop.py",
        "onefold worker",
        "onefold why",
        "onefold dlq",
    ]


def test_the_wheels_lock_has_what_the_tests_have() -> None:
    """The wheel is tried with the versions that the tests ran with."""
    entries = {entry.split(" ", 1)[0] for entry in release.locked(release.LOCK)}
    assert entries <= {entry.split(" ", 1)[0] for entry in release.locked("constraints.txt")}, "run `make lock`"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {release.name_of(one) for one in project["dependencies"]}
    assert needed <= set(locked_names(release.LOCK))


@pytest.mark.slow
def test_the_wheel_of_this_tree_is_good_and_serves_the_readme(tmp_path: Path) -> None:
    """Built from a copy; what it imports comes from the wheel, as in `make release`, and its dependencies from here."""
    tree, wheels, shop = tmp_path / "tree", tmp_path / "wheels", tmp_path / "shop"
    shutil.copytree(SRC, tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(wheels)!r})"
    wheels.mkdir()
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    assert release.check_wheel(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    shop.mkdir()
    for title, text in release.readme_files().items():
        (shop / title).write_text(text, encoding="utf-8")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "installed")}
    where = "import onefold; print(onefold.__file__); import charges"
    said = subprocess.run(
        [sys.executable, "-c", where], cwd=shop, env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert said == f"{tmp_path / 'installed' / 'onefold' / '__init__.py'}\n" + "charged 995 for i-1\n" * 2
