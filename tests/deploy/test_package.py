"""The function's archive: what is in it, the same bytes every time, and clear words about what cannot be packed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from onefold import errors
from onefold.deploy import package, sources
from onefold.deploy.package import Built, PackageSettings
from tests.architecture.source import mentions, modules, reached
from tests.deploy.wheelhouse import offline, repack, write_wheel

pytestmark = pytest.mark.slow  # each runs pip

MSGSPEC = metadata.version("msgspec")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An app of two modules and a package, with what must stay out around it."""
    folder = tmp_path / "code"
    texts = {
        "shop.py": "import courier\nfrom prices import table\nimport boto3\nfrom onefold import App\n",
        "courier.py": "import json\n",
        "prices/__init__.py": "",
        "prices/table.py": "from . import tax\n",
        "prices/tax.py": "",
        "prices/rates.json": "{}",
        "prices/tests/test_table.py": "import pytest\n",
        "prices/.hidden": "",
        "prices/__pycache__/tax.cpython-311.pyc": "",
        "unrelated.py": "import not_there\n",
        "templates/mail.txt": "Dear customer",
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    write_wheel(
        folder,
        "msgspec",
        MSGSPEC,
        {"msgspec/__init__.py": "", "msgspec/tests/test_it.py": "", "bin/never": "#!/home/me/python"},
        tag=f"cp{HERE.replace('.', '')}-cp{HERE.replace('.', '')}-manylinux_2_17_x86_64.manylinux2014_x86_64",
    )
    offline(monkeypatch, folder)
    return folder


def settings(root: Path, **changed: object) -> PackageSettings:
    values: dict[str, object] = {
        "module": "shop",
        "root": root,
        "output": root.parent / "function.zip",
        "build_dir": root.parent / "build",
        "python": HERE,
    }
    return PackageSettings(**(values | changed))  # type: ignore[arg-type]


def build(root: Path, **changed: object) -> Built:
    return package.build(settings(root, **changed), lambda _step: None)


def names(built: Built) -> set[str]:
    with zipfile.ZipFile(built.path) as archive:
        return set(archive.namelist())


# -- what is in it ---------------------------------------------------------------------------------------------------


def test_the_app_is_followed_by_its_imports_and_nothing_else_is_taken(root: Path) -> None:
    own = {name for name in names(build(root)) if not name.startswith(("onefold", "msgspec"))}
    assert own == {
        "shop.py",
        "courier.py",
        "prices/__init__.py",
        "prices/table.py",
        "prices/tax.py",
        "prices/rates.json",
    }


def test_what_is_named_is_included(root: Path) -> None:
    assert {"templates/mail.txt", "unrelated.py"} <= names(build(root, include=("templates", "unrelated.py")))


def test_a_module_inside_a_package_brings_the_package(root: Path) -> None:
    built = build(root, module="prices.table")
    assert built.modules == ("prices",)
    assert "shop.py" not in names(built)


def test_dependencies_come_without_tests_scripts_and_notes_of_pip(root: Path) -> None:
    there = {name for name in names(build(root)) if "msgspec" in name or name.startswith("bin")}
    assert there == {
        "msgspec/__init__.py",
        f"msgspec-{MSGSPEC}.dist-info/METADATA",
        f"msgspec-{MSGSPEC}.dist-info/WHEEL",
    }


def test_onefold_comes_without_the_rooms_no_function_needs(root: Path) -> None:
    there = names(build(root))
    rooms = {name.split("/")[1] for name in there if name.startswith("onefold/")}
    assert {"app.py", "runner", "runtime", "record", "engines", "py.typed"} <= rooms
    assert not rooms & sources.LEFT_OUT_ROOMS
    assert not [name for name in there if name.endswith(".pyc")]


def test_nothing_that_an_app_leads_to_is_left_out() -> None:
    gone = {f"onefold.{room.removesuffix('.py')}" for room in sources.LEFT_OUT_ROOMS}
    # These rooms are loaded when somebody asks for `onefold.testing` or `app.admin`; nothing that a function needs may.
    asked_for = ("onefold.testing", "onefold.admin")
    files = {name: path for name, path in modules().items() if not name.startswith(asked_for)}
    led_to = reached({"onefold", "onefold.app"}, files)
    assert "onefold.runner.runner" in led_to
    assert [name for name in led_to if any("onefold.testing" in one for one in mentions(files[name], modules()))] == [
        "onefold"
    ]
    admin = [name for name in led_to if any("onefold.admin" in one for one in mentions(files[name], modules()))]
    assert admin == ["onefold.app"]
    assert not {name for name in led_to if ".".join(name.split(".")[:2]) in gone}


def test_the_packed_onefold_works_alone(root: Path, wheels: Path) -> None:
    for wheel in wheels.iterdir():
        wheel.unlink()
    repack("msgspec", wheels)
    (root / "shop.py").write_text(
        "from onefold import App\n"
        "app = App('shop', url='sqlite://:memory:')\n"
        "orders = app.queue('orders')\n"
        "@app.job(orders, key='{id}')\n"
        "def book(order: dict) -> str:\n"
        "    return 'booked'\n"
    )
    built = build(root)
    program = (
        "import onefold, shop; print(onefold.__version__, onefold.__file__); print(shop.book.send({'id': 'o-1'}).key)"
    )
    unpacked = root.parent / "task"
    zipfile.ZipFile(built.path).extractall(unpacked)
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", program], cwd=unpacked, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    version, place, key = done.stdout.split()
    assert (version, key) == (metadata.version("onefold"), "o-1")
    assert place.startswith(str(unpacked))


def test_what_the_app_imports_and_nothing_brings_is_said(root: Path) -> None:
    (root / "courier.py").write_text("import requests, json, boto3, msgspec\n")
    assert build(root).warnings == (
        "courier.py imports requests, which is not in the package: add its distribution to --requirements.",
    )


def test_requirements_without_a_version_are_said(root: Path, wheels: Path) -> None:
    for name in ("requests", "yarl", "attrs"):
        write_wheel(wheels, name, "9.0", {f"{name}/__init__.py": ""})
    listed = root / "requirements.txt"
    listed.write_text("# ours\n--prefer-binary\nrequests  # any\nyarl==9.0 ; python_version > '3'\nattrs[x]>=1\n\n")
    (warning,) = build(root, requirements=listed).warnings
    assert warning.startswith("requests, attrs[x]>=1 in requirements.txt")
    assert "a later build may differ" in warning


def test_requirements_are_installed_and_answer_imports(root: Path, wheels: Path) -> None:
    write_wheel(wheels, "requests", "9.0", {"requests/__init__.py": ""})
    (root / "courier.py").write_text("import requests\n")
    (root / "requirements.txt").write_text("requests==9.0\n")
    assert "--requirements requirements.txt" in " ".join(build(root).warnings)
    built = build(root, requirements=root / "requirements.txt")
    assert "requests/__init__.py" in names(built)
    assert built.warnings == ()
    assert "requests/__init__.py" not in names(build(root)), "an earlier install was left in the build directory"


# -- the same bytes --------------------------------------------------------------------------------------------------


def test_same_input_same_bytes(root: Path, tmp_path: Path) -> None:
    first = build(root)
    again = tmp_path / "elsewhere"
    again.mkdir()
    for path in sorted(root.rglob("*.*"), reverse=True):  # other order of creation, other times, other umask
        if path.is_file():
            copy = again / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
            os.utime(copy, (1, 1))
            copy.chmod(0o600)
    second = build(again, output=tmp_path / "second.zip", build_dir=tmp_path / "other-build")
    assert second.sha256 == first.sha256
    assert Path(second.path).read_bytes() == Path(first.path).read_bytes()


def test_nothing_is_written_through_what_lies_in_its_way(tmp_path: Path) -> None:
    """In a folder that others may write to, such as /tmp, a link was followed: `.app.zip.part` to a file of this user."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    folder = tmp_path / "out"
    folder.mkdir()
    for name in (".app.zip.part", f".app.zip.{os.getpid()}-{threading.get_ident()}.unfinished", "app.zip"):
        (folder / name).symlink_to(precious)
    digest, size = package.write_archive(folder / "app.zip", {"a.py": (b"x = 1\n", False)})
    assert precious.read_text() == "kept"
    assert not (folder / "app.zip").is_symlink()
    assert stat.S_IMODE((folder / "app.zip").stat().st_mode) == 0o600
    assert (package.hash_of(folder / "app.zip"), (folder / "app.zip").stat().st_size) == (digest, size)
    assert sorted(one.name for one in folder.iterdir() if not one.is_symlink()) == ["app.zip"]


def test_folders_are_made_for_this_user_alone(root: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        package.compiled({"a/b.py": b"x = 1\n"}, HERE, tmp_path / ".onefold" / "build" / "bytecode")
        package.write_archive(tmp_path / "dist" / "app.zip", {})
    finally:
        os.umask(before)
    for made in (".onefold", ".onefold/build", "dist"):
        assert stat.S_IMODE((tmp_path / made).stat().st_mode) == 0o700, made


def test_bytecode_is_the_same_every_time_and_is_used(root: Path, tmp_path: Path) -> None:
    first = build(root, bytecode=True)
    again = build(root, bytecode=True, output=tmp_path / "again.zip", build_dir=tmp_path / "elsewhere")
    assert first.sha256 == again.sha256
    tag = f"cpython-{HERE.replace('.', '')}"
    assert {f"__pycache__/shop.{tag}.pyc", f"prices/__pycache__/tax.{tag}.pyc"} <= names(first)
    with zipfile.ZipFile(first.path) as archive:
        content = archive.read(f"__pycache__/courier.{tag}.pyc")
    assert int.from_bytes(content[4:8], "little") == 0b01, "valid by hash, unchecked (PEP 552)"
    assert b"/var/task/courier.py" in content
    assert str(tmp_path).encode() not in content


def test_what_cannot_be_compiled_stays_as_text(root: Path) -> None:
    (root / "prices" / "template.txt").write_text("x")
    (root / "templates" / "skeleton.py").write_text("{{ name }} = class\n")
    with pytest.raises(errors.UsageError, match="is not Python"):
        build(root, include=("templates",))
    found = package.compiled({"a.py": b"x = 1\n", "b.py": b"{{ }} = class\n"}, HERE, root.parent / "stage")
    assert [name.partition(".")[0] for name in found] == ["__pycache__/a"]


def test_bytecode_for_another_python_is_refused() -> None:
    with pytest.raises(errors.UsageError, match=r"Bytecode for Python 3\.9 cannot be made"):
        package.compiled({}, "3.9", Path("nowhere"))


def test_another_input_gives_other_bytes(root: Path) -> None:
    first = build(root).sha256
    (root / "courier.py").write_text("import json, sys\n")
    assert build(root).sha256 != first


def test_entries_are_sorted_dated_and_have_fixed_modes(root: Path) -> None:
    (root / "prices" / "tool").write_text("#!/bin/sh\n")
    (root / "prices" / "tool").chmod(0o700)
    with zipfile.ZipFile(build(root).path) as archive:
        entries = archive.infolist()
        assert archive.testzip() is None
    assert [entry.filename for entry in entries] == sorted(entry.filename for entry in entries)
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    modes = {entry.filename: entry.external_attr >> 16 for entry in entries}
    assert modes.pop("prices/tool") == 0o100755
    assert set(modes.values()) == {0o100644}


# -- what cannot be packed -------------------------------------------------------------------------------------------


def test_more_than_lambda_takes_is_refused_with_the_biggest_parts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(root)
    (root / "prices" / "rates.json").write_bytes(b"x" * 3_000_000)
    monkeypatch.setattr(package, "UNZIPPED_BYTES_MAX", 2_500_000)
    with pytest.raises(errors.UsageError) as refused:
        build(root)
    assert "2.4 MB" in refused.value.what
    assert refused.value.meaning.startswith("The biggest parts: prices 2.9 MB, onefold")
    assert Path(first.path).stat().st_size == first.zipped_bytes, "the archive before was touched"


def test_more_than_lambda_takes_directly_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "ZIPPED_BYTES_MAX", 1000)
    assert "onefold deploy uploads it to S3" in " ".join(build(root).warnings)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"module": "shopp"}, "There is no module 'shopp'"),
        ({"include": ("../code2",)}, "is outside"),
        ({"include": ("gone.txt",)}, "there is no such file"),
        ({"python": "3.10"}, "do not both run on Python 3.10"),
        ({"requirements": Path("gone.txt")}, "There is no requirements file gone.txt"),
        ({"extras": ("mongo",)}, "There is no extra 'mongo'"),
        ({"architecture": "arm64"}, "pip could not install msgspec"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(root: Path, changed: dict[str, object], said: str) -> None:
    with pytest.raises(errors.UsageError, match=said):
        build(root, **changed)
    assert not (root.parent / "function.zip").exists()


def test_a_file_of_the_app_may_not_hide_a_dependency(root: Path) -> None:
    (root / "msgspec").mkdir()
    (root / "msgspec" / "__init__.py").write_text("")
    with pytest.raises(errors.UsageError, match=r"msgspec/__init__\.py is in the app and in a dependency"):
        build(root, include=("msgspec",))


def test_source_that_is_not_python_is_named(root: Path) -> None:
    (root / "courier.py").write_text("def (\n")
    with pytest.raises(errors.UsageError, match=r"courier\.py is not Python"):
        build(root)


def test_a_broken_link_is_named(root: Path) -> None:
    (root / "prices" / "gone").symlink_to("nowhere")
    with pytest.raises(errors.UsageError, match="is not a regular file"):
        build(root)


def test_a_folder_linked_into_itself_ends(root: Path) -> None:
    (root / "prices" / "again").symlink_to(root / "prices")
    assert "prices/tax.py" in names(build(root))


def test_an_output_that_cannot_be_written_is_named(root: Path) -> None:
    with pytest.raises(errors.UsageError, match="cannot be written"):
        build(root, output=root / "shop.py" / "function.zip")


@pytest.mark.parametrize(
    ("module", "file", "folders", "root"),
    [
        ("shop", "/code/shop.py", (), "/code"),
        ("shop", "/code/shop/__init__.py", (), "/code"),
        ("shop.jobs", "/code/shop/jobs.py", (), "/code"),
        ("shop.jobs", "/code/shop/jobs/__init__.py", (), "/code"),
        ("shop", None, ("/code/shop",), "/code"),
    ],
)
def test_the_root_of_a_module(module: str, file: str | None, folders: tuple[str, ...], root: str) -> None:
    assert sources.root_of(module, file, folders) == Path(root)


def test_platforms_follow_the_glibc_of_the_runtime() -> None:
    assert "manylinux_2_28_x86_64" not in package.platforms("3.11", "x86_64")
    assert "manylinux_2_28_aarch64" in package.platforms("3.13", "arm64")
