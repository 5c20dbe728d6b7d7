"""Three shapes of app are clean in cfn-lint and checkov, but for what decision 0009 argues; and everything has its tags."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from onefold.deploy import cloudformation, terraform
from tests.deploy.shapes import SHAPES
from tests.deploy.test_templates import TOOLS, argued, tool

# Of a template: which of its resources could have tags and have none, by the schemas that come with cfn-lint.
UNTAGGED = """
import json, sys
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER as schemas
found = json.load(sys.stdin)["Resources"]
kinds = {one["Type"] for one in found.values()}
can = {kind: "Tags" in schemas.get_resource_schema("eu-west-1", kind).schema["properties"] for kind in kinds}
print(json.dumps(sorted(name for name, one in found.items() if can[one["Type"]] and "Tags" not in one["Properties"])))
"""


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(shape: str, folder: Path) -> tuple[Path, Path]:
    """The template and the module of a shape."""
    plan = SHAPES[shape]()
    template, module = folder / f"{shape}.json", folder / f"{shape}.tf.json"
    template.write_text(cloudformation.to_json(plan))
    # checkov's reader of Terraform JSON knows resources and data, and stumbles over the other blocks
    module.write_text(
        json.dumps({key: one for key, one in terraform.module(plan).items() if key in ("resource", "data")})
    )
    return template, module


@pytest.mark.slow
def test_cfn_lint_has_nothing_to_say_and_everything_has_its_tags(shape: str, tmp_path: Path) -> None:
    template, _ = written(shape, tmp_path)
    linted = tool("cfn-lint", "--non-zero-exit-code", "informational", "--include-checks", "I", "--", template)
    assert (linted.returncode, linted.stdout, linted.stderr) == (0, "", "")
    done = subprocess.run(
        [TOOLS / "python", "-c", UNTAGGED], input=template.read_text(), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []


@pytest.mark.slow
@pytest.mark.timeout(600)  # checkov takes a quarter of a minute of a whole core
def test_checkov_fails_nothing_that_is_not_argued(tmp_path: Path) -> None:
    files = [file for shape in SHAPES for file in written(shape, tmp_path)]
    # both settings keep it off the network; it needs none for these checks
    words = ("--framework", "cloudformation", "terraform_json", "--output", "json", "--skip-download")
    answers = json.loads(tool("checkov", *words, "--file", *files, BC_SKIP_MAPPING="TRUE").stdout)
    assert {one["check_type"] for one in answers} == {"cloudformation", "terraform_json"}
    found: dict[str, set[str]] = {shape: set() for shape in SHAPES}
    for one in answers:
        assert one["summary"]["parsing_errors"] == 0
        assert one["summary"]["passed"] > 100
        for check in one["results"]["failed_checks"]:
            found[Path(check["file_path"]).name.partition(".")[0]].add(check["check_id"])
    assert set().union(*found.values()) == argued().keys(), "argue it, or take it out of docs/decisions/0009"
    assert not found["vpc-with-key"] & {check for check, passes in argued().items() if passes}
