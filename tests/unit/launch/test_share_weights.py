"""Plans with --share-weights: which ranks share frozen parameters, and the reason if they don't."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from launch_helpers import IPEX, STOCK, cpu, machine, plan, value

from ipexctl.node.common.plan import to_json
from ipexctl.node.common.rank_options import SHARE_WEIGHTS, Choice
from ipexctl.node.common.run_options import Export

OFF = (Export("IPEXCTL_HOOKS", "-x", "off"),)


@pytest.mark.parametrize(
    ("hosts", "options", "choice"),
    [
        (1, {"n": 2}, Choice("auto", "default")),
        (2, {"n": 2}, Choice("auto", "default")),
        (2, {"n": 3}, Choice("auto", "default")),
        (1, {"n": 1}, Choice("auto", "default")),
        (2, {"n": 2, "share_weights": "off"}, Choice("off", "asked")),
        (2, {"n": 2, "exports": OFF}, Choice("off", "hooks-off")),
        (2, {"n": 2, "backend": "none"}, Choice("off", "no-process-group")),
        (2, {"n": 2, "backend": "ccl", "env": IPEX}, Choice("off", "other-backend")),
        (2, {"n": 2, "env": replace(STOCK, packages={})}, Choice("off", "torch-unknown")),
        (2, {"n": 2, "env": replace(STOCK, packages={"torch": "2.0.1"})}, Choice("off", "torch-too-old")),
    ],
)
def test_ranks_share_unless_their_hooks_could_not_meet(hosts: int, options: dict[str, Any], choice: Choice) -> None:
    found = plan(*(machine(cpu(4), number) for number in range(1, hosts + 1)), **options)
    assert found.choice(SHARE_WEIGHTS) == choice
    assert to_json(found)["share_weights"]["reason"] == choice.reason
    assert value(found, "IPEXCTL_SHARE_WEIGHTS") == ("auto" if choice.mode == "auto" else None)
