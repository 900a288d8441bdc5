"""What must be known before a run can be planned: facts, one environment everywhere, addresses, node0's way to each."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ipexctl.facts.gather import gather
from ipexctl.facts.internal import addresses_among
from ipexctl.hosts.internal import NoCommonNetwork
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.request import RankEnv
from ipexctl.remote.command import Command
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.remote.session import capture
from ipexctl.stack.existing import records_of
from ipexctl.stack.obstacles import homes_differ
from ipexctl.trust.known import config_for
from ipexctl.trust.plan import words_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host
    from ipexctl.jobs.wishes import RunWishes
    from ipexctl.remote.crew import Crew
    from ipexctl.stack.existing import EnvRecord

_LOGIN_TIME: Final = 8


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the run doesn't begin: nothing was started anywhere."""

    reason: str
    fix: str = ""
    hosts: tuple[str, ...] = ()
    unreachable: bool = False

    @property
    def exit_code(self) -> int:
        return 3 if self.unreachable else 1


@dataclass(frozen=True, slots=True)
class Known:
    """All of a call's hosts as they are now."""

    facts: Mapping[str, Facts] = field(hash=False)
    internal: Mapping[str, str] = field(hash=False)
    words: Mapping[str, str] = field(hash=False)
    home: str
    """Absolute, the same everywhere."""

    def stores(self) -> dict[str, str | None]:
        return {name: facts.home.store if facts.home else None for name, facts in self.facts.items()}


def look(hosts: Sequence[Host], wishes: RunWishes, crew: Crew) -> Known | Refused:
    """Every host must answer: a run with a rank missing is none."""
    facts: dict[str, Facts] = {}
    for answer in gather(hosts, crew, home=wishes.home, timeout=wishes.timeout):
        if answer.facts is None or answer.status != "ok" or answer.facts.home is None:
            reason = answer.reason or "it did not say where our directory is"
            leave_out = f"leave it out: -l '!{answer.host.name}'" if len(hosts) > 1 else "see: ipexctl doctor"
            fix = f"{answer.fix}; or {leave_out}" if answer.fix else leave_out
            lost = answer.status == "unreachable"
            return Refused(f"{answer.host.name}: {reason}", fix, (answer.host.name,), unreachable=lost)
        facts[answer.host.name] = answer.facts
    homes = {name: known.home.path for name, known in facts.items() if known.home}
    if refusal := homes_differ(homes, [known.account.user for known in facts.values()]):
        return Refused(refusal.reason, refusal.fix, refusal.hosts)
    internal: Mapping[str, str] = {}
    if len(hosts) > 1:
        chosen = addresses_among(hosts, facts, wishes.iface)
        if isinstance(chosen, NoCommonNetwork):
            return Refused(chosen.reason, chosen.fix, chosen.hosts)
        internal = chosen
    return Known(facts, internal, words_for(hosts, internal), next(iter(homes.values())))


def environment_of(hosts: Sequence[Host], wishes: RunWishes, known: Known) -> RankEnv | Refused:
    """The environment that the ranks run in, the same on every host."""
    if wishes.python is not None:
        return RankEnv(python=wishes.python, prefix=_prefix_of(wishes.python), mpi_backend=None)
    found: dict[str, EnvRecord] = {}
    for host in hosts:
        for env, record in records_of(known.facts[host.name]):
            if wishes.env in (env.name, *env.names) and env.runs:
                found[host.name] = record
    missing = tuple(host.name for host in hosts if host.name not in found)
    install = "ipexctl install" + ("" if wishes.env == "default" else f" --env {wishes.env}")
    if missing:
        where = "here" if len(hosts) == 1 else f"on {fold(missing)}"
        return Refused(
            f"there is no environment {wishes.env} {where}",
            f"{install} makes it there, or run --install; a Python of your own: --python PATH",
            missing,
        )
    names = {record.name for record in found.values()}
    if len(names) > 1:
        first = found[hosts[0].name]
        others = tuple(name for name, record in found.items() if record.name != first.name)
        return Refused(
            f"{wishes.env} is {first.name} on {hosts[0].name} and {found[others[0]].name} on {fold(others)}: ranks of "
            "different stacks don't understand one another",
            f"{install} --upgrade gives all hosts the same",
            others,
        )
    record = found[hosts[0].name]
    return RankEnv.of(record, f"{known.home}/envs/{record.name}")


def _prefix_of(python: str) -> str | None:
    head, _, _ = python.rpartition("/bin/")
    return head or None


def ssh_config_of(hosts: Sequence[Host], known: Known, crew: Crew) -> str | None:
    """What trust gave node0, where it covers these hosts; None: node0's own ssh has to find the way."""
    others = [host.name for host in hosts[1:]]
    return config_for(crew.session(hosts[0]), known.home, others, cancel=crew.cancel) if others else None


def check_logins(hosts: Sequence[Host], known: Known, config: str | None, crew: Crew) -> Refused | None:
    """mpirun starts the ranks of other hosts from node0, over ssh: whether it gets in, before it hangs on it."""
    others = [host for host in hosts[1:] if known.words.get(host.name)]
    if not others:
        return None
    script = _LOGINS.format(
        config=f"-F {shlex.quote(config)}" if config else "",
        seconds=_LOGIN_TIME,
        words=" ".join(shlex.quote(known.words[host.name]) for host in others),
    )
    try:
        said = capture(
            crew.session(hosts[0]), Command(script, "try logins"), timeout=4 * _LOGIN_TIME, cancel=crew.cancel
        )
    except Unreachable as error:
        return Refused(f"{hosts[0].name}: {error.reason}", error.fix, (hosts[0].name,), unreachable=True)
    except HostError as error:
        return Refused(f"{hosts[0].name}: {error.reason}", error.fix, (hosts[0].name,))
    refused: dict[str, str] = {}
    for line in said.stdout.decode(errors="replace").splitlines():
        word, _, rest = line.partition(" ")
        code, _, why = rest.partition(" ")
        if code != "0":
            refused[word] = why
    lost = tuple(host.name for host in others if known.words[host.name] in refused)
    if not lost:
        return None
    why = refused[known.words[lost[0]]]
    return Refused(
        f"node0 ({hosts[0].name}) can't log into {fold(lost)}, and mpirun starts ranks there by ssh from it"
        + (f": {why}" if why else ""),
        "ipexctl trust lets it in, with the same -H or --hosts; ipexctl doctor says more",
        lost,
    )


_LOGINS: Final = """\
one() {{
  said=$(ssh {config} -T -o BatchMode=yes -o ConnectTimeout={seconds} -- "$1" true </dev/null 2>&1 >/dev/null)
  code=$?
  printf '%s %s %s\\n' "$1" $code "$(printf '%s' "$said" | tail -n 1)"
}}
command -v ssh >/dev/null || {{ for word in {words}; do echo "$word 127 there is no ssh on it"; done; exit 0; }}
for word in {words}; do one "$word" & done
wait
"""
