"""A file as documents: a CloudFormation or SAM template, one of the CDK or Serverless Framework, or a plan of Terraform.

Its content shows which of them it is. A plan gives a document for each region, and so does a directory of Terraform's own
files, which are read together.
Never here: what a document says (collect_template.py). Invariant: a file of another kind is refused, with what to do next.

Sources: AWS CDK, "Cloud assembly schema" (a directory with the files `cdk.out` and `manifest.json`); Serverless Framework,
"Package" (`.serverless/cloudformation-template-update-stack.json`, with handlers below the service's directory).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from onefold.check import terraform_plan, terraform_resources
from onefold.check.documents import read_document
from onefold.check.facts import Document
from onefold.check.hcl_files import is_hcl
from onefold.check.hcl_modules import plan_in
from onefold.errors import UsageError

_LOOKED_AT: Final = 4_096
_OF_CDK: Final = {
    "BatchSize": "batchSize",
    "FunctionResponseTypes": "reportBatchItemFailures",
    "MaximumBatchingWindowInSeconds": "maxBatchingWindow",
    "MaximumConcurrency": "maxConcurrency",
    "MessageRetentionPeriod": "retentionPeriod",
    "VisibilityTimeout": "visibilityTimeout",
    "maxReceiveCount": "deadLetterQueue.maxReceiveCount",
}
_OF_SERVERLESS: Final = {
    "BatchSize": "batchSize of the event",
    "FunctionResponseTypes": "functionResponseType of the event",
    "MaximumBatchingWindowInSeconds": "maximumBatchingWindow of the event",
    "MaximumConcurrency": "maximumConcurrency of the event",
    "ReservedConcurrentExecutions": "reservedConcurrency of the function",
}


class Input(Struct, frozen=True, kw_only=True):
    """A document, and its account and region, "" if they are not known."""

    document: Document
    account: str = ""
    region: str = ""
    takes_parameters: bool = True


def read_input(path: Path, text: str | None = None) -> list[Input]:
    """Read a file, or a directory of Terraform's files.

    Args:
        path: one of these files stands for its directory.
        text: contents to use instead of the file's, if it is a template.

    Raises:
        NotFoundError, StorageError: it is not there, or cannot be read.
        UsageError: it is not a kind of file that is read here.
    """
    if path.name.endswith(".hcl"):
        raise _of_terraform(path)
    if path.is_dir() or is_hcl(path.name):
        return _of_plan(plan_in(path if path.is_dir() else path.parent))
    if text is None and path.is_file() and _begins_as_plan(path):
        data = terraform_plan.loaded(path)
        if terraform_plan.is_plan(data):
            return _of_plan(terraform_plan.plan_of(str(path), data))
    document = read_document(path, text)
    if {"resource", "terraform"} & document.data.keys() and not document.data.get("Resources"):
        raise _of_terraform(path)
    if is_assembly(path.parent):
        document = replace(document, words=_OF_CDK, is_generated=True)
    elif path.parent.name == ".serverless":
        document = replace(_with_code(document), words=_OF_SERVERLESS, is_generated=True)
    elif "service" in document.data and "provider" in document.data:
        raise UsageError(
            f"{path} is a Serverless Framework file; the framework makes a template from it.",
            todo="Run serverless package, then give .serverless/cloudformation-template-update-stack.json.",
        )
    return [Input(document=document)]


def is_assembly(directory: Path) -> bool:
    """Whether a directory is what `cdk synth` writes."""
    return (directory / "cdk.out").is_file() and (directory / "manifest.json").is_file()


def _begins_as_plan(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            begin = file.read(_LOOKED_AT)
    except OSError:
        return False
    if begin.startswith(b"PK\x03\x04"):
        raise UsageError(
            f"{path} is an archive, as terraform plan -out writes it.",
            todo=f"Run terraform show -json {path.name} > plan.json, then give plan.json.",
        )
    return b'"terraform_version"' in begin.replace(b"\0", b"")  # PowerShell's `>` writes UTF-16


def _of_plan(plan: terraform_plan.Plan) -> list[Input]:
    return [
        Input(document=document, account=account, region=region, takes_parameters=False)
        for document, account, region in terraform_resources.documents_of(plan)
        if document.data["Resources"]
    ]


def _of_terraform(path: Path) -> UsageError:
    return UsageError(
        f"{path} is a Terraform file, which is not read by itself.",
        todo="Name the directory with its *.tf or *.tf.json files; or run terraform plan -out=plan and terraform show -json "
        "plan > plan.json, then give plan.json.",
    )


def _with_code(document: Document) -> Document:
    """A packaged template whose Python functions have the code of the service's directory, which is above it."""
    service = Path(document.file).parent.parent
    resources: dict[str, Any] = dict(document.data.get("Resources") or {})
    for name, properties in _functions(resources):
        handler = properties.get("Handler")
        module = handler.rpartition(".")[0] if isinstance(handler, str) else ""
        if module and os.path.isfile(service / f"{module}.py"):  # False also for a name that is too long
            resources[name] = {**resources[name], "Properties": {**properties, "Code": ".."}}
    return replace(document, data={**document.data, "Resources": resources})


def _functions(resources: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, one in list(resources.items()):
        properties = one.get("Properties") if isinstance(one, dict) else None
        if isinstance(properties, dict) and one.get("Type") == "AWS::Lambda::Function":
            yield name, properties
