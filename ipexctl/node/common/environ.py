"""The environment of a program: the account's variables, a sourced setup file, planned variables."""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
from typing import TYPE_CHECKING, Collection

from ipexctl.node.common.limits import SETUP_FILE

if TYPE_CHECKING:
    from ipexctl.node.common.job import Variables

_ACCOUNT_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL")


class SetupError(OSError):
    """A setup file could not be sourced; `strerror` is the reason."""


def account_variables() -> dict[str, str]:
    """The account's variables; those of this process if it has no entry in passwd, as after `docker run -u UID`."""
    try:
        account = pwd.getpwuid(os.getuid())
    except KeyError:
        return {name: os.environ[name] for name in _ACCOUNT_VARIABLES if name in os.environ}
    return {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name, "SHELL": account.pw_shell}


def source_setup(setup: str, environ: dict[str, str]) -> dict[str, str]:
    """The environment after bash has sourced that file; raises a SetupError with the error that bash printed."""
    # As at a prompt, $0 is bash, since oneAPI's scripts refuse a $0 that is their own name. No arguments are given.
    # setvars.sh exits with 3 when it has been sourced before, and node0's ranks inherit mpirun's environment.
    script = f"unset -v SETVARS_COMPLETED; . {shlex.quote(setup)} </dev/null 1>&2 || exit; exec env -0"
    try:
        argv = ["bash", "-c", script]
        done = subprocess.run(argv, env=environ, capture_output=True, check=False, timeout=SETUP_FILE)
    except FileNotFoundError:
        raise SetupError(0, f"there is no bash to source {setup} with") from None
    except subprocess.TimeoutExpired:
        raise SetupError(0, f"{setup} could not be sourced: it took longer than {SETUP_FILE:g} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise SetupError(0, f"{setup} could not be sourced: {lines[-1] if lines else f'exit code {done.returncode}'}")
    pairs = (item.partition(b"=") for item in done.stdout.split(b"\0") if item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name not in (b"_", b"SHLVL")}


def set_variables(environ: dict[str, str], variables: Variables, prepended: Collection[str]) -> None:
    """Set variables; None removes one; a prepended value goes before the existing value."""
    for name, value in variables.items():
        if value is None:
            environ.pop(name, None)
        elif name in prepended and environ.get(name):
            environ[name] = f"{value}:{environ[name]}"
        else:
            environ[name] = value
