"""The environment of a program: the account's variables, a sourced setup file, planned variables.

Of a setup file, only variables, umask and limits count; `cd`, `renice` and functions are dropped.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import resource
import shlex
import subprocess
from typing import TYPE_CHECKING, Collection, Mapping, NamedTuple

from ipexctl.node.common.clock import stretched
from ipexctl.node.common.node_limits import SETUP_FILE

if TYPE_CHECKING:
    from ipexctl.node.common.job import Variables

_ACCOUNT_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL")


class SetupError(OSError):
    """A setup file could not be sourced; `strerror` is the reason."""


def account_variables() -> dict[str, str]:
    """Return the account's variables, or this process's if it has no passwd entry, as after `docker run -u UID`."""
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:
        return {name: os.environ[name] for name in _ACCOUNT_VARIABLES if name in os.environ}
    return {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name, "SHELL": account.pw_shell}


class ProcessLimits(NamedTuple):
    """What a setup file changed in its process. Unchanged values are None or absent."""

    umask: int | None = None
    limits: Mapping[int, tuple[int, int]] = {}
    """RLIMIT_ constant of `resource` → soft and hard limit."""

    def apply(self) -> None:
        """Apply the limits to this process. A limit that can't be set is skipped."""
        if self.umask is not None:
            os.umask(self.umask)
        for number, limit in self.limits.items():
            with contextlib.suppress(OSError, ValueError, MemoryError):
                resource.setrlimit(number, limit)


class SetupResult(NamedTuple):
    environ: dict[str, str]
    process: ProcessLimits = ProcessLimits()
    refused: tuple[str, ...] = ()


_LIMITS = {
    "Max cpu time": "CPU",
    "Max file size": "FSIZE",
    "Max stack size": "STACK",
    "Max core file size": "CORE",
    "Max resident set": "RSS",
    "Max processes": "NPROC",
    "Max open files": "NOFILE",
    "Max locked memory": "MEMLOCK",
    "Max pending signals": "SIGPENDING",
    "Max msgqueue size": "MSGQUEUE",
    "Max nice priority": "NICE",
    "Max realtime priority": "RTPRIO",
    "Max realtime timeout": "RTTIME",
    "Max data size": "DATA",
    "Max address space": "AS",
}
"""Line of /proc/self/limits → name in `resource`. The last two can leave no memory for setting others."""
_ROW = re.compile(r"^(Max [a-z ]+?) {2,}(\d+|unlimited) +(\d+|unlimited)\b", re.MULTILINE)
_AFTER_SETUP = (
    "{ builtin umask; while IFS= builtin read -r _ipexctl; do builtin printf '%s\\n' \"$_ipexctl\"; done; "
    "builtin unset -v _ipexctl; builtin printf '\\0'; } </proc/self/limits || builtin printf '\\0'; exec env -0"
)
"""Starts only `env`, because the file's limits may leave no process or memory for more."""


def source_setup(setup: str, environ: dict[str, str]) -> SetupResult:
    """Source the file in bash, and return all variables set then, the limits that it changed, and the errors of
    its ulimit lines. Raises a SetupError with bash's error, or if that takes too long."""
    # $0 is bash, as at a prompt: oneAPI's scripts refuse to run if $0 is their own name. setvars.sh exits with 3 if it
    # was sourced before, and node0's ranks inherit mpirun's environment.
    script = f"unset -v SETVARS_COMPLETED; . {shlex.quote(setup)} </dev/null 1>&2 || exit; {_AFTER_SETUP}"
    try:
        argv, limit = ["bash", "-c", script], stretched(SETUP_FILE)
        done = subprocess.run(argv, env=environ, capture_output=True, check=False, timeout=limit)
    except FileNotFoundError:
        raise SetupError(0, f"there is no bash to source {setup} with") from None
    except subprocess.TimeoutExpired:
        raise SetupError(0, f"{setup} could not be sourced: it took longer than {limit:.3g} s") from None
    errors = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode:
        raise SetupError(0, f"{setup} could not be sourced: {errors[-1] if errors else f'exit code {done.returncode}'}")
    head, _, rest = done.stdout.partition(b"\0")
    pairs = (item.partition(b"=") for item in rest.split(b"\0") if item)
    variables = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name not in (b"_", b"SHLVL")}
    refused = tuple(line for line in errors if ": ulimit: " in line)
    return SetupResult(variables, changed_limits(head.decode(errors="replace")), refused)


def changed_limits(text: str) -> ProcessLimits:
    """Parse the umask and /proc/self/limits as a child printed them; returns what differs from this process."""
    first, _, table = text.partition("\n")
    own = os.umask(0o077)
    os.umask(own)
    umask = int(first, 8) if re.fullmatch(r"[0-7]{1,4}", first) else own
    limits = {getattr(resource, f"RLIMIT_{name}"): limit for name, limit in read_limits(table).items()}
    changed = {number: limit for number, limit in limits.items() if resource.getrlimit(number) != limit}
    return ProcessLimits(umask if umask != own else None, changed)


def read_limits(table: str) -> dict[str, tuple[int, int]]:
    """Return name in `resource` → soft and hard limit, of a /proc/PID/limits."""
    rows = {match[1]: match.groups()[1:] for match in _ROW.finditer(table)}
    numbers = {"unlimited": resource.RLIM_INFINITY}
    limits = {
        _LIMITS[name]: [numbers.get(word) or int(word) for word in rows[name]] for name in _LIMITS if name in rows
    }
    return {name: (soft, hard) for name, (soft, hard) in limits.items()}


def set_variables(environ: dict[str, str], variables: Variables, prepended: Collection[str]) -> None:
    """Set variables; None removes one. A prepended value goes before the existing value."""
    for name, value in variables.items():
        if value is None:
            environ.pop(name, None)
        elif name in prepended and environ.get(name):
            environ[name] = f"{value}:{environ[name]}"
        else:
            environ[name] = value


def append_variables(environ: dict[str, str], appended: Mapping[str, str]) -> None:
    """Put values behind the existing ones."""
    for name, value in appended.items():
        environ[name] = f"{environ[name]}:{value}" if environ.get(name) else value
