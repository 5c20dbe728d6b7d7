"""Runs in a container: imports the user's handler once, then calls it for one event after another.

Started by its path as `python -P bootstrap.py CONTROL LIFELINE`, with only the standard library and no module of onefold,
so that the handler finds the interpreter it would find on Lambda: its folder first on the path, nothing else. Events
and answers go over CONTROL; standard output and error belong to the handler. LIFELINE is a pipe that the server holds
open.

It is two processes. The one that was started is the supervisor: processes that the handler starts and abandons become
its children, whatever their session or group (PR_SET_CHILD_SUBREAPER). When the lifeline closes, or the handler's
process has ended, it kills its children until none are left, and then ends as the handler's process did. Its first child
runs the handler; if the supervisor is gone when the lifeline closes, the kernel kills that child and its group.

    frame   4 bytes: length of the head, 4 bytes: length of the payload, head (JSON), payload
    begun   {pid} of the process that runs the handler; once, before all other frames
    hello   {handler, code_dir, memory_bytes}  ->  ready {own_kib} | failed {type, message, trace, own_kib}
    invoke  {id, deadline_ms, arn, trace_id, tells_start} + event
            ->  started {id} if tells_start is set; then one of
                answer {id, took_us} + JSON, error {id, took_us, type, message, trace}, too-large {id, took_us, bytes}

Never here: deadlines and limits (they are enforced from outside), an import of onefold.
Invariant: one answer per event, never from a process that the handler has forked.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import logging
import os
import resource
import select
import signal
import sys
import time
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_WALL = 0x40000000  # wait.h: children of every kind
_AGAIN_MS = 10  # between two checks for remaining processes
_CONTROL_LEAST = 200  # the control descriptor moves up here, out of the way of handlers that count from 3
_ANSWER_BYTES_MAX = 6 * 1024 * 1024 + 100
_TRACE_LINES_MAX = 100
_MESSAGE_CHARS_MAX = 64 * 1024
_LOG_FORM = "[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s"  # Lambda's own


class Identity:
    """The Cognito identity of the caller: there is none."""

    cognito_identity_id = None
    cognito_identity_pool_id = None


class LambdaContext:
    """What a handler knows about its invocation, with the attributes of Lambda's context object.

    Source: Lambda developer guide, "Using the Lambda context object to retrieve Python function information".
    """

    def __init__(self, invoke: dict[str, Any]) -> None:
        self._deadline_ms = invoke["deadline_ms"]
        self.aws_request_id = invoke["id"]
        self.invoked_function_arn = invoke["arn"]
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = os.environ["AWS_LAMBDA_FUNCTION_VERSION"]
        self.memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
        self.log_group_name = os.environ["AWS_LAMBDA_LOG_GROUP_NAME"]
        self.log_stream_name = os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
        self.identity = Identity()
        self.client_context = None
        self.tenant_id = None

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until this invocation is killed; 0 or more."""
        return max(int(self._deadline_ms - time.monotonic_ns() / 1e6), 0)  # noqa: TID251 - onefold is not imported here

    def log(self, message: object) -> None:
        """Write to the log."""
        sys.stdout.write(str(message))


class _Refused(Exception):
    """The handler cannot be imported or found."""

    def __init__(self, kind: str, message: str, trace: list[str]) -> None:
        super().__init__(message)
        self.details = {"type": kind, "message": message, "trace": trace}


class _Control:
    """The control channel to the server."""

    def __init__(self, descriptor: int) -> None:
        self._fd = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _CONTROL_LEAST)
        os.close(descriptor)
        self._file = os.fstat(self._fd)
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._close)

    def _close(self) -> None:
        with suppress(OSError):  # the handler may have closed it before it forked, and opened another file there
            if os.path.samestat(os.fstat(self._fd), self._file):
                os.close(self._fd)

    def take(self) -> tuple[dict[str, Any], bytes]:
        """The next frame. Ends the process if there will be none."""
        sizes = self._exactly(8)
        head = self._exactly(int.from_bytes(sizes[:4], "big"))
        return json.loads(head), self._exactly(int.from_bytes(sizes[4:], "big"))

    def send(self, head: dict[str, Any], payload: bytes = b"") -> None:
        """Write one frame. Ends the process if it is not the one that was started, or if nothing listens."""
        _flush()
        if os.getpid() != self._pid:  # the handler forked, and both processes returned from it: only one answers
            os._exit(0)
        details = json.dumps(head).encode()
        rest = memoryview(len(details).to_bytes(4, "big") + len(payload).to_bytes(4, "big") + details + payload)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except OSError:  # the parent is gone, or the handler closed a descriptor that is not its own
                os._exit(1)

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            try:
                part = os.read(self._fd, min(count, 1 << 20))
            except OSError:
                os._exit(1)
            if not part:
                os._exit(0)  # the parent has closed its end: there is nothing left to do
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def main() -> None:
    """Answer the server until it closes the channel or the handler ends the process; never returns."""
    descriptor, lifeline = int(sys.argv[1]), int(sys.argv[2])
    supervised = _fork(descriptor, lifeline)
    control = _Control(descriptor)
    del sys.argv[1:]
    _die_with(lifeline)
    control.send({"kind": "begun", "pid": os.getpid()})
    hello, _ = control.take()
    own_kib, data_kib = _size("VmRSS:"), _size("VmData:")
    _limit(data_kib * 1024 + hello["memory_bytes"])
    noted = _prepare(hello["code_dir"])
    os.read(supervised, 1)
    os.close(supervised)
    try:
        handler = _load(hello["handler"])
    except _Refused as refused:
        control.send({"kind": "failed", "own_kib": own_kib, **refused.details})
        os._exit(1)
    control.send({"kind": "ready", "own_kib": own_kib})
    while True:
        invoke, event = control.take()
        noted.request_id = invoke["id"]
        if invoke["tells_start"]:
            control.send({"kind": "started", "id": invoke["id"]})
        head, payload = _call(handler, invoke, event)
        control.send({"id": invoke["id"], **head}, payload)


def _call(handler: Any, invoke: dict[str, Any], event: bytes) -> tuple[dict[str, Any], bytes]:
    """Call the handler with one event, and return the head and payload of the answer."""
    os.environ["_X_AMZN_TRACE_ID"] = invoke["trace_id"]
    began_ns = time.monotonic_ns()  # noqa: TID251 - onefold is not imported here
    head: dict[str, Any] = {"kind": "answer"}
    payload = b""
    try:
        payload = _to_json(handler(json.loads(event), LambdaContext(invoke)))
    except _Refused as refused:
        head = {"kind": "error", **refused.details}
    except Exception as error:  # noqa: BLE001 - a handler may raise anything; SystemExit may end this process
        head = {"kind": "error", **_details(error)}
    if len(payload) > _ANSWER_BYTES_MAX:
        head, payload = {"kind": "too-large", "bytes": len(payload)}, b""
    head["took_us"] = (time.monotonic_ns() - began_ns) // 1000  # noqa: TID251 - onefold is not imported here
    return head, payload


def _to_json(value: Any) -> bytes:
    """What a handler returned as JSON, written as Lambda does: NaN stays NaN, a Decimal becomes a number."""
    try:
        return json.dumps(value, default=_plain).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError) as error:
        text = f"Unable to marshal response: {_text(error)}"
        if hasattr(type(value), "__await__"):
            if hasattr(value, "close"):
                value.close()  # or it would warn that nobody awaited it
            text += ". Lambda does not await handlers: make it a plain function that calls asyncio.run(...)"
        raise _Refused("Runtime.MarshalError", text, []) from None


def _plain(value: Any) -> Any:
    decimal = sys.modules.get("decimal")
    if decimal is not None and isinstance(value, decimal.Decimal):
        return float(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


# --------------------------------------------------------------------------------------------------------- supervisor


def _fork(control: int, lifeline: int) -> int:
    """Fork: return in the child; this process supervises the child from then on and never returns.

    Returns:
        A pipe that ends once the supervisor is ready to adopt abandoned processes.
    """
    held, holds = os.pipe()
    child = os.fork()
    if child:
        _supervise(child, control, lifeline, held, holds)
    os.close(holds)
    os.setsid()
    return held


def _supervise(child: int, control: int, lifeline: int, held: int, holds: int) -> NoReturn:
    import ctypes  # here: so that it is not imported in the handler's process

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        os._exit(1)  # Linux is older than 3.4
    woken, wakes = os.pipe()
    for end in (woken, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # these belong to the handler, like the control channel
        os.dup2(nothing, stream)
    for end in (control, held, holds, nothing):
        os.close(end)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(woken, select.POLLIN)
    status: int | None = None
    left = True
    while status is None:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if lifeline in ready or os.read(woken, 4096).strip(
            bytes([signal.SIGCHLD])
        ):  # the server is gone, or asks us to end
            break
        status, left = _reap(child, None)
    poll.unregister(lifeline)
    while left:
        for pid in descendants(os.getpid()):  # also those whose parent the last kill ended
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(BlockingIOError):
            os.read(woken, 4096)
        status, left = _reap(child, status)
        if left:
            poll.poll(_AGAIN_MS)
    _exit_as(signal.SIGKILL if status is None else status)


def _reap(child: int, status: int | None) -> tuple[int | None, bool]:
    """Reap all children that have ended; return the status of `child` once known, and whether children are left."""
    while True:
        try:
            pid, found = os.waitpid(-1, os.WNOHANG | _WALL)
        except ChildProcessError:
            return status, False
        if not pid:
            return status, True
        if pid == child:
            status = found


def _exit_as(status: int) -> NoReturn:
    """End as the process with this status did."""
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # the action of SIGKILL cannot be set
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def descendants(root: int) -> list[int]:
    """All descendants of a process according to /proc, whatever their session or group, even if they have ended."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    row = file.read()
            except OSError:  # it has ended
                continue
            # The name in brackets may hold anything; state and parent follow it (proc(5)).
            parent = int(row[row.rindex(b")") + 2 :].split(None, 2)[1])
            children.setdefault(parent, []).append(int(name))
    found, left = [], [root]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


# ------------------------------------------------------------------------------------------------------------- start


def _load(handler: str) -> Any:
    """The handler that `module:function`, or Lambda's `folder/module.function`, names."""
    module_name, _, attribute = handler.rpartition(":" if ":" in handler else ".")
    module_name = module_name.replace("/", ".")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        text = f"Unable to import module '{module_name}': {_text(error)}"
        raise _Refused("Runtime.ImportModuleError", text, _trace(error.__traceback__)) from None
    except SyntaxError as error:
        text = f"Syntax error in module '{module_name}': {_text(error)}"
        where = [f'  File "{error.filename}" Line {error.lineno}\n    {(error.text or "").rstrip()}\n']
        raise _Refused("Runtime.UserCodeSyntaxError", text, where) from None
    except Exception as error:  # noqa: BLE001 - a module may raise anything
        details = _details(error)
        raise _Refused(details["type"], details["message"], details["trace"]) from None
    try:
        for name in attribute.split("."):
            found = getattr(found, name)
    except AttributeError:
        text = f"Handler '{attribute}' missing on module '{module_name}'"
        raise _Refused("Runtime.HandlerNotFound", text, []) from None
    return found


class _Noted(logging.Filter):
    """Puts the request id on log records."""

    request_id = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        record.aws_request_id = self.request_id
        return True


def _prepare(code_dir: str) -> _Noted:
    """Set up the path, the output and the root logger's handler as on Lambda."""
    sys.path.insert(0, code_dir)
    # A function's folder is read-only on Lambda, and a compiled file could be used after an edit in the same second.
    sys.dont_write_bytecode = True
    sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)  # type: ignore[union-attr]  # not replaced yet
    noted = _Noted()
    handler = logging.StreamHandler()
    handler.addFilter(noted)
    handler.setFormatter(logging.Formatter(_LOG_FORM, "%Y-%m-%dT%H:%M:%S"))
    handler.formatter.converter = time.gmtime  # type: ignore[union-attr]  # noqa: TID251 - converts the record's own time
    logging.getLogger().addHandler(handler)
    return noted


def _die_with(lifeline: int) -> None:
    """Have the kernel kill this process group when the other end of the pipe is closed."""
    assert os.getpgrp() == os.getpid(), "a container leads its own process group"
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC)


def _limit(data_bytes: int) -> None:
    """Bound what one process can allocate, and write no core files."""
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _size(name: str) -> int:
    """A value of /proc/self/status, in KiB."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


# ------------------------------------------------------------------------------------------------------------ errors


def _details(error: BaseException) -> dict[str, Any]:
    return {"type": type(error).__name__, "message": _text(error), "trace": _trace(error.__traceback__)}


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_MESSAGE_CHARS_MAX]
    except Exception:  # noqa: BLE001 - its __str__ is the user's code too
        return f"<{type(error).__name__} that cannot be printed>"


def _trace(trace: TracebackType | None) -> list[str]:
    """The user's frames, each as a text with its line; repeated ones are counted, not listed."""
    frames = [
        one for one in traceback.extract_tb(trace) if one.filename != __file__ and "importlib" not in one.filename
    ]
    return traceback.StackSummary.from_list(frames).format()[-_TRACE_LINES_MAX:]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the handler may have closed it, or put anything in its place
            stream.flush()


if __name__ == "__main__":
    main()
