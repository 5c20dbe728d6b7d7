"""Modules for frameworks on a machine without the framework: each names what to install, and nothing else needs one."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "package", "says"),
    [
        ("onefold.sqlalchemy", "sqlalchemy", "pip install 'onefold[sqlalchemy]'"),
        ("onefold.powertools", "aws_lambda_powertools", "pip install 'onefold[powertools]'"),
        ("onefold.django.contract", "django_tasks", "pip install django-tasks"),
    ],
)
def test_a_module_without_its_framework_says_what_to_install(module: str, package: str, says: str) -> None:
    gone = {package: None, "django.tasks": None}
    program = f"import sys; sys.modules.update({gone!r}); import onefold; import {module}"
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert says in done.stderr


def test_onefold_itself_imports_no_framework() -> None:
    names = "{'sqlalchemy', 'django', 'aws_lambda_powertools', 'fastapi', 'celery', 'flask'}"
    program = f"import sys, onefold; sys.exit(len({names} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
