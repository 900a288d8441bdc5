"""Check a value of a file of defaults as its command would later, before any host is contacted."""

from __future__ import annotations

import os
from typing import Any, Final

from ipexctl.errors import UserError
from ipexctl.hosts.host import WordError, check_user
from ipexctl.hosts.hostfile import read_host_list
from ipexctl.hosts.internal_addresses import InterfaceChoice
from ipexctl.launch.run_declarations import DECLARED
from ipexctl.node.common.run_options import RunOptions
from ipexctl.option_declaration import check_seconds
from ipexctl.run.ranks import parse_ranks

_OF_STACK: Final = ("stack", "torch", "ipex", "oneccl")


def check_value(param: Any, value: Any) -> None:
    """Refuse a value that the command would refuse whatever its other options are."""
    name, values = param.name, {param.name: value}
    if name in DECLARED and (name != "python" or param.metavar == "PATH"):
        from ipexctl.run.start.start_request import check_request

        check_request(RunOptions(argv=("",), **values))
    elif name in _OF_STACK or name == "python":
        from ipexctl.stack.catalog import known_rows
        from ipexctl.stack.expected_stack import check_stack_request
        from ipexctl.stack.resolve.model import StackRequest

        check_stack_request(StackRequest(**values), known_rows(os.environ))
    else:
        _check_text(param, value)


def _check_text(param: Any, value: Any) -> None:
    """Check options that mean the same in all commands. (`lab up --hosts` is a number.)"""
    if param.name == "ranks":
        parse_ranks(value)
    elif param.name == "hosts" and isinstance(value, str):
        read_host_list(value)
    elif param.name == "user":
        try:
            check_user(value)
        except WordError as error:
            raise UserError(error.message, fix=error.fix) from None
    elif param.name == "iface":
        InterfaceChoice(value)
    elif param.name in ("timeout", "connect_timeout"):
        check_seconds(param.opts[0], value)
    elif param.name == "grep":
        from ipexctl.run.follow_run import check_pattern

        check_pattern(value)
