"""The page about the Lambda handler, as a reader would: the app, a local SQS, senders, and `onefold lambda`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_local_sqs import URL, serving
from tests.docs.test_pages import blocks, shell, write_files

PAGE = "docs/how-to/lambda-handler.md"


@pytest.mark.slow
def test_the_function_does_what_was_sent(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    lines = next(text for language, _, text in blocks(PAGE) if language == "sh").splitlines()
    with serving(tmp_path) as url:
        script = "\n".join(line.replace(URL, url) for line in lines if not line.startswith("onefold serve"))
        said = shell(f"{script} 2>&1", tmp_path)
    assert all(f"shipped o-{number}" in said for number in range(3)), said
    assert "deleted 3" in said
