"""`onefold mcp`: an app's operations as tools for an agent, over standard input and output. `agents/` has them.

Invariant: it only reads, unless --allow-changes is given.
"""

from __future__ import annotations

import click

from onefold import extras
from onefold.admin.api import Admin
from onefold.admin.session import jobs_of, open_session
from onefold.agents.answers import Answers
from onefold.agents.tools import Tools
from onefold.cli import target
from onefold.cli.program import Answer, declared
from onefold.web.hiding import Hiding


@declared(
    "mcp",
    example="onefold mcp shop:app\nonefold mcp shop:app --allow-changes --show-payloads --hide-fields email,card.number",
)
@click.argument("words", metavar="[APP]", nargs=-1)
@click.option("--allow-changes", is_flag=True, help="Offer redrive and settle: by a plan's digest, with a reason.")
@click.option("--show-payloads", is_flag=True, help="Show the payloads of single dead letters.")
@click.option("--hide-fields", metavar="NAMES", default="", help="With --show-payloads: hide these, comma-separated.")
def command(words: tuple[str, ...], allow_changes: bool, show_payloads: bool, hide_fields: str) -> Answer:
    """Serve an app's operations to an agent, over the Model Context Protocol on standard input and output.

    It only reads: status, why, dead letters, held operations, runs, alarms, queues, and plans that change nothing. Without
    --allow-changes it opens the engine for reading. Payloads are hidden. What others wrote is bounded and marked as data.
    """
    name, _ = target.split(words, 0, names="")
    found = target.find_app(name)
    assert found.app is not None
    with extras.needed("onefold mcp", "mcp"):
        from onefold.agents.server import server_of
    fields = tuple(one.strip().lower() for one in hide_fields.split(",") if one.strip())
    actor = target.actor().replace("person:", "agent-of:", 1)
    session = open_session(found.app.url, actor=actor, jobs=jobs_of(found.app), read_only=not allow_changes)
    try:
        tools = Tools(Admin(lambda: session), Answers(hiding=Hiding(payloads=not show_payloads, fields=fields)))
        server_of(tools, app=found.app.name, allows_changes=allow_changes).run("stdio")
    finally:
        session.close()
    return Answer(None, said=True)
