"""The page about other people's stacks: what it gives and takes is there, its templates are clean, its commands run.

The CDK and Terraform are not installed here: their blocks are held against the names in what `onefold synth` writes.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from onefold.check.documents import read_document
from tests.deploy.test_templates import tool
from tests.docs.test_pages import blocks, shell

PAGE = "docs/how-to/inside-your-own-stack.md"
DEPLOYED = "docs/how-to/deploy-to-aws.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, and what its commands write."""
    found = tmp_path_factory.mktemp("stack")
    for page in (DEPLOYED, PAGE):
        for _, title, text in blocks(page):
            if title:
                (found / title).write_text(text, encoding="utf-8")
    for language, _, text in blocks(PAGE):
        if language == "sh":
            shell(text, found)
    return found


def template(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "jobs.template.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("file", ["parent.yaml", "sam.yaml"])
def test_a_parent_gives_parameters_and_takes_outputs_that_are_there(folder: Path, file: str) -> None:
    data = read_document(folder / file).data
    given = data["Resources"]["Jobs"]["Properties"]["Parameters"]
    assert given.keys() <= template(folder)["Parameters"].keys()
    required = {name for name, one in template(folder)["Parameters"].items() if "Default" not in one}
    assert required <= given.keys()
    assert data["Outputs"]["EngineUrl"]["Value"] == {"Fn::GetAtt": ["Jobs", "Outputs.EngineUrl"]}
    assert "EngineUrl" in template(folder)["Outputs"]
    # W3002 asks for `aws cloudformation package`, which the page names
    linted = tool("cfn-lint", "--ignore-checks", "W3002", "--", folder / file)
    assert (linted.returncode, linted.stdout) == (0, "")


@pytest.mark.slow
def test_the_construct_names_what_the_template_has(folder: Path) -> None:
    tree = ast.parse((folder / "jobs_stack.py").read_text())
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert template(folder)["Parameters"].keys() <= texts
    assert "EngineUrl" in texts & template(folder)["Outputs"].keys()


@pytest.mark.slow
def test_the_terraform_module_is_given_its_variables(folder: Path) -> None:
    module = json.loads((folder / "main.tf.json").read_text())
    text = (folder / "infrastructure.tf").read_text()
    block = re.search(r'module "jobs" \{(.*?)\n\}', text, re.DOTALL)
    assert block is not None
    assert set(re.findall(r"(\w+)\s*=", block[1])) == {"source", *module["variable"]}
    assert set(re.findall(r"module\.jobs\.(\w+)", text)) <= module["output"].keys()


@pytest.mark.slow
def test_overrides_are_in_what_is_written(folder: Path) -> None:
    assert template(folder)["Resources"]["OrdersQueue"]["Properties"]["KmsDataKeyReusePeriodSeconds"] == 900
    (stages,) = [text for language, title, text in blocks(PAGE) if language == "python" and not title]
    names: dict[str, Any] = {}
    exec(stages, names)
    assert names["orders"].function is names["files"]
