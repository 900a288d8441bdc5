"""Checks a manifest by the schema of its custom resource, as the API server would with strict validation.

The schemas are in `crds/`, with their sources and versions. A field that the schema lacks would be removed without a
word by the server, so it fails here. A rule in CEL is written here in the words of JSON schema, once for both kinds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import jsonschema
import yaml

CRDS: Final = Path(__file__).parent / "crds"
NAME: Final = {"type": "string", "pattern": r"^[a-z]([-a-z0-9]*[a-z0-9])?\Z", "maxLength": 63 - len("-worker-9999")}
"""Services and pods are named after it: DNS-1035."""
METADATA: Final = {"type": "object", "properties": {"name": NAME}, "required": ["name"], "additionalProperties": False}


def checked(kind: str, text: str) -> dict[str, Any]:
    """The manifest in a text, after a check by `crds/KIND.yaml`."""
    schema = _closed(yaml.safe_load((CRDS / f"{kind}.yaml").read_text()))
    schema["properties"]["metadata"] = METADATA
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    job: dict[str, Any] = yaml.safe_load(text)
    jsonschema.Draft202012Validator(schema).validate(job)
    return job


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _closed(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made
