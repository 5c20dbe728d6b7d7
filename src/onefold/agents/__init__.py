"""Private: what coding agents and other programs with a language model may see and do, as tools of an MCP server.

A face beside the command line and the page: it calls `app.admin`. May change with any release; the tools are documented.
"""
