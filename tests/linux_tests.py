"""Leaves out, on a control machine that is no Linux, the tests of what only a host does; `LEFT_OUT` has the reasons."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

HOST = "what hosts run: the agent, its probe, scripts of a playbook"
THIS_MACHINE = "calls whose host is this machine"
SYSTEM = "/proc, /dev/fd, ps and openssl as Linux has them"
LEFT_OUT = {
    "node/test_[!m]*.py": HOST,
    "node/run/**/test_*.py": HOST,
    "inrank/test_*.py": HOST,
    "addons/lab/test_*.py": HOST,
    "addons/play/test_play_copy.py": HOST,
    "addons/play/test_play_templates.py": SYSTEM,
    "stack/test_env_record.py": HOST,
    "commands/test_versions_command.py": THIS_MACHINE,
    "commands/test_config.py": THIS_MACHINE,
    "commands/test_run_call.py": THIS_MACHINE,
    "commands/test_untrusted_files.py": SYSTEM,
    "remote/test_command.py": SYSTEM,
    "remote/test_host_keys.py": SYSTEM,
    "remote/test_ssh_config.py": SYSTEM,
    "homes/test_local_copy.py": SYSTEM,
    "test_file_reader.py": SYSTEM,
}
"""Patterns below tests/unit."""


@cache
def left_out() -> frozenset[Path]:
    unit = Path(__file__).parent / "unit"
    found = {pattern: set(unit.glob(pattern)) for pattern in LEFT_OUT}
    assert all(found.values()), "a pattern of a file that has moved"
    return frozenset().union(*found.values())


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if sys.platform != "linux" and collection_path in left_out() else None
