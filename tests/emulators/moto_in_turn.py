"""moto's server with its DynamoDB one request at a time: `python moto_in_turn.py PORT`, by the Python that moto is in.

Its own server answers in many threads, and a conditional write of its DynamoDB reads in one step and writes in another: of
two that come together both may be told that they were first. DynamoDB never does that.
Never here: what moto answers. Invariant: a request to DynamoDB is answered before the next one begins.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.server import MotoRequestHandler
from werkzeug.serving import run_simple

_turn = threading.Lock()
_app = DomainDispatcherApplication(create_backend_app)


def in_turn(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """The answer of moto's application; one of DynamoDB as a whole."""
    if not environ.get("HTTP_X_AMZ_TARGET", "").startswith("DynamoDB"):
        return _app(environ, start_response)
    with _turn:
        return list(_app(environ, start_response))


os.environ["MOTO_PORT"] = sys.argv[1]  # as its own server does: its state machines call it
run_simple("127.0.0.1", int(sys.argv[1]), in_turn, threaded=True, request_handler=MotoRequestHandler)
