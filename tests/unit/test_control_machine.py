"""The control machine may be a Mac: its code uses what only Linux has at the places below alone, with their reasons."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from darwin_names import MODULES, absent_names
from import_graph import ROOT, imported_names, project_imports, statements

CALLED_ON_ITSELF = ("pip_settings", "indexes", "lock"), ("store", "download"), ("follow", "run_snapshot")
"""Commands of the agent, below env/, files/ and run/, that the control machine runs itself: to make a lock, to download
wheels, and for the copy of a run."""
NOT_ON_A_MAC = ("ipexctl/addons/lab/", "ipexctl/inrank/")
"""A lab is made of namespaces of Linux, and a rank runs on a host."""

TEXT = "text of a message, or of a script that hosts run"
OF_HOSTS = "its programs are for hosts; the control machine takes types and pure functions of it, or of what imports it"
PRESENT = "used if it is there; what follows otherwise is in the same function"
ALLOWED = {
    "ipexctl/commands/ps_command.py": TEXT,
    "ipexctl/doctor/cpu_memory_rules.py": TEXT,
    "ipexctl/doctor/host_system.py": TEXT,
    "ipexctl/addons/play/template_limits.py": PRESENT,
    "ipexctl/addons/play/modules/copy.py": TEXT,
    "ipexctl/addons/play/modules/file.py": TEXT,
    "ipexctl/addons/play/modules/tune.py": TEXT,
    "ipexctl/addons/play/modules/basic.py": TEXT,
    "ipexctl/facts/gather.py": TEXT,
    "ipexctl/facts/probe/__init__.py": TEXT,
    "ipexctl/node/common/home.py": PRESENT,
    "ipexctl/run/start/exclusive.py": TEXT,
    "ipexctl/run/start/connection_checks.py": TEXT,
    "ipexctl/files/destination.py": PRESENT,
    "ipexctl/files/file_transfer.py": PRESENT,
    "ipexctl/run/fetch.py": PRESENT,
    "ipexctl/node/common/environ.py": OF_HOSTS,
    "ipexctl/node/common/guarded_directory.py": "`anchor` is for programs of hosts, or where there is an O_PATH",
    "ipexctl/node/common/macos.py": "the module that knows the differences",
    "ipexctl/node/common/processes.py": "`start_of` asks macos.py; all that walks /proc is for hosts",
    "ipexctl/node/common/listener.py": PRESENT,
    "ipexctl/node/network/speed.py": OF_HOSTS,
    "ipexctl/node/common/walk.py": "no access control lists but those of Linux are read",
    "ipexctl/node/env/environments.py": OF_HOSTS,
    "ipexctl/node/files/place.py": OF_HOSTS,
    "ipexctl/node/files/tree.py": OF_HOSTS,
    "ipexctl/node/run/follow.py": "for a run that goes on, which is on its node0; the copy of a run is not waited for",
    "ipexctl/node/run/rank/oom.py": OF_HOSTS,
    "ipexctl/node/run/slow_rank.py": OF_HOSTS,
    "ipexctl/node/run/record/unstored_output.py": "the supervisor keeps output in memory; a copy of a run has none",
    "ipexctl/remote/node_call.py": PRESENT,
}


@cache
def control_side() -> tuple[str, ...]:
    """Files of the commands, and of the agent what they import or run here."""
    imports = project_imports()
    waiting = [
        f"ipexctl/node/{folder}/{name}.py"
        for folder, names in zip(("env", "files", "run"), CALLED_ON_ITSELF, strict=True)
        for name in names
    ]
    assert set(waiting) <= set(imports)
    waiting += [file for file in imports if file.startswith("ipexctl/") and not file.startswith("ipexctl/node/")]
    found: set[str] = set()
    while waiting:
        file = waiting.pop()
        if file not in found and file.startswith("ipexctl/") and not file.startswith(NOT_ON_A_MAC):
            found.add(file)
            waiting += imports[file] & _loaded(file)
    return tuple(sorted(found))


def _loaded(file: str) -> frozenset[str]:
    """The files of the project that it imports when it runs, not for its types alone."""
    loaded = statements(ast.parse((ROOT / file).read_text()), with_types=False)
    names = {name for node in loaded for name in imported_names(node)}
    return frozenset(f"{name.replace('.', '/')}{end}" for name in names for end in (".py", "/__init__.py"))


def linux_names(source: str) -> Iterator[str]:
    """Names of Python's modules that macOS lacks, and the kernel's paths in texts that are no documentation."""
    tree = ast.parse(source)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in MODULES:
            yield from {node.attr} & absent_names(node.value.id)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield from {alias.name for alias in node.names} & absent_names(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield from re.findall(r"/proc\b|/sys/|memfd_create", node.value)


def test_names_of_linux_are_found() -> None:
    source = (
        '"""/proc"""\nimport os, socket as s\nfrom signal import sigtimedwait\nos.sched_getaffinity(0)\nopen("/proc/1")'
    )
    assert sorted(linux_names(source)) == ["/proc", "sched_getaffinity", "sigtimedwait"]
    assert {"memfd_create", "O_PATH", "pidfd_open"} <= absent_names("os")
    assert "TCP_KEEPIDLE" in absent_names("socket")
    assert not {"open", "listdir", "O_NOFOLLOW", "supports_dir_fd"} & absent_names("os")


@pytest.mark.needs("git")
def test_code_of_the_control_machine_uses_what_linux_alone_has_only_where_a_reason_is_given() -> None:
    texts = {file: (ROOT / file).read_text() for file in control_side()}
    # To read a name is quicker than to parse a file.
    possible = re.compile(r"/proc\b|/sys/|" + "|".join(sorted(frozenset().union(*map(absent_names, MODULES)))))
    found = {file for file, text in texts.items() if possible.search(text) and any(linux_names(text))}
    assert found == set(ALLOWED)
