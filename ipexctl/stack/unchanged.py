"""Answers `ipexctl install` in one round trip per host when there is nothing to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ipexctl.facts.answers import read_answers
from ipexctl.facts.facts import Facts, parse
from ipexctl.facts.probe import environment_command
from ipexctl.limits import ENV_UNCHANGED_CHECK
from ipexctl.node.common.json_parser import parse_object
from ipexctl.node.env.check import check_packages, find_problems
from ipexctl.remote.node_call import script_text
from ipexctl.remote.reply import MalformedReply
from ipexctl.remote.session import capture
from ipexctl.stack.env.environment import machine_token, parse_result
from ipexctl.stack.lock.lock import Lock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.hosts.host import Host
    from ipexctl.node.env.replies import VerifyResult
    from ipexctl.remote.session import Session
    from ipexctl.stack.install_context import InstallContext


class IntactEnv(NamedTuple):
    """An environment that matches its lock and was verified since the host's last boot."""

    facts: Facts
    name: str
    lock: Lock
    verified: VerifyResult


def find_intact(context: InstallContext) -> dict[str, IntactEnv] | None:
    """Host → environment of the requested name; None unless it is intact on all hosts."""
    request = context.request
    command = environment_command(request.home, request.name, script_text("env.check"))

    def check(host: Host, session: Session) -> IntactEnv | None:
        with context.timed(host.name, "checked the environment"):
            output = capture(
                session, command, timeout=request.timeout or ENV_UNCHANGED_CHECK, cancel=context.pool.cancel
            )
        return parse_intact(output.stdout.decode("utf-8", "replace"), host, request.name)

    found = {done.host.name: done.result for done in context.pool.each(context.hosts, check) if done.result}
    return {host.name: found[host.name] for host in context.hosts} if len(found) == len(context.hosts) else None


def parse_intact(text: str, host: Host, name: str) -> IntactEnv | None:
    facts, answers = parse(text), read_answers(text)
    env = next((env for env in facts.software.envs if name in env.names), None)
    if env is None or not facts.complete:
        return None
    verified = dict(line.partition(" ")[::2] for line in answers.all("env.verified"))
    damaged = frozenset(answers.all("env.damaged"))
    try:
        record, recorded_lock = _object(env.record), _object(answers.first("env.lock"))
        lock = Lock.from_json(recorded_lock)
        proof = parse_result(_object(verified.get(machine_token(facts, host))))
        problems = find_problems(env.path, record, recorded_lock, lock.digest) or check_packages(
            (*answers.all("env.intact"), *damaged), recorded_lock, lambda _, info: [info] if info in damaged else []
        )
    except (ValueError, KeyError, TypeError, MalformedReply):
        return None
    return None if problems or proof is None else IntactEnv(facts, env.name, lock, proof)


def _object(text: str | None) -> Mapping[str, Any]:
    """Raises a ValueError unless the text is a JSON object."""
    return parse_object(text or "")
