"""A session of an editor with `onefold check --lsp`, by pygls, whose client and types are not ours.

It runs in `.venv-tools`: `python lsp_client.py ONEFOLD FOLDER`, and prints what it was answered as one JSON document. FOLDER
has a `template.yaml`; it is opened, asked about, changed without being saved, put right with the first fix, and saved.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from lsprotocol import converters, types
from pygls.lsp.client import LanguageClient

CONVERTER = converters.get_converter()


def plain(value: Any) -> Any:
    return CONVERTER.unstructure(value)


async def session(program: str, folder: Path) -> dict[str, Any]:
    client = LanguageClient("a test", "1")
    shown: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()

    @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def published(params: types.PublishDiagnosticsParams) -> None:
        shown.put_nowait(params)

    async def diagnostics() -> list[types.Diagnostic]:
        return list((await asyncio.wait_for(shown.get(), 60)).diagnostics)

    file = folder / "template.yaml"
    text = file.read_text()
    named = types.TextDocumentIdentifier(uri=file.as_uri())
    related = types.PublishDiagnosticsClientCapabilities(related_information=True)
    capabilities = types.ClientCapabilities(
        text_document=types.TextDocumentClientCapabilities(publish_diagnostics=related)
    )
    await client.start_io(program, "check", "--lsp", cwd=str(folder))
    started = await client.initialize_async(types.InitializeParams(capabilities=capabilities, root_uri=folder.as_uri()))
    client.initialized(types.InitializedParams())
    client.text_document_did_open(types.DidOpenTextDocumentParams(types.TextDocumentItem(named.uri, "yaml", 1, text)))
    opened = await diagnostics()
    at = opened[0].range
    hover = await client.text_document_hover_async(types.HoverParams(named, at.start))
    beside = await client.text_document_hover_async(types.HoverParams(named, types.Position(0, 0)))
    asked = types.CodeActionParams(named, at, types.CodeActionContext(diagnostics=opened[:1]))
    actions = await client.text_document_code_action_async(asked)

    def change(version: int, new: str) -> None:
        whole = types.TextDocumentContentChangeWholeDocument(text=new)
        of = types.VersionedTextDocumentIdentifier(version, named.uri)
        client.text_document_did_change(types.DidChangeTextDocumentParams(of, [whole]))

    change(2, f"# a line more\n{text}")
    stale = await client.text_document_code_action_async(asked)
    assert actions is not None
    [first] = [one for one in actions if isinstance(one, types.CodeAction)][:1]
    assert first.edit is not None
    assert first.edit.changes is not None
    fixed = applied(text, first.edit.changes[named.uri])
    change(3, fixed)
    file.write_text(fixed)
    client.text_document_did_save(types.DidSaveTextDocumentParams(named))
    saved = await diagnostics()
    client.text_document_did_close(types.DidCloseTextDocumentParams(named))
    closed = await diagnostics()
    await client.shutdown_async(None)
    client.exit(None)
    server = client._server
    assert server is not None
    code = await asyncio.wait_for(server.wait(), 60)
    await client.stop()
    return {
        "capabilities": plain(started.capabilities), "opened": plain(opened), "hover": plain(hover),
        "beside": plain(beside), "actions": plain(actions), "stale": plain(stale), "fixed": fixed,
        "saved": plain(saved), "closed": plain(closed), "code": code,
    }  # fmt: skip


def applied(text: str, edits: Any) -> str:
    lines = text.split("\n")
    for edit in edits:
        start, end = edit.range.start, edit.range.end
        assert start.line == end.line
        line = lines[start.line]
        lines[start.line] = line[: start.character] + edit.new_text + line[end.character :]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(session(sys.argv[1], Path(sys.argv[2])))))
