"""What is written for the demo, byte for byte; `python -m tests.deploy.golden` renews the files.

A difference here is a difference in everybody's next deployment, so it is looked at line by line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onefold.deploy import cloudformation, terraform
from tests.deploy.declared import demo, planned

GOLDEN = Path(__file__).parent
WRITTEN: dict[str, Callable[[], str]] = {
    "demo.template.json": lambda: cloudformation.to_json(planned(demo)),
    "demo.tf.json": lambda: terraform.to_json(planned(demo)),
}


def renew() -> None:
    """Write the files again."""
    for name, write in WRITTEN.items():
        (GOLDEN / name).write_text(write(), encoding="utf-8")
