"""`onefold web`: the page of an app or an engine, until stopped.

Prints the address that opens it. Never here: what the page shows (`onefold/web`), how it is served (`web/serving.py`).
Invariant: only the printed address or the trusted proxy opens the page.
"""

from __future__ import annotations

import faulthandler
from typing import Any

import click
import msgspec

from onefold import redact
from onefold.cli import options, render, target
from onefold.cli.program import Answer, declared
from onefold.clock import SystemClock
from onefold.entropy import SystemEntropy
from onefold.errors import UsageError
from onefold.local.request_handler import is_loopback
from onefold.web import serving
from onefold.web.application import Page
from onefold.web.safety import ROLES, Access, Role


@declared(
    "web", example="onefold web shop:app\nonefold web --url sqlite:///.onefold/shop.db --read-only --hide-payloads"
)
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_store_url
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=options.WholeType(0, 65_535), default=serving.PORT, show_default=True, help="0 takes a free one."
)
@click.option("--read-only", is_flag=True, help="Nothing can be changed on the page.")
@click.option("--hide-payloads", is_flag=True, help="Show no bodies, attributes or results.")
@click.option(
    "--hide-fields",
    metavar="NAMES",
    help="Hide these fields of payloads, separated by commas: email,card.number",
)
@click.option("--base-path", metavar="PATH", default="", help="What its URLs begin with behind a proxy: /ops")
@click.option("--allow-host", "hosts", metavar="NAME", multiple=True, help="Also accept this name in the Host header.")
@click.option(
    "--trust-header",
    metavar="NAME",
    help="Admit the user that a proxy names in this header, for example X-Forwarded-User; the token is then not accepted.",
)
@click.option(
    "--roles-header",
    metavar="NAME",
    help="The proxy's header with the groups of that person, for example X-Forwarded-Groups; without it everybody is admin.",
)
@click.option(
    "--role",
    "roles",
    metavar="ROLE=GROUP",
    multiple=True,
    help="What a group may do: viewer, operator or admin. A group that has the name of a role has that role anyway.",
)
@click.option(
    "--token",
    metavar="TOKEN",
    envvar="ONEFOLD_WEB_TOKEN",
    help="The token that opens it; ONEFOLD_WEB_TOKEN is safer. Random by default.",
)
def command(words: tuple[str, ...], url: str | None, port: int, token: str | None, **given: Any) -> Answer:
    """Queues, dead letters, held operations, runs and single operations as a page, until stopped.

    The printed address opens it once; the browser then has a cookie. Everything that can be changed on it is previewed,
    needs a reason, and is written to the history with your name.
    """
    host, hosts, header = given["host"], given["hosts"], given["trust_header"]
    if header is not None and token is not None and _typed("token"):
        raise UsageError("Both a token and --trust-header were given.", todo="Give one of them.")
    token = None if header is not None else token or _drawn()
    app, _ = target.split(words, 0, names="")
    found = target.find(app, url, records=True)
    access = Access(
        token=token,
        hosts=(*hosts, host),
        trust_header=header,
        roles_header=given["roles_header"],
        roles=_roles(given["roles"]),
        read_only=given["read_only"],
        actor=target.actor(),
    )
    page = Page(
        found.session,
        access=access,
        app=found.app,
        target=found.words,
        base_path=given["base_path"],
        hide_payloads=given["hide_payloads"],
        hide_fields=[one.strip() for one in (given["hide_fields"] or "").split(",") if one.strip()],
    )
    wants_json = click.get_current_context().obj["json"]
    base = f"/{given['base_path'].strip('/')}" if given["base_path"].strip("/") else ""

    def ready(at: str) -> None:
        opens = f"{at}{base}/" + (f"?token={token}" if token is not None else "")
        if wants_json:
            click.echo(msgspec.json.encode({"url": f"{at}{base}/", "open": opens}).decode())
            return
        lines = [f"Open  {opens}", f"  shows   {found.session.url}"]
        if header is not None:
            lines.append(f"  admits the user that the header {header} names; only the proxy may reach this port")
        if not is_loopback(host):
            lines.append(
                "  warning it can be reached from other machines, without encryption: put a proxy with TLS in front of it"
            )
        click.echo(redact.printable("\n".join([*lines, "Ctrl-C stops it."])))

    faulthandler.enable()  # if a library crashes this process, its last output says where
    name = serving.run(page, host=host, port=port, clock=SystemClock(), ready=ready)
    render.note(f"ended by {name}")
    return Answer(None, said=True)


def _roles(given: tuple[str, ...]) -> dict[str, Role]:
    found: dict[str, Role] = {}
    for text in given:
        role, equals, group = text.partition("=")
        if role not in ROLES or not equals or not group.strip():
            raise UsageError(
                f"--role {text!r:.80} is not ROLE=GROUP.", todo="For example: --role operator=payments-team"
            )
        found[group.strip()] = role
    return found


def _drawn() -> str:
    entropy = SystemEntropy()
    return entropy.token() + entropy.token()


def _typed(parameter: str) -> bool:
    return click.get_current_context().get_parameter_source(parameter) is click.core.ParameterSource.COMMANDLINE
