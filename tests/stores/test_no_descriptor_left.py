"""A record server must be reconnected to while this process can open few files or none: a transient error."""

from __future__ import annotations

import subprocess
import sys

import pytest

PATIENCE_S = 120
# With no, one, two ... descriptors available: a driver opens a socket, and perhaps another one to wait with.
PROGRAM = """
import os, resource, socket, sys
import onefold
from onefold import errors
from onefold.contracts.store import RecordKey

def lose_connections():
    for number in range(3, 64):
        try:
            is_socket = os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except FileNotFoundError:
            continue
        if is_socket:
            one = socket.socket(fileno=number)
            one.shutdown(socket.SHUT_RDWR)
            one.detach()

store = onefold.store(sys.argv[1])
store.read((RecordKey("", "charge", "o-1"),), 0)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
for count in range(12):
    lose_connections()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3 + count, hard))  # 0 to 2 are the standard streams
    try:
        store.read((RecordKey("", "charge", "o-1"),), 0)
    except errors.TransientError as error:
        print("refused", error)
    else:
        print("answered")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_reconnection_without_descriptors_is_refused_for_now(kind: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("server") if kind == "redis" else request.getfixturevalue("url") + "?create=yes"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    turns = done.stdout.splitlines()
    assert (len(turns), turns[-1]) == (12, "answered"), turns
    refused = [turn for turn in turns if turn != "answered"]
    assert any("Too many open files" in turn for turn in refused), turns
