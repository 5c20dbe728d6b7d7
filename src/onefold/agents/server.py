"""`onefold mcp`: the tools over the Model Context Protocol, on standard input and output. Needs the extra `mcp`.

The official SDK implements the protocol (docs/decisions/0050). Never here: what a tool does.
Invariant: nothing but the protocol is written to standard output.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

import onefold
from onefold import redact
from onefold.agents.answers import NOTICE
from onefold.agents.tools import CHANGES, LOOKS, Tools
from onefold.errors import OnefoldError

_TEXT_CHARS_MAX = 2_000


def server_of(tools: Tools, *, app: str, allows_changes: bool) -> MCPServer[Any]:
    """The MCP server that offers these tools.

    Args:
        app: the app's name. allows_changes: offer the tools that change something.
    """
    changes = (
        "Plans may be carried out, each after a person has agreed to it."
        if allows_changes
        else "Nothing can be changed: plans show what a person could do with the onefold command."
    )
    about = f"Background jobs of the app {app}; the effect of each happens once. Begin with status."
    server: MCPServer[Any] = MCPServer(
        name="onefold",
        version=onefold.__version__,
        instructions=f"{about} {changes} {NOTICE}",
        log_level="WARNING",
    )
    for tool in tools.named(LOOKS):
        server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))(_telling(tool))
    for tool in tools.named(CHANGES) if allows_changes else ():
        hints = ToolAnnotations(
            read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
        )
        server.tool(annotations=hints)(_telling(tool))
    return server


def _telling(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The tool, with errors that say what happened, what it means and what to do next."""

    @functools.wraps(tool)
    def call(**given: Any) -> dict[str, Any]:
        try:
            return tool(**given)
        except OnefoldError as error:
            text = " ".join(filter(None, (f"{error.code}:", error.what, error.meaning, error.todo)))
            raise ToolError(redact.printable(text[:_TEXT_CHARS_MAX])) from error

    return call
