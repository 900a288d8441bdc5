"""Start-up imports only needed modules. Times are measured in tools/benchmarks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from test_cli import run_program

HEAVY = (
    "paramiko",
    "fabric",
    "invoke",
    "rich",
    "yaml",
    "ClusterShell",
    "cryptography",
    "asyncio",
    "platformdirs",
    "pydantic",
)


def imported_by(code: str, env: dict[str, str] | None = None) -> set[str]:
    return {name.partition(".")[0] for name in modules_of(code, env)}


def modules_of(code: str, env: dict[str, str] | None = None) -> set[str]:
    program = f"""
import atexit, sys
atexit.register(lambda: print("IMPORTED", *sorted(m for m in sys.modules if sys.modules[m] is not None), flush=True))
{code}
"""
    done = run_program(sys.executable, "-c", program, env={**os.environ, **(env or {})})
    assert "Traceback" not in done.stderr, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("IMPORTED "))
    return set(line.split()[1:])


def call(*args: str) -> str:
    return f"import sys; sys.argv = ['ipexctl', *{args!r}]\nfrom ipexctl.__main__ import main\nmain()"


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["exec", "--help"], ["lab", "--help"], ["exce"]])
def test_version_help_and_unknown_commands_import_no_heavy_modules(args: list[str]) -> None:
    imported = modules_of(call(*args))
    assert not {name.partition(".")[0] for name in imported} & set(HEAVY)
    assert "importlib.metadata" not in imported


def test_help_of_exec_imports_few_modules_of_ours() -> None:
    """A command's file imports at its top what its options and report need; the way to hosts comes with the call."""
    own = {name for name in modules_of(call("exec", "--help")) if name.startswith("ipexctl.")}
    assert len(own) <= 20, sorted(own)
    assert not own & {"ipexctl.commands.target_hosts", "ipexctl.remote.connector", "ipexctl.launch.spec"}


def test_import_of_the_package_imports_none_of_its_modules() -> None:
    assert {name for name in modules_of("import ipexctl") if name.startswith("ipexctl")} == {"ipexctl"}
    imported = imported_by("import ipexctl; ipexctl.Cluster(['node1'])")
    assert not imported & {"paramiko", "fabric", "rich", "typer"}


def test_completion_of_a_command_name_imports_no_command_module() -> None:
    environ = {"_IPEXCTL_COMPLETE": "complete_bash", "COMP_WORDS": "ipexctl ex", "COMP_CWORD": "1"}
    imported = modules_of(call(), environ)
    assert "typer" in imported
    assert not {name.partition(".")[0] for name in imported} & set(HEAVY)
    assert {name for name in imported if name.startswith("ipexctl.commands.")} <= {
        f"ipexctl.commands.{each}" for each in ("app", "option_types")
    }


def test_command_on_localhost_imports_no_ssh_library(tmp_path: Path) -> None:
    """Without a file of defaults, it needs no reader of TOML either."""
    imported = imported_by(call("exec", "--hosts", "localhost", "--", "true"), {"XDG_CONFIG_HOME": str(tmp_path)})
    assert not imported & {"paramiko", "fabric", "rich", "yaml", "tomllib", "tomli"}
