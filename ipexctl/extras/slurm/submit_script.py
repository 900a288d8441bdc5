"""The script of a job that starts a run, as text for sbatch. Pure. On the job's first node it checks that the nodes
share the login node's home. Then `ipexctl run`, from the package that `submit` sent, starts the run with its known id.
Plain scancel signals the script and its children, so the script passes nothing on; `ipexctl stop` sends USR2 to the
script alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ipexctl.errors import UserError
from ipexctl.hosts.host import quote
from ipexctl.launch.run_options import changed_options
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.batch_job import NO_HOME, NO_PROJECT, NO_PYTHON
from ipexctl.node.common.fix import Fix

_WORD: Final = re.compile(r"[A-Za-z0-9_.,:@=+/*&|\[\]()%~^-]+")
_TIME: Final = re.compile(r"(\d+-)?\d+(:\d+){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_OPTION: Final = re.compile(r"--[a-z][a-z-]*(=.+)?")
_OWN: Final = {
    "--nodes": "-N",
    "--partition": "-p",
    "--time": "-t",
    "--account": "--account",
    "--qos": "--qos",
    "--ntasks": "-n or --ppn",
    "--requeue": "--requeue",
    "--test-only": "--dry-run",
    "--chdir": "--cwd",
    "--export": "-x",
    "--export-file": "--env-file",
}
"""sbatch options, and the `submit` options that replace them."""
_REFUSED: Final = {
    "--array": Fix("call `ipexctl submit` once for each run"),
    "--wait": Fix("use `ipexctl wait`"),
    "--signal": "ranks get SIGUSR1 a minute before the time limit, if they handle it",
    "--wrap": "put the command after --",
    **dict.fromkeys(
        ("--output", "--error", "--input", "--open-mode"), Fix("`ipexctl logs` shows the output of the ranks")
    ),
    **dict.fromkeys(("--job-name", "--parsable", "--no-requeue", "--clusters"), "leave it out: submit sets it"),
}
"""Options that would break a run, and what to use instead."""
_OF_SHARE: Final = (
    *("--exclusive", "--oversubscribe", "--cpus-per-task", "--mem", "--mem-per-cpu", "--ntasks-per-node"),
    *("--cores-per-socket", "--threads-per-core", "--hint", "--mincpus"),
)
"""Options that set the job's share of a node; without any of them the job gets whole nodes."""
_NOT_IN_JOB: Final = frozenset(("sync", "cwd", "exclude", "include", "allow_big", "exclusive", "wait"))
"""Options of `run` that `submit` has already applied, or that Slurm replaces."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    partition: str | None = None
    nodes: int = 1
    time: str | None = None
    account: str | None = None
    qos: str | None = None
    requeue: bool = False
    """True if Slurm may requeue the job after a node failure or preemption."""
    no_kill: bool = False
    """True if the job survives the loss of a node."""
    others: tuple[str, ...] = ()


def check_queue_options(options: QueueOptions) -> None:
    if options.time is not None and not _TIME.fullmatch(options.time):
        raise UserError(
            f"-t {quote(options.time)} is not a Slurm time", fix="-t 90 (minutes), -t 12:00:00, -t 2-12:00:00"
        )
    for name, value in (("-p", options.partition), ("--account", options.account), ("--qos", options.qos)):
        if value is not None and not _WORD.fullmatch(value):
            raise UserError(
                f"{name} {quote(value)} is not a valid name", fix="sinfo on the login node shows the partitions"
            )
    for option in options.others:
        name = option.partition("=")[0]
        if not (_OPTION.fullmatch(option) and _WORD.fullmatch(option)):
            raise UserError(
                f"--sbatch {quote(option)} is not an option of sbatch",
                fix="use its long form, without spaces: --constraint=amx",
            )
        if (full_name := _abbreviated(name)) is not None:
            raise UserError(
                f"--sbatch {name}: sbatch reads it as {full_name}", fix=f"write the full name: --sbatch {full_name}"
            )
        if name in _OWN:
            raise UserError(f"--sbatch {name}: submit has its own option for it", fix=_OWN[name])
        if name in _REFUSED:
            raise UserError(f"--sbatch {name} does not work for a run", fix=_REFUSED[name])


def _abbreviated(name: str) -> str | None:
    """The option that sbatch may take it for: depending on its version, sbatch accepts prefixes such as `--err`."""
    known = (*_OWN, *_REFUSED, *_OF_SHARE)
    return None if name in known else next((option for option in known if option.startswith(name)), None)


def option_lines(run: str, options: QueueOptions) -> list[str]:
    lines = [f"--job-name={run}", f"--nodes={options.nodes}"]
    named = (
        ("partition", options.partition),
        ("time", options.time),
        ("account", options.account),
        ("qos", options.qos),
    )
    lines += [f"--{name}={value}" for name, value in named if value is not None]
    lines += list(options.others)
    if not any(option.partition("=")[0] in _OF_SHARE for option in options.others):
        lines.append("--exclusive")
    if options.no_kill:
        lines.append("--no-kill")
    return [*lines, "--requeue" if options.requeue else "--no-requeue", "--output=/dev/null"]


@dataclass(frozen=True, slots=True)
class BatchScript:
    run: str
    rundir: str
    python: str
    package: str
    workdir: str
    words: tuple[str, ...]
    options: QueueOptions
    nonce: str
    """Content of a file, by which a node proves that it has the same home."""

    def text(self) -> str:
        return _TEMPLATE.format(
            run=self.run,
            options="\n".join(f"#SBATCH {line}" for line in option_lines(self.run, self.options)),
            dir=shlex.quote(f"{self.rundir}/slurm"),
            nonce=self.nonce,
            python=shlex.quote(self.python),
            package=shlex.quote(self.package),
            workdir=shlex.quote(self.workdir),
            words=shlex.join(self.words),
            boot=shlex.quote(BOOT),
            see_home=shlex.quote(_SEE_HOME),
            no_home=NO_HOME,
            no_project=NO_PROJECT,
            no_python=NO_PYTHON,
        )


BOOT: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ipexctl.__main__ import main; main()"
"""Imports only from the package, whatever modules the project or account has."""
_SEE_HOME: Final = '[ "$(cat "$0" 2>/dev/null)" = "$1" ] || echo "$SLURMD_NODENAME"'
_TEMPLATE: Final = """\
#!/bin/sh
# The job of run {run}, made by ipexctl submit
{options}

umask 077
dir={dir}
nonce={nonce}
# Only a home that the nodes share with the login node has this file.
[ "$(cat "$dir/nonce" 2>/dev/null)" = "$nonce" ] || exit {no_home}
exec >>"$dir/output" 2>&1
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]; then
  touch "$dir/again"
  rm -rf "$dir/notice" "$dir/ended" "$dir/waits" "$dir/outcome.json" "$dir/no-home" "$dir/state"
fi
# ipexctl stop sends USR2; scancel signals the run, too.
reason=
stop_run() {{
  reason=$1
  echo "$1" >"$dir/notice"
  [ -z "${{pid:-}}" ] || kill -TERM "$pid" 2>/dev/null
}}
trap 'stop_run stop' USR2
trap '[ -n "$reason" ] || echo cancelled >"$dir/notice"' TERM
finish() {{
  notice=$(cat "$dir/notice" 2>/dev/null)
  if [ -e "$dir/requeue" ] && [ "$notice" != stop ]; then
    # A job that Slurm ends in order to restart it has not ended.
    if [ -e "$dir/waits" ] || [ "$notice" = cancelled ]; then exit "$1"; fi
  fi
  rm -f "$dir/env"
  echo "$1" >"$dir/.ended" && mv -f "$dir/.ended" "$dir/ended"
  # After a stop, Slurm must not restart it either, as it does after preemption.
  if [ -e "$dir/requeue" ] && [ "$notice" = stop ]; then scancel "$SLURM_JOB_ID"; fi
  exit "$1"
}}
if [ "${{SLURM_JOB_NUM_NODES:-1}}" -gt 1 ]; then
  srun --overlap --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mem=0 --cpu-bind=none --quiet \\
    sh -c {see_home} "$dir/nonce" "$nonce" >"$dir/no-home"
  [ ! -s "$dir/no-home" ] || finish {no_home}
fi
if [ -f "$dir/env" ]; then . "$dir/env"; [ -e "$dir/requeue" ] || rm -f "$dir/env"; fi
cd {workdir} || finish {no_project}
[ -x {python} ] || finish {no_python}
unset IPEXCTL_HOSTFILE IPEXCTL_CLUSTER IPEXCTL_HOME
export IPEXCTL_RUN_ID={run} XDG_STATE_HOME="$dir/state"

[ -z "$reason" ] || finish 143
{python} -I -c {boot} {package} \\
  {words} >/dev/null &
pid=$!
[ -z "$reason" ] || kill -TERM "$pid"
wait "$pid"
code=$?
while [ "$code" -gt 128 ] && kill -0 "$pid" 2>/dev/null; do
  wait "$pid"
  code=$?
done
# The output of the ranks is in the record of the run.
rm -rf "$dir/state/ipexctl/runs/{run}"
finish "$code"
"""


def words_of_run(spec: RunSpec, command: Sequence[str], home: str, tree: str) -> tuple[str, ...]:
    """Words after `ipexctl` that start this run in the job, every option explicit. `command`: the ranks'. `tree`: the
    project's root there, which may be a repository whose `.git` is not sent."""
    asked = spec.asked
    words = ["--no-config", "run", "--plain", "--no-sync", "--home", home, "--cwd", tree]
    words += _option_words(asked)
    if asked.iface is not None:
        words += ["--iface", asked.iface]
    for export in asked.exports:
        words += ["-x", export.name if export.value is None else f"{export.name}={export.value}"]
    before = {"script": (), "module": ("-m",), "command": ("--",)}[asked.kind]
    return (*words, *before, *(asked.argv if spec.project.entry else command))


def _option_words(asked: Asked) -> list[str]:
    words = list[str]()
    for name, declaration, value in changed_options(asked):
        if name in _NOT_IN_JOB or value is None:
            continue
        yes, _, no = declaration.flag.partition("/")
        if isinstance(value, bool):
            words.append(yes if value else no or f"--no-{yes[2:]}")
        elif isinstance(value, tuple):
            words += [word for item in value for word in (yes, str(item))]
        else:
            words += [yes, str(value)]
    return words


def environment_text(secrets: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in secrets.items())
