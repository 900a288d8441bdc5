"""Parses the probe's output into Facts. Pure; missing or broken lines give missing values."""

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
    """Facts from the probe's output, complete or not."""
    answers = read_answers(text)
    system = parse_system(answers)
    mounts = parse_mounts(answers)
    return Facts(
        system=system,
        cpu=parse_cpu(answers, system.arch),
        memory=parse_memory(answers, mounts),
        limits=parse_limits(answers),
        network=parse_network(answers),
        home=parse_home(answers, mounts),
        tmp=parse_tmp(answers, mounts),
        account=parse_account(answers),
        software=parse_software(answers),
        environment=parse_environment(answers),
        logind=parse_logind(answers),
        security=parse_security(answers),
        batch=parse_batch(answers),
        activity=parse_activity(answers),
        clock=seconds(answers.first("clock")),
        complete="end" in answers,
        cut=_cut(answers),
    )


def _cut(answers: Answers) -> tuple[str, ...]:
    """The parts that did not finish; `names` also if some names got no answer in time."""
    finished = set(answers.all("done"))
    known = len({line.partition(" ")[0] for line in answers.all("resolved")})
    if known <= len(answers.words("peers")) and any(line.startswith("getent ") for line in answers.all("tool")):
        finished.discard("names")
    return tuple(part for part in PARTS if part not in finished)
