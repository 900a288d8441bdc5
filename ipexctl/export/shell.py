"""A plan as a shell script that does by hand what `ipexctl run` does: for who wants to see how, or to leave. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from ipexctl.export.common import (
    Exported,
    assignment,
    commented,
    differing,
    everywhere,
    secrets_of,
    source,
    title,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.launch.plan import LaunchPlan, RankPlan

ADDED: Final = (
    "# ipexctl run adds to this: it watches every rank, ends all where one has failed, keeps their output apart, and",
    "# goes on when this machine is switched off.",
)
QUOTE: Final = r"""quote() { sed "s/'/'\\\\''/g; 1s/^/'/; \$s/\$/'/"; }"""
"""A shell function: what comes in, as one word of sh's."""
EXCLUDED: Final = (".git", "__pycache__", ".venv", "venv", ".mypy_cache", ".pytest_cache", "node_modules")
FREE_PORT: Final = "import socket; s = socket.socket(); s.bind((%r, 0)); print(s.getsockname()[1])"


def to_shell(plan: LaunchPlan, hosts: Sequence[Host], root: str, tree: str, setup: str | None = None) -> Exported:
    """`root` is the project here, `tree` its place on the hosts; `setup` is sourced before mpirun and by every rank."""
    used = {host.name for host in plan.hosts}
    ways = {host.name: _way(host) for host in hosts if host.name in used or host == hosts[0]}
    place = plan.argv[-1].rpartition("/")[0]
    lines = ["#!/bin/sh", f"# {title(plan)}", *ADDED, "set -eu", ""]
    lines += [f"nodes={shlex.quote(' '.join(ways))}", f"root={shlex.quote(root)}", f"tree={shlex.quote(tree)}"]
    lines += [f"place={shlex.quote(place)}", "", "# on NODE COMMAND: a command of sh's on that node", "on() {"]
    lines += ["  node=$1; shift", '  case "$node" in']
    lines += [f"    {name}) {way} ;;" for name, way in ways.items()]
    lines += ["  esac", "}", "# put NODE FILE: what comes in, as a file of the run there", "put() {"]
    lines += ["  on \"$1\" \"umask 077; mkdir -p '$place' && cat > '$place/$2'\"", "}", ""]
    lines += ["# 1. the project, to the same path on every node", "for node in $nodes; do"]
    exclude = " ".join(f"--exclude=./{name}" for name in EXCLUDED)
    lines += [
        f'  tar -C "$root" {exclude} -cf - . | on "$node" "mkdir -p \'$tree\' && tar -C \'$tree\' -xf -"',
        "done",
        "",
    ]
    lines += ["# 2. what a rank is told: its variables, its cores, and what it executes", "for node in $nodes; do"]
    lines += ["  put \"$node\" rank.sh <<'EOF_RANK'", *_rank(plan, setup), "EOF_RANK", "done", ""]
    lines += [*_secrets(plan), *_files(plan, hosts[0]), *_start(plan, hosts[0], setup)]
    return Exported("\n".join(lines) + "\n")


def _way(host: Host) -> str:
    """How to run "$*" there."""
    if host.name == "localhost" and host.address == "localhost":
        return 'sh -c "$*"'
    argv = ["ssh", "-T", "-o", "BatchMode=yes"]
    for option, value in (("-p", host.port), ("-i", host.identity), ("-F", host.ssh_config)):
        if value is not None:
            argv += [option, str(value)]
    if host.known_hosts is not None:
        argv += ["-o", f"UserKnownHostsFile={host.known_hosts}"]
    target = f"{host.user}@{host.address}" if host.user else host.address
    return f'{shlex.join([*argv, target])} "$*"'


def _rank(plan: LaunchPlan, setup: str | None) -> list[str]:
    """The script each rank begins with."""
    lines = [f"#!/bin/{_shell(setup)}", "# mpirun says which rank this is", "rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"]
    if setup is not None:
        lines += ["# --setup", source(setup)]
    lines += ['. "${0%/*}/master.sh"', 'if [ -f "${0%/*}/secrets.sh" ]; then . "${0%/*}/secrets.sh"; fi']
    lines += commented(everywhere(plan))
    apart = [setting for settings in differing(plan).values() for setting in settings]
    lines += ['case "$rank" in']
    for host in plan.hosts:
        for rank in host.ranks:
            lines += [f"{rank.rank})  # on {host.name}"]
            lines += [f"  export RANK={rank.rank} LOCAL_RANK={rank.local_rank}"]
            lines += [f"  export WORLD_SIZE={plan.world_size} LOCAL_WORLD_SIZE={len(host.ranks)}"]
            own = [one for one in apart if one.host in (None, host.name) and one.rank in (None, rank.rank)]
            lines += [f"  {assignment(setting)}" for setting in own]
            lines += [f"  bound={shlex.quote(_bound(rank))}", "  ;;"]
    lines += ["esac", f"cd {shlex.quote(plan.cwd)}", f"exec $bound {words(plan)}"]
    return lines


def _bound(rank: RankPlan) -> str:
    """To its own cores, and those of its oneCCL workers; memory near them is the kernel's own choice then."""
    cores = ",".join(map(str, sorted({*rank.cores, *rank.ccl_cores})))
    return f"taskset -c {cores}" if cores else ""


def _secrets(plan: LaunchPlan) -> list[str]:
    names = secrets_of(plan)
    if not names:
        return []
    lines = ["# values from the environment of whoever calls this: on the nodes for as long as it runs", QUOTE]
    lines += [
        "forget() {",
        '  for node in $nodes; do on "$node" "rm -f \'$place/secrets.sh\'" </dev/null || :; done',
        "}",
        "trap forget EXIT; trap 'exit 129' HUP; trap 'exit 130' INT; trap 'exit 143' TERM",
    ]
    lines += ["for node in $nodes; do", "  {"]
    lines += [f'    printf "export {name}="; printf "%s\\n" "${{{name}:?}}" | quote' for name in names]
    return [*lines, '  } | put "$node" secrets.sh', "done", ""]


def _files(plan: LaunchPlan, node0: Host) -> list[str]:
    lines = ["# 3. what mpirun reads on the first node"]
    for file in plan.files:
        end = f"EOF_{file.name.upper().replace('.', '_')}"
        lines += [f"put {node0.name} {file.name} <<'{end}'", file.text.rstrip("\n"), end]
        if file.mode & 0o100:
            lines += [f"on {node0.name} \"chmod {file.mode:o} '$place/{file.name}'\""]
    return [*lines, ""]


def _shell(setup: str | None) -> str:
    return "sh" if setup is None else "bash"


def _start(plan: LaunchPlan, node0: Host, setup: str | None) -> list[str]:
    lines = ["# 4. where rank 0 is to be met, and mpirun from the first node"]
    if plan.master_port is not None:
        lines += [f"port={plan.master_port}"]
    else:
        python = shlex.join([plan.python, "-c", FREE_PORT % plan.master_addr])
        lines += [f"port=$(on {node0.name} {shlex.quote(python)} </dev/null)"]
    lines += ["for node in $nodes; do"]
    lines += [f'  echo "export MASTER_ADDR={plan.master_addr} MASTER_PORT=$port" | put "$node" master.sh', "done"]
    # Our own line ends with rank.py and its job file: here a shell script takes their place.
    rank_sh = f"{plan.argv[-1].rpartition('/')[0]}/rank.sh"
    variables = [f"{setting.name}={setting.value}" for setting in plan.launcher_env if setting.value is not None]
    line = shlex.join(["env", *variables, *plan.argv[:-4], _shell(setup), rank_sh])
    if setup is not None:
        line = shlex.join(["bash", "-c", f"{source(setup)}; exec {line}"])
    return [*lines, f"on {node0.name} {shlex.quote(line)} </dev/null"]
