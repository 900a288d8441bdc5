"""`ipexctl versions` from outside: exit codes, JSON, 80 columns."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_cli import call

from ipexctl.stack.catalog import rows
from message_data import missing


def versions(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return call("versions", *args, env={"XDG_CONFIG_HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent", **env})


def document(*args: str, **env: str) -> Any:
    return json.loads(versions("--json", *args, **env).stdout)


def test_table_choice_and_reason_fit_80_columns() -> None:
    done = versions("--require-oneccl")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    for row in rows():
        assert f" {row.name} " in done.stdout
    assert "* ipex-2.7: torch 2.7.0, IPEX 2.7.0, oneccl_bind_pt 2.7.0" in done.stdout
    assert "why: " in done.stdout
    assert missing(done.stdout, "2026 --stack torch torch-2.15") == []
    assert done.stdout.count("\n* ") == 2


def test_json_has_rows_choice_and_reason() -> None:
    said = document("--torch", "2.7")
    assert said["schema"] == "ipexctl.versions/1"
    assert [row["name"] for row in said["rows"]] == [row.name for row in rows()]
    assert {
        "name": "ipex-2.7", "torch": "2.7.0", "ipex": "2.7.0", "oneccl": "2.7.0", "mpi": "2021.14", "python": "3.12",
        "backend": "ccl", "retired": True,
    }.items() <= said["choice"].items()  # fmt: skip
    assert said["why"]
    assert said["notes"]
    first = said["rows"][0]
    assert {"name", "torch", "ipex", "oneccl", "pythons", "glibc", "isa", "retired", "module", "setvars", "indexes",
            "known_bad", "sources", "backend", "mpi", "constraints"} <= set(first)  # fmt: skip


def test_choice_is_open_if_no_index_was_queried() -> None:
    said = document("--stack", "ipex")
    assert (said["choice"], [candidate["name"] for candidate in said["candidates"]]) == (
        None,
        ["ipex-2.7", "ipex-2.8"],
    )
    assert not said["refused"]
    done = versions("--stack", "ipex")
    assert (done.returncode, missing(done.stdout, "ipex-2.7 ipex-2.8 --dry-run")) == (0, [])


@pytest.mark.parametrize(
    ("files", "name", "why"),
    [
        ({"train.py": "import torch\n"}, "torch-2.15", ""),
        ({"train.py": "import torch\nimport intel_extension_for_pytorch as ipex\n"}, None, "train.py line 2"),
        ({"train.py": "try:\n    import intel_extension_for_pytorch\nexcept ImportError:\n    pass\n"},
         "torch-2.15", ""),
        ({"requirements.txt": "intel_extension_for_pytorch\n"}, None, "intel-extension-for-pytorch"),
        ({"pyproject.toml": '[project]\nname = "a"\ndependencies = ["oneccl_bind_pt"]\n'}, None, "oneccl-bind-pt"),
        ({"train.py": "import intel_extension_for_pytorch(\n"}, "torch-2.15", ""),
    ],
)  # fmt: skip
def test_a_project_that_uses_ipex_gets_a_stack_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], name: str | None, why: str
) -> None:
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    said = document()
    assert (said["choice"] and said["choice"]["name"]) == name
    assert {candidate["name"] for candidate in said["candidates"]} == ({name} if name else {"ipex-2.7", "ipex-2.8"})
    assert missing(said["why"], why) == []
    assert document("--stack", "torch")["choice"]["name"] == "torch-2.15"


def test_stock_pytorch_has_no_ipex_and_uses_mpi_from_pip() -> None:
    said = document("--stack", "torch")
    assert said["choice"]["name"] == "torch-2.15"
    assert (said["choice"]["ipex"], said["choice"]["oneccl"], said["choice"]["retired"]) == (None, None, False)
    assert said["choice"]["mpi"] == "impi-rt>=2021.14,<2021.19"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--torch", "2.16"], 2, "2.15"),
        (["--stack", "ipex-2.9"], 2, "ipex-2.8"),
        (["--python", "4.1"], 2, ""),
        (["--torch", "1.12.1", "--oneccl", "1.12.0"], 1, "torch 1.12.1 1.12.100"),
        (["--torch", "2.8", "--python", "3.14"], 1, "IPEX 2.8 Python 3.9 3.13 3.14"),
        (["--torch", "2.8", "--require-oneccl"], 1, "2.7"),
    ],
)
def test_exit_code_is_2_for_unknown_versions_and_1_for_conflicts(args: list[str], code: int, said: str) -> None:
    done = versions("-q", *args)
    assert done.returncode == code
    assert done.stdout == ""
    assert missing(done.stderr, said) == []
    in_json = versions("--json", *args)
    assert in_json.returncode == code
    answer = json.loads(in_json.stdout)
    assert answer["choice"] is None
    assert missing(f"{answer['why']} {answer['fix']}", said) == []
    assert len(answer["rows"]) == len(rows())


def test_named_hosts_are_probed() -> None:
    said = document("--hosts", "localhost", "--stack", "torch")
    assert [(host["name"], host["status"]) for host in said["hosts"]] == [("localhost", "ok")]
    assert said["choice"]["interpreters"].keys() == {"localhost"}
    wrong = versions("--hosts", "localhost", "--torch", "9.9")
    assert wrong.returncode == 2


def test_unreachable_host_exits_with_3_and_other_hosts_get_a_choice() -> None:
    done = versions("--hosts", "localhost,no-such-name.invalid", "--stack", "torch")
    assert done.returncode == 3
    assert "no-such-name.invalid: unreachable" in done.stderr
    assert "\n* " in done.stdout
    assert document("--hosts", "no-such-name.invalid")["choice"] is None


def test_stock_torch_of_an_ipex_row_is_listed_if_chosen() -> None:
    lines = versions("--stack", "torch-2.7").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("* ")] == ["*", "*"]
    place = next(place for place, line in enumerate(lines) if line.startswith("* torch-2.7 "))
    assert lines[place - 1].startswith("  ipex-2.7 ")


def test_user_rows_are_used_and_invalid_ones_named_by_row_and_key(tmp_path: Path) -> None:
    own = tmp_path / "rows.json"
    own.write_text('[{"name": "torch-2.16", "torch": "2.16.0", "torch_pythons": ["3.12"]}]')
    assert document("--stack", "torch", IPEXCTL_ROWS=str(own))["choice"]["name"] == "torch-2.16"
    own.write_text('[\n {"name": "torch-2.16",\n  "trch": "2.16.0"}\n]')
    done = versions(IPEXCTL_ROWS=str(own))
    assert done.returncode == 2
    what, fix = done.stderr.splitlines()
    assert missing(what, f"{own} 'torch-2.16' 'trch'") == []
    assert missing(fix, "torch") == []
