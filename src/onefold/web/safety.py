"""Who may use the page, and from where a change may come.

The page can send payments again, so it is closed unless one of these opens it: a token, a name that a trusted proxy
puts into a header, or a function of the application that mounts it. A change must come from the page itself: browsers
say so in Sec-Fetch-Site, older ones in Origin; a program sends the token in its Authorization header, which no other
site's page can set. A Host that is not allowed is refused: somebody else's domain name may point at this machine.
Never here: what a page shows. Invariant: a refused request has changed nothing.
Sources: Fetch Metadata Request Headers (W3C), RFC 6265bis section 4.1.2.7 (SameSite), CSP Level 3.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from onefold import errors, redact
from onefold.web.exchange import Scope, WebRequest

_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
_TOKEN_CHARS_MIN: Final = 16
_NAME_CHARS_MAX: Final = 100  # characters of a person's name

HEADERS: Final = (
    (
        "Content-Security-Policy",
        (
            "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""Every answer has these. No inline script or style is allowed, and none is used."""

Role = Literal["viewer", "operator", "admin"]
"""A viewer reads. An operator sends dead letters back, edits, settles, silences an alarm, sends a tick. An admin can
also redrive a whole queue, silence all alarms, pause schedules and drain workers."""
ROLES: Final[tuple[Role, ...]] = ("viewer", "operator", "admin")
_GROUPS_MAX: Final = 1_000  # groups in a header

Identify = Callable[[Scope], "str | tuple[str, Role] | None"]


class Access(Struct, frozen=True, kw_only=True):
    """Who may open the page.

    Args:
        token: opens it, in the first URL (`?token=`) or as `Authorization: Bearer`; None: no token does.
        hosts: host names that the page accepts in addition to this machine's; `*` for any.
        trust_header: a header with the person's name, for example `X-Forwarded-User`; only if the page cannot be
            reached except through the proxy that sets it.
        roles_header: a header of the same proxy with the person's groups, separated by commas; None: everybody is an
            admin. roles: group -> role; a group named like a role gives that role, unless this says otherwise.
        identify: a function of the application that mounts the page: the person of a request, with or without a role;
            None for nobody.
        read_only: nothing can be changed.
        actor: the user's name if only the token identifies them.
    """

    token: str | None = None
    hosts: tuple[str, ...] = ()
    trust_header: str | None = None
    roles_header: str | None = None
    roles: Mapping[str, Role] = {}
    identify: Identify | None = None
    read_only: bool = False
    actor: str = "person:web"

    def check(self) -> None:
        """Refuse settings that would leave the page open.

        Raises:
            UsageError: there is no token, header or function, or the token could be guessed.
        """
        if self.token is None and self.trust_header is None and self.identify is None:
            raise errors.UsageError(
                "The page has neither a token, a trusted header nor identify=.",
                meaning="Anyone who reaches it could send messages again. Nothing was started.",
                todo="Give a token of 16 characters or more, trust_header= behind a proxy, or identify= of your app.",
            )
        if self.roles_header is not None and self.trust_header is None:
            raise errors.UsageError(
                f"Roles are read from {self.roles_header}, and no header names the user.",
                meaning="Roles come from the proxy that signs people in.",
                todo="Give --trust-header too.",
            )
        if wrong := sorted(set(self.roles.values()).difference(ROLES)):
            raise errors.UsageError(f"{wrong[0]!r:.60} is not a role.", todo=f"There are {', '.join(ROLES)}.")
        if self.token is not None and len(self.token) < _TOKEN_CHARS_MIN:
            raise errors.UsageError(
                f"The token has {len(self.token)} characters.",
                meaning="It could be guessed.",
                todo=f"Use {_TOKEN_CHARS_MIN} or more, for example secrets.token_urlsafe().",
            )


class Refusal(Struct, frozen=True, kw_only=True):
    """Why a request is refused: an HTTP status, and the three parts of an error."""

    status: int
    what: str
    meaning: str
    todo: str


def check_host(access: Access, request: WebRequest) -> Refusal | None:
    """The refusal of a Host header that is not allowed."""
    host = _name(request.headers.get("host", ""))
    if "*" in access.hosts or host in _LOCAL or host.endswith(".localhost") or host in access.hosts:
        return None
    return Refusal(
        status=421,
        what=f"The page does not answer to the name {redact.one_line(host)[:100]!r}.",
        meaning="A web page of somebody else may have pointed its name at this machine.",
        todo="Open it by the address that was printed, or allow the name with --allow-host.",
    )


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def who(access: Access, request: WebRequest, scope: Scope) -> str | None:
    """The user, as named in the ledger; None if they have no access."""
    if access.identify is not None:
        found = access.identify(scope)
        name = found[0] if isinstance(found, tuple) else found
        return f"person:{_shown(name)}" if name else None
    if access.trust_header is not None:
        name = request.headers.get(access.trust_header.lower(), "").strip()
        return f"person:{_shown(name)}" if name else None
    if access.token is None:
        return None
    bearer = request.headers.get("authorization", "").partition(" ")[2]
    given = _cookie(request, cookie_name(request.base))
    if _equal(bearer, access.token) or _equal(given, cookie_value(access.token)):
        return access.actor
    return None


def role_of(access: Access, request: WebRequest, scope: Scope) -> Role | None:
    """The role of a user; None if none of their groups has a role, or `identify` returned an unknown one."""
    if access.identify is not None:
        found = access.identify(scope)
        role = found[1] if isinstance(found, tuple) else "admin"
        return role if role in ROLES else None
    if access.roles_header is None:
        return "admin"
    groups = request.headers.get(access.roles_header.lower(), "").split(",")[:_GROUPS_MAX]
    known: Mapping[str, Role] = {**{role: role for role in ROLES}, **access.roles}
    given = [known[group.strip()] for group in groups if group.strip() in known]
    return max(given, key=ROLES.index, default=None)


def _shown(name: str) -> str:
    return redact.one_line(name)[:_NAME_CHARS_MAX]


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _cookie(request: WebRequest, name: str) -> str:
    # Not http.cookies: it takes quadratic time on a hostile header (CVE-2024-7592). Our cookie needs no quoting.
    for part in request.headers.get("cookie", "").split(";"):
        found, _, value = part.strip().partition("=")
        if found == name:
            return value
    return ""


def cookie_name(base: str) -> str:
    """The cookie's name, another one for each path, because browsers share cookies between ports."""
    return f"onefold{base.replace('/', '-')}"


def cookie_value(token: str) -> str:
    """The value of the cookie: not the token itself, which could be used elsewhere."""
    return sha256(f"onefold cookie {token}".encode()).hexdigest()


def opens(access: Access, request: WebRequest) -> bool:
    """Whether this request has the token in its address."""
    return access.token is not None and _equal(request.query.get("token", ""), access.token)


def set_cookie(access: Access, request: WebRequest) -> tuple[str, str]:
    """The header that sets the cookie in a browser that brought the token."""
    assert access.token is not None
    secure = "; Secure" if request.headers.get("x-forwarded-proto") == "https" else ""
    value = f"{cookie_name(request.base)}={cookie_value(access.token)}"
    return "Set-Cookie", f"{value}; Path={request.base or '/'}; HttpOnly; SameSite=Strict{secure}"


def check_change(access: Access, request: WebRequest) -> Refusal | None:
    """The refusal of a change if the page is read-only, or if the change does not come from the page itself."""
    if access.read_only:
        return Refusal(
            status=403,
            what="This page is read-only.",
            meaning="It was started with --read-only. Nothing was changed.",
            todo="Use the command line, or a page without --read-only.",
        )
    bearer = request.headers.get("authorization", "").partition(" ")[2]
    if access.token is not None and _equal(bearer, access.token):
        return None  # no other site's page can set this header
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = _own_origin(request, origin) if origin is not None else None
    if site == "same-origin" and own is not False:
        return None
    if site is None and own:
        return None
    return Refusal(
        status=403,
        what="This change does not come from the page itself.",
        meaning=f"Sec-Fetch-Site is {site!r:.40}, Origin {origin!r:.100}. Nothing was changed.",
        todo="Open the page and do it there. A program sends the header Authorization with the word Bearer and the token.",
    )


def _own_origin(request: WebRequest, origin: str) -> bool:
    try:
        return urlsplit(origin).netloc == request.headers.get("host", "")
    except ValueError:
        return False
