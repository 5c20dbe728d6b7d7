"""The page as a bare ASGI application: it finds the user of a request, the view, and an answer that is safe to show.

Engine calls block, so each request is answered in its own thread. An error of onefold becomes a page with the error's
three parts; any other exception becomes a page without internal details. Under `/api` both are JSON.
Never here: what a page shows (`pages.py`), what a change does (`changes.py`), sockets (`serving.py`).
Invariant: without access, only the style sheet, the script, `/healthz` and `/readyz` are answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from onefold import errors, redact
from onefold.admin.session import AdminSession, jobs_of
from onefold.app import App
from onefold.record import error_text
from onefold.web import changes, controls, exchange, pages, rendering, safety
from onefold.web.exchange import AsgiApplication, Receive, Scope, Send, TooLargeError, WebAnswer, WebRequest
from onefold.web.hiding import Hiding
from onefold.web.numbers import EngineNumbers
from onefold.web.redrives import RunningRedrives
from onefold.web.safety import Access, Identify, Refusal, Role
from onefold.web.view import Redirect, RightsError, Shown, View

_LOG = logging.getLogger("onefold.web")
_HTML: Final = ("Content-Type", "text/html; charset=utf-8")
_JSON: Final = ("Content-Type", "application/json")
_STATUS: Final[tuple[tuple[type[Exception], int], ...]] = (
    (RightsError, 403),
    (errors.NotFoundError, 404),
    (errors.ConflictError, 409),
    (errors.StorageError, 503),
    (errors.UsageError, 400),
    (errors.TransientError, 503),
)

Show = Callable[..., "Shown | Redirect"]
# method, path ({} is any segment), the function that answers
_ROUTES: Final[tuple[tuple[str, str, Show], ...]] = (
    ("GET", "", pages.overview),
    ("GET", "status", pages.overview),
    ("GET", "queues/{}", pages.queue),
    ("GET", "dead", pages.dead_queues),
    ("GET", "dead/{}", pages.dead),
    ("GET", "dead/{}/letters/{}", pages.letter),
    ("GET", "dead/{}/letters/{}/edit", changes.edit_form),
    ("POST", "dead/{}/letters/{}/edit", changes.edit),
    ("GET", "dead/{}/redrive", changes.redrive_preview),
    ("POST", "dead/{}/redrive", changes.redrive),
    ("GET", "redrives/{}", changes.redrive_progress),
    ("POST", "redrives/{}/stop", changes.redrive_stop),
    ("GET", "held", pages.held),
    ("GET", "held/settle", changes.settle_preview),
    ("POST", "held/settle", changes.settle),
    ("GET", "alarms", pages.alarm_list),
    ("GET", "alarms/silence", controls.silence_preview),
    ("POST", "alarms/silence", controls.silence),
    ("GET", "why", pages.search),
    ("GET", "why/{}/{}", pages.why),
    ("GET", "runs", pages.run_list),
    ("GET", "runs/{}", pages.run),
    ("GET", "schedules", pages.schedules),
    ("GET", "schedules/{}/run-now", controls.run_now_preview),
    ("POST", "schedules/{}/run-now", controls.run_now),
    ("GET", "schedules/{}/pause", controls.pause_preview),
    ("POST", "schedules/{}/pause", controls.pause),
    ("GET", "schedules/{}/resume", controls.pause_preview),
    ("POST", "schedules/{}/resume", controls.pause),
    ("GET", "workers", pages.workers),
    ("GET", "workers/{}/drain", controls.drain_preview),
    ("POST", "workers/{}/drain", controls.drain),
    ("GET", "audit", pages.audit),
)


class Page:
    """The page of one engine, an ASGI application.

    Args:
        session: an open engine.
        app: the app whose jobs and schedules are shown; None if only the engine is known.
        access: who may open it.
        base_path: the start of all its addresses, for example `/ops`, if a proxy does not strip it.
        hide_payloads: do not show bodies, attributes and results.
        hide_fields: names of fields in these that are not shown: `email`, `card.number`.
        redrives: the redrives that it has begun; a new, empty list unless given.
        target: how commands that the page shows name the app or the engine; empty: they do not.

    Raises:
        UsageError: anybody could open it, or Jinja2 is missing.
    """

    def __init__(
        self,
        session: AdminSession,
        *,
        access: Access,
        app: App | None = None,
        base_path: str = "",
        hide_payloads: bool = False,
        hide_fields: Sequence[str] = (),
        redrives: RunningRedrives | None = None,
        target: str = "",
    ) -> None:
        access.check()
        rendering.environment()
        self._session = session
        self._access = access
        self._app = app
        self._base_path = f"/{base_path.strip('/')}" if base_path.strip("/") else ""
        self._hiding = Hiding(payloads=hide_payloads, fields=tuple(one.lower() for one in hide_fields))
        self._redrives = redrives or RunningRedrives()
        self._target = target
        self._numbers = EngineNumbers(session, app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request from a server or from the application that mounts this one."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            request = exchange.read_head(scope, self._base_path)
            answer = await self._answer(request, scope, receive)
        except TooLargeError:
            answer = _plain(413, "The form is larger than 4 MiB. Nothing was changed.")
        except errors.UsageError as error:
            answer = _plain(400, str(error))
        except ConnectionError:
            return
        head_only = scope["method"] == "HEAD"
        whole = replace(answer, headers=(*answer.headers, *safety.HEADERS))
        await exchange.write(send, whole, head_only=head_only)

    async def _answer(self, request: WebRequest | None, scope: Scope, receive: Receive) -> WebAnswer:
        if request is None:
            return _plain(404, "The page is not here.")
        if refused := safety.check_host(self._access, request):
            return self._refused(request, refused)
        if request.segments == ("healthz",):
            return WebAnswer(status=200, body=b'{"status": "ok"}\n', headers=(_JSON,))
        if request.segments == ("readyz",):
            return await asyncio.to_thread(self._numbers.ready)
        if request.segments[:1] == ("static",) and len(request.segments) == 2:
            return _static(request.segments[1])
        if safety.opens(self._access, request):
            return WebAnswer(
                status=200,
                body=rendering.render("opened.html", base=request.base, target=request.with_query(token=None)),
                headers=(_HTML, safety.set_cookie(self._access, request)),
            )
        return await self._answer_somebody(request, scope, receive)

    async def _answer_somebody(self, request: WebRequest, scope: Scope, receive: Receive) -> WebAnswer:
        """Identify the user and their role, and answer accordingly."""
        actor = safety.who(self._access, request, scope)
        if actor is None:
            return self._refused(request, _NOBODY)
        role = safety.role_of(self._access, request, scope)
        if role is None:
            return self._refused(request, _NO_ROLE)
        request = replace(request, actor=actor, role=role)
        if request.method not in ("GET", "HEAD", "POST"):
            return self._refused(request, _NO_METHOD)
        if request.method == "POST":
            if refused := safety.check_change(self._access, request) or _check_role(request):
                return self._refused(request, refused)
            form, many = exchange.form_of(await exchange.read_body(receive))
            request = replace(request, form=form, many=many)
        if request.segments == ("metrics",) and request.method != "POST":
            return await asyncio.to_thread(self._numbers.exposition)
        return await asyncio.to_thread(self._shown, request)

    def _shown(self, request: WebRequest) -> WebAnswer:
        """Find the function for a path, call it, and draw its answer."""
        method = "GET" if request.method == "HEAD" else request.method
        found = next(
            ((show, values) for each, path, show in _ROUTES if each == method and (values := _match(path, request))),
            None,
        )
        view = View(
            session=self._session.acting_as(request.actor),
            request=request,
            app=self._app,
            is_read_only=self._access.read_only,
            role=request.role,
            hiding=self._hiding,
            redrives=self._redrives,
            target=self._target,
        )
        try:
            if found is None:
                return self._refused(request, _no_page(request))
            show, values = found
            shown = show(view, *values[1:])
            if isinstance(shown, Redirect):
                return WebAnswer(status=303, body=b"", headers=(("Location", shown.address),))
            return self._drawn(request, view, shown)
        except errors.OnefoldError as error:
            return self._failed(request, error)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the page says that it failed, the log why
            # A dispatcher or a type of the app that calls sys.exit would end the loop, and the page with it.
            trace = error_text.trace_of(error, error_text.text_of).text
            _LOG.error("onefold.web: %s failed\n%s", redact.one_line("/".join(request.segments)), trace)
            return self._refused(request, _DEFECT)

    def _drawn(self, request: WebRequest, view: View, shown: Shown) -> WebAnswer:
        if request.wants_json:
            text = msgspec.json.format(msgspec.json.encode(shown.value), indent=2).decode()
            return WebAnswer(status=shown.status, body=f"{redact.printable_json(text)}\n".encode(), headers=(_JSON,))
        values: dict[str, Any] = {
            "value": shown.value, "base": request.base, "request": request, "view": view, "title": shown.title,
            "refreshes": shown.refreshes, "now_ms": view.session.now_ms(), **shown.more,
        }  # fmt: skip
        return WebAnswer(status=shown.status, body=rendering.render(shown.template, **values), headers=(_HTML,))

    def _failed(self, request: WebRequest, error: errors.OnefoldError) -> WebAnswer:
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        refusal = Refusal(status=status, what=error.what, meaning=error.meaning, todo=error.todo)
        return self._refused(request, refusal, code=error.code)

    def _refused(self, request: WebRequest, refused: Refusal, code: str = "refused") -> WebAnswer:
        parts = {"what": refused.what, "meaning": refused.meaning, "todo": refused.todo}
        safe = {name: redact.printable(redact.masked(text)) for name, text in parts.items()}
        if request.wants_json:
            body = msgspec.json.encode({"error": {"code": code, **safe}}) + b"\n"
            return WebAnswer(status=refused.status, body=body, headers=(_JSON,))
        body = rendering.render(
            "error.html", base=request.base, error=safe, title="Not done", known=bool(request.actor)
        )
        return WebAnswer(status=refused.status, body=body, headers=(_HTML,))


_NOBODY: Final = Refusal(
    status=401,
    what="The page is closed to you.",
    meaning="Your browser sent no token, or one that is not this page's.",
    todo="Open the address that `onefold web` printed, with its token. A program sends the header Authorization with the"
    " word Bearer and the token.",
)
_NO_ROLE: Final = Refusal(
    status=403,
    what="You have no role here.",
    meaning="The proxy that signed you in names only groups that have no role on this page.",
    todo="Ask the person who runs the page: onefold web --role viewer=GROUP.",
)
_NO_METHOD: Final = Refusal(status=405, what="The method is not supported.", meaning="", todo="Use GET or POST.")


_DEFECT: Final = Refusal(
    status=500,
    what="The page could not be made.",
    meaning="This is a defect of onefold, or a stored value that cannot be read. The log of this process has its traceback.",
    todo="Use the command line, and report the traceback.",
)


def _check_role(request: WebRequest) -> Refusal | None:
    """The refusal of a change by a user who may only read."""
    if request.role != "viewer":
        return None
    return Refusal(
        status=403,
        what="Your role is viewer, which changes nothing.",
        meaning="Nothing was changed.",
        todo="Ask somebody whose role is operator or admin.",
    )


def _no_page(request: WebRequest) -> Refusal:
    name = redact.one_line("/".join(request.segments))[:200]
    return Refusal(
        status=404, what=f"There is no page {name!r}.", meaning="", todo="See the links at the top of the page."
    )


def _match(path: str, request: WebRequest) -> tuple[str, ...]:
    """The path itself and the values of its `{}` segments; empty if the request is for another path."""
    wanted = path.split("/") if path else []
    if len(wanted) != len(request.segments):
        return ()
    pairs = list(zip(wanted, request.segments, strict=True))
    if any(want not in ("{}", given) for want, given in pairs):
        return ()
    return path or "/", *(given for want, given in pairs if want == "{}")


def _static(name: str) -> WebAnswer:
    found = rendering.static(name)
    if found is None:
        return _plain(404, "There is no such file.")
    body, kind = found
    return WebAnswer(status=200, body=body, headers=(("Content-Type", kind),))


def _plain(status: int, text: str) -> WebAnswer:
    body = redact.printable(redact.masked(text)) + "\n"
    return WebAnswer(status=status, body=body.encode(), headers=(("Content-Type", "text/plain; charset=utf-8"),))


async def _live(receive: Receive, send: Send) -> None:
    """Answer a server's startup and shutdown messages; the engine belongs to the code that opened it."""
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return


def page(
    app: App,
    *,
    actor: str = "person:web",
    token: str | None = None,
    hosts: tuple[str, ...] = (),
    trust_header: str | None = None,
    identify: Identify | None = None,
    read_only: bool = False,
    base_path: str = "",
    hide_payloads: bool = False,
    hide_fields: Sequence[str] = (),
    roles_header: str | None = None,
    roles: Mapping[str, Role] | None = None,
) -> AsgiApplication:
    """The page of an app, to be mounted in FastAPI, Starlette or Django, or run by any ASGI server.

    Args:
        app: this call opens it, if it is not open.
        actor: the name for the history if only a token identifies the user.
        token: opens the page (`?token=` once, then a cookie), 16 characters or more.
        hosts: names it answers to besides `localhost`; `*` for any, if a proxy or framework checks the Host header.
        trust_header: a header with the person's name that a proxy sets, for example `X-Forwarded-User`.
        identify: how the mounting application identifies its users: takes an ASGI scope and returns the person's name,
            None for nobody, or name and role if they may not do everything: `("grace", "operator")`.
        read_only: nothing can be changed.
        base_path: where it is mounted, for example `/onefold`; FastAPI and Starlette report it themselves.
        hide_payloads: do not show bodies, attributes and results.
        hide_fields: names of fields in these that are not shown: `email`, `card.number`.
        roles_header: a header with the groups of the user that `trust_header` names; without it everybody is an admin.
        roles: group -> `viewer`, `operator` or `admin`; a group that is named like a role needs no entry.

    Raises:
        UsageError: there is no token, header or `identify`, so that anybody could open it; the extra `web` is not
            installed.
    """
    access = Access(
        token=token, hosts=hosts, trust_header=trust_header, roles_header=roles_header, roles=roles or {},
        identify=identify, read_only=read_only, actor=actor,
    )  # fmt: skip
    access.check()
    session = AdminSession(app.runtime(), actor=actor, jobs=jobs_of(app))
    return Page(
        session, access=access, app=app, base_path=base_path, hide_payloads=hide_payloads, hide_fields=hide_fields
    )
