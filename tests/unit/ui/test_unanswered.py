"""The JSON document of a call with `--json` that ends early."""

from __future__ import annotations

import pytest

from ipexctl.ui.errors import requested_schema


@pytest.mark.parametrize(
    ("call", "schema"),
    [
        ("doctor --json", "ipexctl.doctor/1"),
        ("exec --json -H nofile -- true", "ipexctl.exec/1"),
        ("lab up --json --hosts 999", "ipexctl.lab-up/1"),
        ("run --dry-run --json train.py", "ipexctl.run/1"),
        ("doctor", None),
        ("exec -- ls --json", None),
        ("run train.py --json", None),
        ("run -m train --json", None),
        ("--json", None),
    ],
)
def test_only_a_call_that_asks_for_json_itself_gets_a_document(call: str, schema: str | None) -> None:
    assert requested_schema(call.split()) == schema
