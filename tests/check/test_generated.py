"""What other tools generate is read where they write it: `cdk.out` of the CDK, `.serverless` of the Serverless Framework."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.check.test_check import CORPUS, run

Json = dict[str, Any]

HANDLER = "def handler(event, context):\n    return {'batchItemFailures': []}\n"


def assembly(directory: Path) -> Path:
    """A directory as `cdk synth` writes it: a stack, a stage with a stack of its own, and an asset with code."""
    template = json.loads((CORPUS / "wrong" / "DUP002.json").read_text())
    stage = directory / "assembly-Prod"
    asset = directory / "asset.3f2b"
    for place in (directory, stage):
        place.mkdir(parents=True)
        (place / "cdk.out").write_text('{"version":"48.0.0"}')
        (place / "manifest.json").write_text('{"version": "48.0.0", "artifacts": {}}')
    asset.mkdir()
    (asset / "index.py").write_text("import boto3\n" + HANDLER)
    (asset / "sam.template.json").write_text(json.dumps(template))
    (directory / "tree.json").write_text('{"Resources": {}}')
    (directory / "Shop.template.json").write_text(json.dumps(template))
    (stage / "ProdShop.template.json").write_text(json.dumps(template))
    return directory


def test_an_assembly_of_the_cdk_is_read_although_git_ignores_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("cdk.out\n.serverless\n")
    directory = assembly(tmp_path / "cdk.out")
    document = json.loads(run(str(directory), "--format", "json").output)
    assert [Path(one).name for one in document["files"]] == ["Shop.template.json", "ProdShop.template.json"]
    assert document["python_files"] == []
    assert [one["rule"] for one in document["findings"]] == ["DUP002", "DUP002"]
    assert document["findings"][0]["fix"]["description"].endswith("Here VisibilityTimeout is visibilityTimeout.")
    assert run(str(tmp_path), "--format", "concise").output == ""


def test_what_the_cdk_generates_is_not_edited(tmp_path: Path) -> None:
    file = assembly(tmp_path / "cdk.out") / "Shop.template.json"
    before = file.read_text()
    assert "--fix would change 0 files" in run(str(file), "--diff", "--unsafe").output
    run(str(file), "--fix", "--unsafe")
    assert file.read_text() == before


def test_findings_that_a_construct_acknowledges_are_suppressed(tmp_path: Path) -> None:
    """cdk-nag writes what was acknowledged into the metadata of the resource."""
    file = assembly(tmp_path / "cdk.out") / "Shop.template.json"
    template = json.loads(file.read_text())
    [name] = {one["resource"] for one in json.loads(run(str(file), "--format", "json").output)["findings"]}
    rules = [{"id": "DUP002", "reason": "no run takes longer than 1 s"}]
    template["Resources"][name]["Metadata"] = {"cdk_nag": {"rules_to_suppress": rules}}
    file.write_text(json.dumps(template))
    answer = run(str(file))
    assert answer.exit_code == 0
    assert "1 suppressed" in answer.output
    rules[0]["reason"] = ""
    file.write_text(json.dumps(template))
    assert "DUP002" in run(str(file)).output


def service(tmp_path: Path, handler: str) -> Path:
    """What `serverless package` writes for a service with one function behind a queue."""
    file = tmp_path / ".serverless" / "cloudformation-template-update-stack.json"
    file.parent.mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "ship.py").write_text(handler)
    code = {"S3Bucket": {"Ref": "ServerlessDeploymentBucket"}, "S3Key": "serverless/shop/dev/1-2/shop.zip"}
    resources: Json = {
        "ServerlessDeploymentBucket": {"Type": "AWS::S3::Bucket"},
        "Orders": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "orders", "VisibilityTimeout": 36}},
        "ShipLambdaFunction": {
            "Type": "AWS::Lambda::Function",
            "Properties": {
                "Code": code, "Handler": "src/ship.handler", "Runtime": "python3.12", "FunctionName": "shop-dev-ship",
                "MemorySize": 1024, "Timeout": 6, "Role": {"Fn::GetAtt": ["IamRoleLambdaExecution", "Arn"]},
            },
        },
        "ShipEventSourceMappingSQSOrders": {
            "Type": "AWS::Lambda::EventSourceMapping",
            "DependsOn": ["IamRoleLambdaExecution"],
            "Properties": {
                "BatchSize": 10, "EventSourceArn": {"Fn::GetAtt": ["Orders", "Arn"]},
                "FunctionName": {"Fn::GetAtt": ["ShipLambdaFunction", "Arn"]}, "Enabled": True,
            },
        },
    }  # fmt: skip
    file.write_text(json.dumps({"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources}))
    return file


def test_a_packaged_service_is_read_with_the_code_of_its_directory(tmp_path: Path) -> None:
    file = service(tmp_path, HANDLER.replace("[]", "[r['messageId'] for r in event['Records']]"))
    answer = run(str(file), "--format", "json")
    document = json.loads(answer.output)
    assert {one["rule"] for one in document["findings"]} == {"LOS001", "DUP006"}
    [lost] = [one for one in document["findings"] if one["rule"] == "DUP006"]
    assert lost["fix"]["description"].endswith("Here FunctionResponseTypes is functionResponseType of the event.")
    assert [Path(one).name for one in document["python_files"]] == ["ship.py"]
    assert json.loads(run(str(file.parent), "--format", "json").output)["findings"] == document["findings"]
    file.write_text(file.read_text().replace("src/ship.handler", f"{'x' * 5_000}.handler"))  # no name of a file
    assert [one["rule"] for one in json.loads(run(str(file), "--format", "json").output)["findings"]] == [
        "DUP004",
        "LOS001",
    ]


def test_a_service_that_is_not_packaged_is_refused_with_the_next_step(tmp_path: Path) -> None:
    file = tmp_path / "serverless.yml"
    file.write_text("service: shop\nprovider: {name: aws}\nfunctions: {}\n")
    answer = run(str(file))
    assert answer.exit_code == 2
    assert "serverless package" in answer.output
