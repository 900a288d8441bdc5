"""What a probe printed, as Facts. Pure: any text gives facts, with holes where lines are missing or mangled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.facts.answers import read_answers, seconds
from ipexctl.facts.facts import Facts
from ipexctl.facts.parse_cpu import parse_cpu
from ipexctl.facts.parse_network import parse_network
from ipexctl.facts.parse_software import parse_software
from ipexctl.facts.parse_system import (
    parse_account,
    parse_activity,
    parse_batch,
    parse_environment,
    parse_home,
    parse_limits,
    parse_logind,
    parse_memory,
    parse_mounts,
    parse_security,
    parse_system,
    parse_tmp,
)
from ipexctl.facts.probe import PARTS

if TYPE_CHECKING:
    from ipexctl.facts.answers import Answers


def parse(text: str) -> Facts:
    """Facts from the probe's output, whole or not."""
    said = read_answers(text)
    system = parse_system(said)
    mounts = parse_mounts(said)
    return Facts(
        system=system,
        cpu=parse_cpu(said, system.arch),
        memory=parse_memory(said, mounts),
        limits=parse_limits(said),
        network=parse_network(said),
        home=parse_home(said, mounts),
        tmp=parse_tmp(said, mounts),
        account=parse_account(said),
        software=parse_software(said),
        environment=parse_environment(said),
        logind=parse_logind(said),
        security=parse_security(said),
        batch=parse_batch(said),
        activity=parse_activity(said),
        clock=seconds(said.first("clock")),
        complete="end" in said,
        cut=_cut(said),
    )


def _cut(said: Answers) -> tuple[str, ...]:
    """The parts that never said they were done, and `names` where some of them got no answer in time."""
    finished = set(said.all("done"))
    known = len({line.partition(" ")[0] for line in said.all("resolved")})
    if known <= len(said.words("peers")) and any(line.startswith("getent ") for line in said.all("tool")):
        finished.discard("names")
    return tuple(part for part in PARTS if part not in finished)
