"""Private: what coding agents and other programs with a language model can see and do, as the tools of an MCP server.

An interface to `app.admin`, like the command line and the page. May change in any release; the tools are documented.
"""
