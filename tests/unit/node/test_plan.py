"""The plan of a run as JSON, and read back."""

from __future__ import annotations

import json
from typing import Any

from launch_helpers import IPEX, cpu, machine, plan, with_live_run

from ipexctl.node.common.json_parser import parse_json
from ipexctl.node.common.json_records import decode
from ipexctl.node.common.plan import SCHEMA, Commit, Plan, to_json
from ipexctl.spec import Export, RunSpec, asked_of

EXPORTS = (Export("ODD", "\udcff é"), Export("TOKEN", "hunter2", secret=True, source="--env-file"))
FOUND = plan(
    machine(cpu(64, 2), 1), machine(cpu(16), 2, activity=with_live_run(0, 1)),
    env=IPEX, ppn=2, exports=EXPORTS, time_limit=9.5,
)._replace(commit=Commit("0" * 40, "main"), before_start={"sync": 0.5})  # fmt: skip


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(to_json(FOUND)))
    return found


def test_a_plan_is_read_back_from_its_json() -> None:
    found = parse_json(json.dumps({**document(), "of a later version": 1}))
    assert repr(decode(Plan, found, "the plan")) == repr(FOUND)  # types, too
    assert (found["schema"], found["world_size"], found["time_limit"]) == (SCHEMA, 4, 9.5)
    assert found["allreduce"] == {"mode": "backend", "reason": "other-backend", "hosts": []}
    assert found["hostfile"] == "10.1.0.1:2\nnode2:2\n"


def test_a_plan_has_what_was_asked_but_no_secret() -> None:
    spec = RunSpec("script", ("train.py",), exports=EXPORTS, notify="curl https://x/token")
    assert json.loads(json.dumps(asked_of(spec))) == asked_of(spec)
    assert asked_of(spec)["exports"] == [
        {"name": "ODD", "source": "-x", "value": "\udcff é"},
        {"name": "TOKEN", "source": "--env-file", "value": None},
    ]
    assert not {"notify", "secret_files"} & set(asked_of(spec))
    assert "hunter2" not in json.dumps(document())
