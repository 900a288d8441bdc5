"""What a call of `run` asks for, the checks of it that need no host, and the reason why a run was not started.

Secrets (`-x NAME`, lines of --env-file) get their values from the caller's environment or from a file. A bad line of
such a file is never shown, because it may be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from ipexctl.errors import FileError, Refusal, UserError
from ipexctl.file_reader import VARIABLES, decode_text, read_typed
from ipexctl.hosts.host import Host, quote
from ipexctl.launch.overrides import check_options
from ipexctl.launch.rank_distribution import distribute_ranks
from ipexctl.launch.run_declarations import DECLARED
from ipexctl.node.common.fix import Fix, ipexctl_command
from ipexctl.node.common.placeholders import NAMES, find_wrong_name
from ipexctl.node.common.plan import OtherRun, Plan
from ipexctl.node.common.run_options import Export, RunOptions
from ipexctl.option_declaration import CallOptions
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.outcome import HostError, exit_code
from ipexctl.remote.session import Session
from ipexctl.run.ranks import EVERY_RANK, RankSet
from ipexctl.stack.env.record import check_env_name
from ipexctl.sync.ignore import OWN
from ipexctl.text import expand_tilde, format_count, is_variable_name

T = TypeVar("T")
_LONGEST_TAG: Final = 80


@dataclass(frozen=True, slots=True)
class StartFailure(Refusal):
    """Why a run was not started. No rank of the run lives, unless `is_unsure`."""

    is_unsure: bool = False
    """True if the connection to node0 was lost while the run was starting: the run may live."""
    changes_directory: bool = False
    """True if the command of the fix changes to another directory, so that paths in it must be absolute."""
    other_runs: tuple[OtherRun, ...] = field(default=(), hash=False)
    """Runs that keep the hosts from being free; empty for any other reason."""
    lacks_environment: bool = False
    """True if `run --install` would install what the hosts lack."""

    @classmethod
    def of_host(cls, name: str, error: HostError) -> StartFailure:
        """Return the failure of a start because of one host's error."""
        return cls(f"{name}: {error.reason}", error.fix, (name,), exit_code([error.status]))

    def with_call_options(self, options: CallOptions) -> StartFailure:
        """Return the failure with the call's options, such as -H, in the commands of its fix."""
        return replace(self, fix=(options.absolute() if self.changes_directory else options).apply(self.fix))


class StartError(Exception):
    """Raised by the steps of a start; `plan_run`, `start_run` and `install_first` return its failure."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        if not isinstance(refusal, StartFailure):
            refusal = StartFailure(refusal.reason, refusal.fix, refusal.hosts, refusal.exit_code)
        self.failure = refusal

    @classmethod
    def because(cls, reason: str, fix: str = "", hosts: tuple[str, ...] = (), exit_code: int = 1) -> StartError:
        """Return the error with a failure made of these parts."""
        return cls(StartFailure(reason, fix, hosts, exit_code))


def first_of_stores(nodes: Sequence[Host], plan: Plan) -> list[Host]:
    """Return the first host of each home: two calls in a home that hosts share would move the same files."""
    firsts: dict[str, Host] = {}
    for host in nodes:
        firsts.setdefault(plan.stores.get(host.name, host.name), host)
    return list(firsts.values())


def ask_all(hosts: Sequence[Host], pool: SessionPool, ask: Callable[[Host, Session], T]) -> dict[str, T]:
    """Return each host's answer, in the order of the hosts. Raises a StartError for the first that gave none."""

    def fail(host: Host, error: HostError) -> NoReturn:
        raise StartError(StartFailure.of_host(host.name, error))

    outcomes = {done.host.name: done for done in pool.each(hosts, ask)}  # to its end, and they come in any order
    return {host.name: outcomes[host.name].result_or(fail) for host in hosts}


def set_options(asked: RunOptions, given: Mapping[str, Any]) -> RunOptions:
    """Return `asked` with the options of `given`: name → value, as the command line, a playbook or a program gives it.
    Names that are no option of a run are left alone."""
    values = {name: given[name] for name in DECLARED if name in given}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if values.get("checkpoint") is not None:
        values["checkpoint"] = os.path.normpath(values["checkpoint"])
    if values.get("cwd") is not None:
        values["cwd"] = str(Path(values["cwd"]))
    return asked._replace(**values)


def _refuse_launcher(argv: Sequence[str]) -> None:
    """Refuse a command that is itself a launcher, such as mpirun: each rank would start one."""
    from ipexctl.launch.launchers.shell_script import find_launcher  # most calls run a script

    if launcher := find_launcher(argv):
        raise UserError(
            f"{launcher} would start once in each rank",
            fix=Fix(
                "give the script itself, with the number of ranks (-n, --ppn) and the hosts (-H); `ipexctl run` "
                "takes a whole line, too: `ipexctl run -- mpirun -n 4 python train.py`"
            ),
        )


def check_request(asked: RunOptions) -> None:
    """Refuse options that are wrong on any host. Raises a UserError."""
    if (refusal := check_options(asked)) is not None:
        raise UserError(refusal.reason, fix=refusal.fix)
    if asked.kind != "script":
        _refuse_launcher(asked.argv if asked.kind == "command" else ("python", "-m", *asked.argv))
    if asked.is_behind_dashes:
        _refuse_placeholder(asked.argv)
    if asked.python is None:
        check_env_name(asked.env)
    for option, path in (("--python", asked.python), ("--setup", asked.setup)):
        if path is not None and not path.startswith("/"):
            raise UserError(
                f"{option} {quote(path)} is not an absolute path", fix=_fix_relative_path(asked, option, path)
            )
    if asked.tag is not None and not (asked.tag.isprintable() and len(asked.tag) <= _LONGEST_TAG):
        raise UserError(
            f"--tag is one line of at most {_LONGEST_TAG} characters: {quote(asked.tag[:_LONGEST_TAG])}",
            fix="a shorter --tag, without control characters",
        )
    if asked.checkpoint and not _is_path_of_checkpoint(asked.checkpoint):
        raise UserError(
            f"--checkpoint {quote(asked.checkpoint)} names no file or directory of checkpoints",
            fix="name the one that rank 0 writes, relative to the working directory of the ranks: "
            "--checkpoint checkpoints; or its absolute path, the same on every host",
        )


def _fix_relative_path(asked: RunOptions, option: str, path: str) -> Fix:
    """Return what to type in place of a relative path: `--python 3.11` and `--python python3` are no paths at all."""
    if option == "--python" and re.fullmatch(r"[0-9.]+", path):
        return Fix("to install with it: `ipexctl install --python {path}`; then run without --python", path=path)
    if option == "--python" and "/" not in path:
        return Fix("to see where the hosts have it: `ipexctl exec -- sh -c 'command -v \"$0\"' {path}`", path=path)
    line = ipexctl_command("run", option, os.path.abspath(path), argv=asked.program)  # noqa: PTH100
    return Fix("it needs the same path on every host: {line}", line=line)


def _refuse_placeholder(argv: Sequence[str]) -> None:
    """Refuse `{NAME}` of a command behind `--` if the ranks would not replace it."""
    if (wrong := find_wrong_name(argv)) is not None:
        from ipexctl.launch.launchers.line import refused_word  # most calls run a script

        at, name = wrong
        names = " ".join(f"{{{name}}}" for name in NAMES)
        raise refused_word(
            argv,
            at,
            f"{{{name}}} is no placeholder",
            f"one of {names}; for a brace of the command itself, write two: {{{{{name}}}",
        )


def check_packages(asked: RunOptions) -> None:
    """Refuse options for packages that contradict one another. Raises a UserError."""
    if (asked.extra or asked.group) and (asked.packages or asked.requirements or not asked.takes_own_requirements):
        raise UserError(
            "--extra and --group are for the project's own requirements",
            fix="with -r, name them after the file: -r 'pyproject.toml[NAME]'",
        )
    if asked.python is not None and (asked.packages or asked.requirements or asked.builds):
        raise UserError(
            "--with, -r and --build change an environment, and --python is never changed", fix="remove --python"
        )


def _is_path_of_checkpoint(path: str) -> bool:
    """True for a plain path that ends in a name: `out/last`, `../out`, `/data/out`, but not `out/..` or `~/out`."""
    parts = path.removeprefix("/").split("/")
    while parts[0] == ".." and len(parts) > 1:
        del parts[0]
    is_own = OWN in parts and not path.startswith("/")  # where the synced tree keeps its state
    is_plain = not any(part in ("", ".", "..") or not part.isprintable() for part in parts)
    return is_plain and not is_own and not path.startswith("~")


def refuse_bad_rank_counts(asked: RunOptions, hosts: Sequence[Host], shown: RankSet = EVERY_RANK) -> None:
    """Refuse numbers of ranks that do not fit the hosts, as far as it is known before they are contacted.

    `shown`: ranks whose output the call shows. Raises a UserError."""
    if (refusal := check_pool(asked, hosts)) is not None:
        raise UserError(refusal.reason, fix=refusal.fix)
    share = distribute_ranks(hosts, asked.n, asked.ppn, 1)
    if isinstance(share, Refusal):
        raise UserError(share.reason, fix=share.fix)
    if asked.n is not None or asked.ppn is not None or all(host.slots for host in hosts):
        shown.within(sum(share.counts))


_SHOWN_BY_PLAN: Final = frozenset({"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "CCL_WORKER_COUNT"})
"""Variables that are never secrets: the plan is made of their values, and shows them."""


def read_exports(
    arguments: Iterable[str], files: Sequence[Path], environ: Mapping[str, str]
) -> tuple[tuple[Export, ...], dict[str, str]]:
    """Return the variables of `-x KEY=VALUE`, `-x KEY` and --env-file; and the values of the secrets among them, by
    name.

    The value of `-x KEY` is taken from `environ`. It is a secret, as are the lines of --env-file: their `Export` has no
    value. The same name later replaces an earlier one. Raises a UserError for a bad name or file."""
    exports: dict[str, Export] = {}
    values: dict[str, str] = {}

    def add(name: str, source: str, value: str, *, is_shown: bool) -> None:
        exports[name] = Export(name, source, value if is_shown else None)
        values[name] = value

    for file in files:
        for name, value in _read_env_file(file).items():
            add(name, f"--env-file {file.name}", value, is_shown=name in _SHOWN_BY_PLAN)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not is_variable_name(name):
            raise UserError(
                f"-x {quote(argument)}: {quote(name)} is not a variable name", fix="-x NAME=VALUE, or -x NAME"
            )
        if equals:
            add(name, "-x", value, is_shown=True)
        elif name in environ:
            add(name, "-x", environ[name], is_shown=name in _SHOWN_BY_PLAN)
        else:
            raise UserError(f"-x {name}: it is not set here", fix=f"export {name}=…, or -x {name}=VALUE")
    secrets = {name: values[name] for name, export in exports.items() if export.value is None}
    return tuple(exports.values()), secrets


def _read_env_file(path: Path) -> dict[str, str]:
    """Return the variables of a file of `NAME=VALUE` lines, read as docker does: nothing is expanded, and quotes around
    a whole value are removed. Raises a UserError if the file cannot be read, a FileError for a bad line."""
    try:
        text = decode_text(read_typed(expand_tilde(path), VARIABLES))
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise UserError(f"--env-file {path}: {problem}", fix="a file of NAME=VALUE lines") from None
    variables: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        name = name.strip()
        if not equals or not is_variable_name(name):
            # The line is not shown: it may be a secret.
            raise FileError(str(path), number, "this is not NAME=VALUE", fix="one variable a line; # begins a comment")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        variables[name] = value
    return variables


def check_pool(asked: RunOptions, hosts: Sequence[Host]) -> Refusal | None:
    """Return why --min-hosts cannot be met on these hosts, before one is contacted; None if it can."""
    if asked.min_hosts is not None and asked.min_hosts > len(hosts):
        return Refusal(
            f"--min-hosts {asked.min_hosts} is more than the {format_count(len(hosts), 'host')} of the run",
            f"--min-hosts {max(1, len(hosts) - 1)}, or name more hosts",
        )
    return None


def check_pool_plan(asked: RunOptions, pool_plan: Plan) -> Refusal | None:
    """Return why no attempt with fewer hosts would be possible, from the plan with all of them; None if one would."""
    node0 = pool_plan.node0
    if pool_plan.hosts[0].name != node0:
        return Refusal(f"--min-hosts needs ranks on {node0}, whose supervisor plans each attempt", "-n N")
    minimum, hosts = asked.min_hosts or 1, len(pool_plan.hosts)
    if minimum > hosts:
        return Refusal(
            f"--min-hosts {minimum} is more than the {format_count(hosts, 'host')} with ranks", "fewer --min-hosts"
        )
    if len(pool_plan.leaders) > 1 and not asked.checkpoint:
        return Refusal(
            "--min-hosts needs --checkpoint on hosts without a shared home: a lost one may have the only "
            "copy of what the others continue from",
            "--checkpoint PATH, the file or directory that the script resumes from",
        )
    return None
