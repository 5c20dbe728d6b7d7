"""A time limit by a signal fires while a SQLite file is opened: children forked later can still use the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 300
# The limit fires at the nth line of the modules that open the file, for n = 1, 2, ... until an opening gets through.
PROGRAM = """
import gc, os, signal, sys
import onefold
from onefold.contracts.store import RecordKey
from onefold.engines.sqlite import connection

class Limit(Exception): ...

def ring(*_):
    raise Limit

signal.signal(signal.SIGALRM, ring)
app = onefold.App("torn", url="sqlite:///torn.db", history="off")

@app.job(app.queue("q"), key="{id}")
def job(order: dict[str, str]) -> None: ...

store = onefold.store("sqlite:///torn.db")

def write(name):
    job.send({"id": name})

def read(_name):
    store.read((RecordKey("", "job", "first"),), 0)

use = {"write": write, "read": read}[sys.argv[1]]
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]) if phase == "start" else None)
gc.disable()

def fork(name):
    del collections[:]
    child = os.fork()
    if child == 0:
        try:
            write(name)
        except BaseException as error:
            os.write(1, f"{name}: {error}\\n".encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def limited(count):
    left = [count]

    def lines(frame, event, _):
        left[0] -= 1
        if left[0] == 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGALRM)
        return lines

    def trace(frame, event, _):
        return lines if frame.f_code.co_filename == connection.__file__ else None

    sys.settrace(trace)
    try:
        use(f"limited-{count}")
    except Limit:
        return True
    finally:
        sys.settrace(None)
    return left[0] <= 0

write("first")
read("first")
assert fork("in good order") == 0
write("second")
read("second")
assert fork("in good order again") == 0
assert collections == [], "a fork in good order collects no garbage"
count, wrong = 1, 0
while limited(count):
    wrong += fork(f"after-{count}") != 0
    count += 1
print(count, wrong)
"""


@pytest.mark.slow
@pytest.mark.parametrize("use", ["write", "read"])
def test_a_torn_opening_bars_no_child_from_the_file(tmp_path: Path, use: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, use],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    lines, wrong = done.stdout.splitlines()[-1].split()
    assert int(lines) > 20
    assert wrong == "0", done.stdout
