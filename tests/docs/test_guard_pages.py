"""The pages about the guard alone, run as they stand: a batch through Powertools twice, a Celery task twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs.test_pages import shell, write_files

PAGE = "docs/how-to/adopt-only-the-guard.md"


@pytest.mark.slow
def test_a_batch_of_powertools_charges_once(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    records = [
        {"messageId": f"m-{place}", "body": json.dumps({"invoice": invoice, "pence": 500}), "eventSource": "aws:sqs"}
        for place, invoice in enumerate(["i-1", "i-2", "i-1"])
    ]
    (tmp_path / "twice.py").write_text(
        f"from handler import handler\nevent = {{'Records': {records!r}}}\n"
        "for _ in range(2):\n    print(handler(event, None))\n"
    )
    said = shell("RECORDS=sqlite:///records.db python twice.py", tmp_path)
    assert said.count("charging i-1") == said.count("charging i-2") == 1
    assert said.count("{'batchItemFailures': []}") == 2


@pytest.mark.slow
def test_a_celery_task_books_once(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    (tmp_path / "twice.py").write_text(
        "from tasks import app, book\napp.conf.task_always_eager = True\n"
        "print([book.delay('o-1').get() for _ in range(2)])\n"
    )
    said = shell("RECORDS=sqlite:///records.db python twice.py", tmp_path)
    assert said == "booking o-1\n['label-o-1', 'label-o-1']\n"
