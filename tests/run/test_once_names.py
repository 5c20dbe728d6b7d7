"""The name of a guarded function when none is given: it must say which function it is, in every process that calls it."""

from __future__ import annotations

import functools
import gc
import inspect
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold.engines import urls

CHARGES = """\
import onefold

@onefold.once(key="{invoice}", store=onefold.store("sqlite:///records.db")NAME)
def charge(invoice: str) -> str:
    print("CHARGING", FILE, invoice)
    return FILE

if __name__ == "__main__":
    print(charge("i-1"))
"""
IN_A_POOL = """\
import multiprocessing
import onefold

@onefold.once(key="{invoice}", store=onefold.store("sqlite:///records.db"), name="charge")
def charge(invoice: str) -> str:
    return multiprocessing.current_process().name

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(charge, ["i-1"]) == charge("i-1") != "MainProcess"
"""


def python(*arguments: str, folder: Path, code: int = 0) -> tuple[str, str]:
    """Run Python; standard output and the last line of standard error."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, text=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout, (done.stderr.splitlines() or [""])[-1]


def write(folder: Path, name: str, given: str = "") -> None:
    (folder / f"{name}.py").write_text(CHARGES.replace("FILE", f"{name!r}").replace("NAME", given))


@pytest.mark.slow
@pytest.mark.parametrize("how", [["charges.py"], ["-m", "charges"]])
def test_a_script_has_to_name_what_it_guards(tmp_path: Path, how: list[str]) -> None:
    write(tmp_path, "charges")
    said, error = python(*how, folder=tmp_path, code=1)
    assert not said  # nothing was charged under a name that every script has
    assert "__main__" in error
    assert 'name="charges.charge"' in error
    assert 'name="__main__.charge"' in error  # who has records under the old name keeps them
    assert python("-c", "import charges; print(charges.charge.__name__)", folder=tmp_path)[0] == "charge\n"


@pytest.mark.slow
def test_scripts_with_names_neither_charge_twice_nor_answer_for_each_other(tmp_path: Path) -> None:
    write(tmp_path, "charges", ', name="charge"')
    write(tmp_path, "refunds", ', name="refund"')
    assert python("charges.py", folder=tmp_path)[0] == "CHARGING charges i-1\ncharges\n"
    assert python("refunds.py", folder=tmp_path)[0] == "CHARGING refunds i-1\nrefunds\n"
    assert python("-c", "import charges; print(charges.charge('i-1'))", folder=tmp_path)[0] == "charges\n"


@pytest.mark.slow
def test_a_spawned_process_answers_for_the_script_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "pooled.py").write_text(IN_A_POOL)
    python("pooled.py", folder=tmp_path)
    (tmp_path / "pooled.py").write_text(IN_A_POOL.replace(', name="charge"', ""))
    assert "name=" in python("pooled.py", folder=tmp_path, code=1)[1]


@pytest.mark.parametrize("module", ["__main__", "__mp_main__"])
def test_without_a_file_the_functions_own_name_is_proposed(module: str) -> None:
    space: dict[str, Any] = {"__name__": module}
    exec("def charge(order): ...", space)
    with pytest.raises(onefold.errors.UsageError, match=re.escape('name="charge"')):
        onefold.once(key="{order}", store=onefold.memory_store())(space["charge"])


def charged(order: str, how: str = "by card") -> str:
    return f"{order} {how}"


class Till:
    def __call__(self, order: str) -> str:
        return f"{order} in cash"


UNNAMED: list[Callable[..., str]] = [
    lambda order: f"{order} {'by card'}",
    functools.partial(charged, how="by card"),
    Till(),
]


@pytest.mark.parametrize("function", UNNAMED, ids=["lambda", "partial", "object"])
def test_what_has_no_name_of_its_own_has_to_be_given_one(function: Callable[..., str]) -> None:
    guard = functools.partial(onefold.once, key="{order}", store=onefold.memory_store())
    with pytest.raises(onefold.errors.UsageError, match="name="):
        guard()(function)
    named = guard(name="charge")(function)
    assert named("o-1") == named("o-1") == function("o-1")


def tills(store: Any, *currencies: str, name: str | None = None) -> list[Callable[[str], str]]:
    """The same inner function, once for each currency."""
    made = []
    for currency in currencies:

        @onefold.once(key="{order}", store=store, name=name)
        def charge(order: str, currency: str = currency) -> str:
            return f"{order} {currency}"

        made.append(charge)
    return made


def test_an_inner_function_that_is_made_again_is_warned_about() -> None:
    store = onefold.memory_store()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tills(store, "GBP")
        tills(onefold.memory_store(), "EUR")  # other records
        tills(store, "GBP", "EUR", name="charge")  # who names it means it
    with pytest.warns(UserWarning, match=r"test_once_names\.tills\.<locals>\.charge.* name="):
        tills(store, "EUR")


# -- one name, two functions -----------------------------------------------------------------------------------------


def a_function(text: str, module: str, file: str | None = None) -> Callable[[str], str]:
    """The function `charge`, or the one `text` defines, of a module that is imported now."""
    space: dict[str, Any] = {"__name__": module, **({"__file__": file} if file else {})}
    exec(text, space)
    return next(one for one in space.values() if inspect.isfunction(one))


CHARGE = "def charge(invoice): return 'charged'"
REFUND = "def refund(invoice): return 'refunded'"
LATER = "async def refund_later(invoice): return 'refunded'"


@pytest.mark.parametrize("other", [REFUND, LATER, "class Till:\n def charge(self, invoice): ...\nf = Till.charge"])
def test_another_function_may_not_take_the_name(other: str) -> None:
    guard = onefold.once(key="{invoice}", name="charge", store=onefold.memory_store())
    charge = guard(a_function(CHARGE, "shop"))
    with pytest.raises(onefold.errors.ConflictError) as refused:
        guard(a_function(other, "shop"))
    assert "shop.charge" in refused.value.what
    assert charge("i-1") == "charged"


def test_a_function_of_another_module_may_not_take_the_name() -> None:
    guard = onefold.once(key="{invoice}", name="charge", store=onefold.memory_store())
    charge = guard(a_function(CHARGE, "shop", "/app/shop.py"))
    with pytest.raises(onefold.errors.ConflictError, match=r"billing\.charge.*shop\.charge"):
        guard(a_function(CHARGE, "billing", "/app/billing.py"))
    assert charge("i-1") == "charged"


def test_a_name_that_is_given_may_not_be_another_functions_own() -> None:
    store = onefold.memory_store()
    charge = onefold.once(key="{invoice}", store=store)(a_function(CHARGE, "shop"))
    with pytest.raises(onefold.errors.ConflictError, match=r"shop\.refund.*shop\.charge"):
        onefold.once(key="{invoice}", name="shop.charge", store=store)(a_function(REFUND, "shop"))
    assert charge("i-1") == "charged"


def test_stores_with_one_url_are_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    engines: list[Any] = []
    opened = urls.open_engine

    def open_engine(*arguments: Any, **options: Any) -> Any:
        engines.append(opened(*arguments, **options))
        return engines[-1]

    def guard(url: str) -> Any:
        return onefold.once(key="{invoice}", name="charge", store=onefold.store(url))

    monkeypatch.setattr(urls, "open_engine", open_engine)

    charge = guard("sqlite:///records.db")(a_function(CHARGE, "shop"))
    with pytest.raises(onefold.errors.ConflictError, match=r"shop\.refund"):
        guard(f"sqlite:///{tmp_path}/records.db")(a_function(REFUND, "shop"))
    refund = guard("sqlite:///others.db")(a_function(REFUND, "shop"))
    in_memory = guard("sqlite://:memory:")(a_function(CHARGE, "shop"))
    another = guard("sqlite://:memory:")(a_function(REFUND, "shop"))  # each has records of its own
    assert [one("i-1") for one in (charge, refund, in_memory, another)] == ["charged", "refunded"] * 2
    for engine in engines:
        engine.close()


def test_the_same_function_may_be_defined_again() -> None:
    """A module is reloaded, or imported under two names; a cell of a notebook is run again."""
    guard = onefold.once(key="{invoice}", name="charge", store=onefold.memory_store())
    same = [
        ("shop", "/app/shop.py"),
        ("shop", "/app/shop.py"),
        ("app.shop", "/app/shop.py"),
        ("__main__", "/app/shop.py"),
        ("__mp_main__", "/app/shop.py"),
    ]
    again = [guard(a_function(CHARGE, *one)) for one in same]
    assert [one("i-1") for one in again] == ["charged"] * len(same)
    guard = onefold.once(key="{invoice}", name="charge", store=onefold.memory_store())
    cells = [guard(a_function(CHARGE, "__main__")) for _ in range(2)]
    with pytest.raises(onefold.errors.ConflictError):
        guard(a_function(REFUND, "__main__"))
    assert [cell("i-1") for cell in cells] == ["charged"] * 2


def test_a_name_is_free_when_its_function_is_gone() -> None:
    """A test suite that makes a function for each test."""
    guard = onefold.once(key="{invoice}", name="charge", store=onefold.memory_store())
    guard(a_function(CHARGE, "test_charges"))
    gc.collect()
    assert guard(a_function(REFUND, "test_refunds"))("i-1") == "refunded"


@pytest.mark.slow
def test_a_script_that_is_imported_by_what_it_imports_is_one(tmp_path: Path) -> None:
    text = CHARGES.replace("FILE", "'charges'").replace("NAME", ', name="charge"')
    (tmp_path / "charges.py").write_text(text.replace("    print(charge", "    import helper\n    print(charge"))
    (tmp_path / "helper.py").write_text(
        "import importlib, charges\nassert charges.charge('i-1') == 'charges'\nimportlib.reload(charges)\n"
    )
    assert python("charges.py", folder=tmp_path)[0] == "CHARGING charges i-1\ncharges\n"
