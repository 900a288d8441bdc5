"""Checks of `run --install` before it installs: ports between the nodes, and modules that no stack contains."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ipexctl.errors import Refusal
from ipexctl.facts.gather import HostFacts
from ipexctl.hosts.host import Host
from ipexctl.launch.rank_distribution import distribute_ranks, ranks_on
from ipexctl.launch.request import Gathered
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.fix import ipexctl_command
from ipexctl.option_declaration import DEFAULT_ENV
from ipexctl.remote.connector import SessionPool
from ipexctl.run.start.connection_checks import check_connectivity
from ipexctl.run.start.context import gather, has_environment
from ipexctl.run.start.request import StartError, StartFailure
from ipexctl.run.start.script_imports import check_imports, with_environment
from ipexctl.run.start.start_notes import check_gpu_code
from ipexctl.script_file import ScriptFile
from ipexctl.spec import RunSpec
from ipexctl.stack.install_context import InstallRequest

_IN_A_STACK: Final = frozenset((
    "torch", "torchgen", "functorch", "numpy", "intel_extension_for_pytorch", "oneccl_bindings_for_pytorch",
    "torch_ccl", "typing_extensions", "sympy", "mpmath", "isympy", "networkx", "jinja2", "markupsafe", "fsspec",
    "filelock", "psutil", "packaging", "ruamel", "triton", "mkl", "intel_openmp", "setuptools", "pkg_resources",
    "distutils", "pip", "wheel",
))  # fmt: skip
"""Modules of the packages that a stack can bring; the check after the install knows whether it did."""
_REMOVED_FROM_PYTHON: Final = frozenset((
    "aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "imp", "lib2to3", "mailcap",
    "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "sndhdr", "smtpd", "spwd", "sunau", "telnetlib", "uu", "xdrlib",
))  # fmt: skip
"""An environment may have an older Python than the control machine."""


def check_before_install(
    spec: RunSpec,
    pool: SessionPool,
    probed: Sequence[HostFacts],
    wanted: InstallRequest,
) -> StartFailure | str:
    """One round trip. Returns a note, or an empty text, if `wanted` may be installed."""
    try:
        check_gpu_code(spec, {})
        context = gather(spec, pool, before_install=True, probed=probed)
        distribution = ranks_on(context.spec.hosts, context.facts, spec.asked)
        if isinstance(distribution, Refusal):
            raise StartError(distribution)
        if context.env.python:
            check_connectivity(likely_nodes(spec), context, pool)
        return check_new_environment(context, wanted)
    except StartError as error:
        return error.failure


def check_new_environment(context: Gathered, wanted: InstallRequest) -> StartFailure | str:
    """A note, or an empty text, if an environment that is still to be made may have the script's modules."""
    script, asked = context.spec.project.script, context.asked
    if script is None or not asked.sync or wanted.env.extras:
        return ""  # the modules of --with and -r are not known before the install
    if has_environment(asked.env, context.facts):
        return ""  # the hosts get an existing environment, with the packages that were added to it
    try:
        return check_modules(
            with_environment(script, context), [host.name for host in likely_nodes(context.spec)], asked
        )
    except StartError as error:
        return error.failure


def likely_nodes(spec: RunSpec) -> Sequence[Host]:
    hosts = spec.hosts
    share = distribute_ranks(hosts, spec.asked.n, spec.asked.ppn, 1)
    if isinstance(share, Refusal):
        return hosts
    return [host for host, count in zip(hosts, share.counts, strict=True) if count or host is hosts[0]]


def check_modules(script: ScriptFile, hosts: Sequence[str], asked: Asked) -> str:
    may_exist = sys.stdlib_module_names | _IN_A_STACK | _REMOVED_FROM_PYTHON
    missing = [entry.module for entry in script.imports if entry.module not in may_exist]
    install = ["install"]
    for option, value in (("--stack", asked.stack), ("--torch", asked.torch)):
        install += [option, value] if value else []
    install += ["--env", asked.env] if asked.env != DEFAULT_ENV else []
    return check_imports(replace(script, own=True, install=ipexctl_command(*install)), dict.fromkeys(hosts, missing))
