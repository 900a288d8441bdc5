"""A plan as a shell script that does the same steps as `ipexctl run`, without ipexctl. Pure. However it ends, it ends
all ranks. Secrets come from the caller's environment, go to the nodes on stdin and are removed with the run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from typing import Final

from ipexctl.extras.export.common import (
    NO_RANKS,
    TAKING_TURNS,
    WHY_TURNS,
    ExportResult,
    assignment,
    command_line,
    comment_settings,
    common_settings,
    differing_settings,
    fold_line,
    header,
    host_of_rank,
    require_mpirun,
    secrets_of,
    source,
    title,
)
from ipexctl.hosts.host import Host, ssh_options
from ipexctl.node.common.plan import RANK_WORDS, Plan, RankPlan
from ipexctl.sync.ignore import CREDENTIAL_PATTERNS

ADDED: Final = (
    "# `ipexctl run` does more: it watches every rank, ends all after one failed, separates their output, and",
    "# keeps running if this machine is switched off.",
)
_WILDCARD: Final = re.compile(r"[][*?\\]")
_ESCAPED: Final = r"\\\g<0>"
QUOTE: Final = r"""quote() { sed "s/'/'\\\\''/g; 1s/^/'/; \$s/\$/'/"; }"""
EXCLUDED: Final = (".git", "__pycache__", ".venv", "venv", ".mypy_cache", ".pytest_cache", "node_modules")
FREE_PORT: Final = """\
import socket
listening = socket.socket({family})
listening.bind(({address!r}, 0))
print(listening.getsockname()[1])"""
STOP: Final = (
    "pid=\\$(cat '$place/mpirun.pid') && kill \\$pid && "
    "for try in \\$(seq 50); do kill -0 \\$pid || break; sleep 0.2; done"
)


def to_shell(
    plan: Plan,
    hosts: Sequence[Host],
    root: str | None,
    tree: str,
    setup: str | None = None,
    secret_files: Collection[str] = (),
) -> ExportResult:
    """`root`: the project on the control machine, None if it is not uploaded. `tree`: its path on the nodes. `setup`: a
    file that every rank and the launcher source. `secret_files` are not copied.
    """
    if plan.world_size > 1:
        require_mpirun(plan, "such a script")
    plan_hosts = {host.name for host in plan.hosts}
    commands = {host.name: _remote_command(host) for host in hosts if host.name in plan_hosts or host == hosts[0]}
    run_directory = plan.argv[-1].rpartition("/")[0]
    lines = ["#!/bin/sh", f"# {title(plan)}", *ADDED, *header(_requirements(plan)), "set -eu", ""]
    lines += [f"nodes={shlex.quote(' '.join(commands))}"]
    if root is not None:
        lines += [f"root={shlex.quote(root)}", f"tree={shlex.quote(tree)}"]
    lines += [
        f"place={shlex.quote(run_directory)}",
        "",
        "# on NODE COMMAND: run the command with sh on that node",
        "on() {",
    ]
    lines += ["  node=$1; shift", '  case "$node" in']
    lines += [f"    {shlex.quote(name)}) {command} ;;" for name, command in commands.items()]
    lines += ["  esac", "}", "# put NODE FILE: write stdin to that file of the run on the node", "put() {"]
    lines += ["  on \"$1\" \"umask 077; mkdir -p '$place' && cat > '$place/$2'\"", "}", ""]
    first = shlex.quote(hosts[0].name)
    lines += [*_exit_trap(plan, first), "", *(_project(secret_files) if root is not None else ())]
    lines += ["# for each rank: its variables, its cores and its command", "for node in $nodes; do"]
    lines += [*_document('  put "$node" rank.sh', "EOF_RANK", _rank(plan, setup)), "done", ""]
    lines += [*_secrets(plan), *_files(plan, first), *_rendezvous(plan, first), *_start(plan, first, setup)]
    return ExportResult("\n".join(lines) + "\n")


def _requirements(plan: Plan) -> str:
    needed = f"Needed: ssh from this machine to every node; on every node sh, tar and the Python {plan.python}"
    if len(plan.hosts) > 1:
        needed += "; ssh from the first node to the others without a prompt"
    return f"{needed}. The hosts, paths, cores and interfaces are those of the plan."


def _document(command: str, end: str, lines: Sequence[str]) -> list[str]:
    """A here-document for the command; its end marker differs from every line."""
    all_lines = set("\n".join(lines).split("\n"))
    while end in all_lines:
        end += "_"
    return [f"{command} <<'{end}'", *lines, end]


def _exit_trap(plan: Plan, first: str) -> list[str]:
    """The exit trap. Ctrl-C ends the local ssh, but not the commands that ssh started on the hosts."""
    lines = ["# however this script ends, all ranks end"]
    lines += ["running=", "finish() {", f'  [ -z "$running" ] || on {first} "{STOP}" </dev/null 2>/dev/null || :']
    if secrets_of(plan):
        lines[0] += ", and the secrets are removed"
        lines += ["  for node in $nodes; do", '    on "$node" "rm -f \'$place/secrets.sh\'" </dev/null || :', "  done"]
    return [*lines, "}", "trap finish EXIT", "trap 'exit 129' HUP", "trap 'exit 130' INT", "trap 'exit 143' TERM"]


def _project(secret_files: Collection[str]) -> list[str]:
    packed = fold_line(
        [
            '  tar -C "$root"',
            *(f"--exclude=./{name}" for name in EXCLUDED),
            *(f"--exclude='{name}'" for name in CREDENTIAL_PATTERNS),
            *(f"--exclude=./{shlex.quote(_WILDCARD.sub(_ESCAPED, name))}" for name in sorted(secret_files)),
            "-cf - . |",
        ]
    )
    return [
        "# copy the project to the same path on every node",
        "for node in $nodes; do",
        packed[0],
        *(f"  {line}" for line in packed[1:]),
        "    on \"$node\" \"mkdir -p '$tree' && tar -C '$tree' -xf -\"",
        "done",
        "",
    ]


def _remote_command(host: Host) -> str:
    if host.name == "localhost" and host.address == "localhost":
        return 'sh -c "$*"'
    return f'{shlex.join(["ssh", "-T", "-o", "BatchMode=yes", *ssh_options(host), host.address])} "$*"'


def _rank(plan: Plan, setup: str | None) -> list[str]:
    lines = [f"#!/bin/{_shell(setup)}"]
    if plan.is_direct:
        lines += ["rank=0"]
    else:
        lines += ["# this rank's number, from mpirun", "rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}"]
    if setup is not None:
        lines += ["# --setup", source(setup)]
    is_group = plan.backend != "none"
    lines += ['. "${0%/*}/master.sh"'] if is_group else ["# independent copies: no rank, no address", *NO_RANKS]
    lines += ['if [ -f "${0%/*}/secrets.sh" ]; then . "${0%/*}/secrets.sh"; fi']
    lines += comment_settings(common_settings(plan))
    differing = [setting for settings in differing_settings(plan).values() for setting in settings]
    takes_turns = any(rank.batch for rank in plan.ranks)
    lines += ['case "$rank" in']
    for number, host in enumerate(plan.hosts):
        for rank in host.ranks:
            lines += [f"{rank.rank})  # on {host.name}"]
            if is_group:
                lines += [f"  export RANK={rank.rank} LOCAL_RANK={rank.local_rank}"]
                lines += [f"  export WORLD_SIZE={plan.world_size} LOCAL_WORLD_SIZE={len(host.ranks)}"]
                lines += [f"  {line}" for line in host_of_rank(number, len(plan.hosts))]
            rank_settings = [
                setting
                for setting in differing
                if setting.host in (None, host.name) and setting.rank in (None, rank.rank)
            ]
            lines += [f"  {assignment(setting)}" for setting in rank_settings]
            turns = f" turns='{TAKING_TURNS if rank.batch else ''}'" if takes_turns else ""
            lines += [f"  cores={_cores(rank)}{turns}", "  ;;"]
    lines += ["esac", f"cd {shlex.quote(plan.cwd)}"]
    if takes_turns:
        lines += [WHY_TURNS, '[ -z "$turns" ] || $turns true 2>/dev/null || turns=']
    words = [
        "exec",
        '${cores:+taskset -c "$cores"}',
        *(["$turns"] if takes_turns else []),
        command_line(plan),
    ]
    return [*lines, " ".join(words)]


def _cores(rank: RankPlan) -> str:
    """The cores of the rank and of its oneCCL workers; the kernel then allocates memory near these cores."""
    return ",".join(map(str, sorted({*rank.cores, *rank.ccl_cores})))


def _secrets(plan: Plan) -> list[str]:
    names = secrets_of(plan)
    if not names:
        return []
    lines = ["# values from the caller's environment; they are on the nodes only while the script runs", QUOTE]
    lines += [f': "${{{name}:?}}"' for name in names]
    lines += ["for node in $nodes; do", "  {"]
    lines += [f'    printf "export {name}="; printf "%s\\n" "${name}" | quote' for name in names]
    return [*lines, '  } | put "$node" secrets.sh', "done", ""]


_SSH: Final = """\
#!/bin/sh
# The ssh of mpirun on the first node. Hydra's -q would suppress ssh's error messages.
[ "$1" != -q ] || shift
exec ssh -o BatchMode=yes -o ConnectTimeout=10 "$@"
"""


def _files(plan: Plan, first: str) -> list[str]:
    lines = ["# the files of mpirun on the first node"]
    for file in plan.files:
        end = f"EOF_{file.name.upper().replace('.', '_')}"
        # A run's own script calls its supervisor.
        text = _SSH if file.name == "ssh.sh" and plan.has_starters else file.text
        node, indent = ('"$node"', "  ") if file.is_everywhere else (first, "")
        lines += ["for node in $nodes; do"] if file.is_everywhere else []
        lines += _document(f"{indent}put {node} {file.name}", end, [text.rstrip("\n")])
        if file.mode & 0o100:
            lines += [f"{indent}on {node} \"chmod {file.mode:o} '$place/{file.name}'\" </dev/null"]
        lines += ["done"] if file.is_everywhere else []
    return [*lines, ""]


def _rendezvous(plan: Plan, first: str) -> list[str]:
    if plan.backend == "none":
        return []
    lines = ["# the address of rank 0"]
    if plan.master_port is not None:
        lines += [f"port={plan.master_port}"]
    else:
        family = "socket.AF_INET6" if ":" in plan.master_addr else ""
        find_port = FREE_PORT.format(family=family, address=plan.master_addr)
        python = shlex.quote(shlex.join([plan.python, "-"]))
        lines += ["port=$(", f"on {first} {python} <<'EOF_PORT'", find_port, "EOF_PORT", ")"]
    meeting = f"export MASTER_ADDR={plan.master_addr} MASTER_PORT=$port"
    return [*lines, "for node in $nodes; do", f'  echo "{meeting}" | put "$node" master.sh', "done", ""]


def _shell(setup: str | None) -> str:
    return "sh" if setup is None else "bash"


def _start(plan: Plan, first: str, setup: str | None) -> list[str]:
    # The plan's argv ends with the rank wrapper and its job file; the exported script replaces them.
    rank_sh = f"{plan.argv[-1].rpartition('/')[0]}/rank.sh"
    shell = _shell(setup)
    lines = [f"#!/bin/{shell}"]
    if setup is not None:
        lines += ["# --setup", source(setup)]
    lines += comment_settings(plan.launcher_env)
    argv = fold_line(["exec", *(shlex.quote(arg) for arg in (*plan.argv[:-RANK_WORDS], shell, rank_sh))])
    lines += ['echo $$ > "${0%/*}/mpirun.pid"', *argv]
    lines = ["# start the ranks from the first node", *_document(f"put {first} start.sh", "EOF_START", lines)]
    lines += [f"on {first} \"rm -f '$place/mpirun.pid'\" </dev/null", "running=yes"]
    lines += [f"code=0; on {first} \"{shell} '$place/start.sh'\" </dev/null || code=$?"]
    return [*lines, "running=", "exit $code"]
