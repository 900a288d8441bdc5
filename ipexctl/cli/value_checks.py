"""Checks a value of a file of defaults as its command does later, before any host is contacted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import WordError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ipexctl.cli.defaults import Param


def check_value(param: Param, value: Any) -> None:
    """Raise a UserError for a value that the command would refuse whatever the other options are."""
    if check := _CHECKS.get(param.name):
        check(param, value)


def _launch_option(param: Param, value: Any) -> None:
    from ipexctl.launch.overrides import check_options
    from ipexctl.launch.request import LaunchOptions

    options: Any = {param.name: value}
    if (refusal := check_options(LaunchOptions(**options))) is not None:
        raise UserError(refusal.reason, fix=refusal.fix)


def _path_on_hosts(param: Param, value: str) -> None:
    from ipexctl.jobs.submit.request import RunRequest, check_request
    from ipexctl.launch.request import LaunchOptions

    options: Any = {param.name: value}
    check_request(RunRequest("script", ("",), LaunchOptions(), **options))


def _stack_option(param: Param, value: str) -> None:
    from ipexctl.stack.catalog.user_table import known_rows
    from ipexctl.stack.lock.requirements import check_request
    from ipexctl.stack.resolve.model import StackRequest

    options: Any = {param.name: value}
    check_request(StackRequest(**options), known_rows(os.environ))


def _python(param: Param, value: str) -> None:
    """A path for `run`, a version for `install`."""
    (_path_on_hosts if param.metavar == "PATH" else _stack_option)(param, value)


def _ranks(_: Param, value: str) -> None:
    from ipexctl.jobs.ranks import parse_ranks

    parse_ranks(value)


def _hosts(_: Param, value: str | int) -> None:
    """Names of hosts; for `lab up` a number."""
    from ipexctl.hosts.hostfile import read_host_list

    if isinstance(value, str):
        read_host_list(value)


def _user(_: Param, value: str) -> None:
    from ipexctl.hosts.names import check_user

    try:
        check_user(value)
    except WordError as error:
        raise UserError(error.message, fix=error.fix) from None


def _iface(_: Param, value: str) -> None:
    from ipexctl.hosts.internal import InterfaceChoice

    InterfaceChoice(value)


def _seconds(param: Param, value: float) -> None:
    from ipexctl.cli.hosts import check_seconds

    check_seconds(param.opts[0], value)


def _pattern(_: Param, value: str) -> None:
    from ipexctl.cli.logs import check_pattern

    check_pattern(value)


_CHECKS: Final[Mapping[str, Callable[[Param, Any], None]]] = {
    **dict.fromkeys(("n", "ppn", "omp", "ccl_workers", "master_port", "mpi"), _launch_option),
    **dict.fromkeys(("setup", "checkpoint"), _path_on_hosts),
    **dict.fromkeys(("stack", "torch", "ipex", "oneccl"), _stack_option),
    **dict.fromkeys(("timeout", "connect_timeout"), _seconds),
    "python": _python,
    "ranks": _ranks,
    "hosts": _hosts,
    "user": _user,
    "iface": _iface,
    "grep": _pattern,
}
