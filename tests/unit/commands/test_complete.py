"""Completion of runs, hosts and environments from local files; invalid files give no completions."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from test_cli import call, run_program

from case_table import case_table
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host
from record_helpers import run_record

HOSTFILE = "node[1-3]:2\nbig9\n"
INVENTORY = "[cpu]\nrack1\nrack2\n[gpu]\nraven\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "hostfile").write_text(HOSTFILE)
    (tmp_path / "hosts.ini").write_text(INVENTORY)
    (tmp_path / "broken").write_text("node1 slotz=4\n")
    return tmp_path


def environ(place: Path, **more: str) -> dict[str, str]:
    strays = ("IPEXCTL_HOSTFILE", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "PBS_NODEFILE")
    return {**dict.fromkeys(strays, ""), "XDG_STATE_HOME": str(place / "state"), **more}


def run_completion(place: Path, **more: str) -> list[str]:
    done = call(cwd=place, env=environ(place, **more))
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


def tab(place: Path, *words: str, **more: str) -> list[str]:
    """The completions that bash gets for the last of these words."""
    line = " ".join(("ipexctl", *words))
    return run_completion(place, _IPEXCTL_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words)), **more)


def save_runs(place: Path, *runs: tuple[str, str]) -> None:
    register = RunRegistry(place / "state/ipexctl/runs")
    for age, (run, env) in enumerate(reversed(runs)):
        register.save(run_record(run, Host(name="node1", address="node1"), "/home/me/.ipexctl", "python3", env=env))
        os.utime(register.directory / f"{run}.json", (1e9 + age, 1e9 + age))


@case_table
def test_hosts_are_completed_from_the_hostfile_of_the_command(
    place: Path, words: tuple[str, ...], offered: list[str]
) -> None:
    assert tab(place, *words) == offered


def test_hosts_are_completed_from_ipexctl_hostfile_variable(place: Path) -> None:
    assert tab(place, "exec", "-l", "", IPEXCTL_HOSTFILE="hosts.ini")[:3] == ["rack1", "rack2", "raven"]


@case_table
def test_runs_are_completed_newest_first(place: Path, command: str) -> None:
    save_runs(
        place, ("train-1120-0002", "ipex-2.8-aa"), ("train-1120-0001", "ipex-2.8-aa"), ("other-1119", "torch-2.13-bb")
    )
    assert tab(place, command, "") == ["last", "train-1120-0002", "train-1120-0001", "other-1119"]
    assert tab(place, command, "tr") == ["train-1120-0002", "train-1120-0001"]


@pytest.fixture
def project(place: Path) -> Path:
    project = place / "project"
    (project / "checkpoints/checkpoint-10").mkdir(parents=True)
    (project / "checkpoints/last.pt").touch()
    (project / "check.py").touch()
    register = RunRegistry(place / "state/ipexctl/runs")
    host = Host(name="node1", address="node1")
    register.save(run_record("train-1120-0001", host, "/home/me/.ipexctl", "python3", project=str(project)))
    return project


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("last:che", ["check.py", "checkpoints/"]),
        ("train:checkpoints/", ["checkpoints/checkpoint-10/", "checkpoints/last.pt"]),
        ("last:none/", []),
        ("other:", []),
    ],
)
def test_paths_of_a_run_are_completed_from_its_project(
    place: Path, project: Path, typed: str, offered: list[str]
) -> None:
    run, _, path = typed.partition(":")
    zsh = run_completion(place, _IPEXCTL_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=f"ipexctl fetch {typed}")
    assert re.findall('"(.*?)"', "".join(zsh)) == [rf"{run}\\:{name}" for name in offered]
    # bash has cut the word at the colon, and puts the answer behind it.
    assert tab(place, "fetch", run, ":", path) == offered
    assert tab(project / "checkpoints", "fetch", "last", ":", "l", XDG_STATE_HOME=str(place / "state")) == ["last.pt"]


def test_hosts_and_faults_of_labs_are_completed(place: Path) -> None:
    """The labs of this machine, which another test may make at this moment."""
    assert tab(place, "lab", "break", "node1", "slow-") == ["slow-link", "slow-rc"]
    assert tab(place, "lab", "mend", "no-such-host", "") == []
    assert tab(place, "lab", "down", "no-such-lab") == []


def test_environments_are_completed_from_recorded_runs(place: Path) -> None:
    save_runs(place, ("c", "ipex-2.8-aa"), ("b", "/opt/conda/bin/python"), ("a", "torch-2.13-bb"))
    (place / "state/ipexctl/runs/damaged.json").write_text("{")
    assert tab(place, "run", "--env", "") == ["default", "ipex-2.8-aa", "torch-2.13-bb"]
    assert tab(place, "envs", "--remove", "t") == ["torch-2.13-bb"]


def test_built_in_and_local_playbooks_are_completed(place: Path) -> None:
    (place / "trial.yml").touch()
    (place / "train.py").touch()
    assert tab(place, "play", "tr") == ["train", "trial.yml"]
    assert tab(place, "play", "dir/tr") == []


def test_only_last_and_default_are_completed_without_records(place: Path) -> None:
    assert tab(place, "logs", "") == ["last"]
    assert tab(place, "install", "--env", "") == ["default"]


def test_zsh_and_fish_get_completions_in_their_format(place: Path) -> None:
    words = {"_TYPER_COMPLETE_ARGS": "ipexctl exec -l n"}
    zsh = run_completion(place, _IPEXCTL_COMPLETE="complete_zsh", **words)
    assert zsh == ['_arguments \'*: :(("node1"', '"node2"', '"node3"))\'']
    fish = run_completion(place, _IPEXCTL_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **words)
    assert fish == ["node1", "node2", "node3"]


def test_commands_are_completed_with_their_help(place: Path) -> None:
    assert tab(place, "ex") == ["exec"]
    assert tab(place, "lab", "d") == ["down"]
    zsh = run_completion(place, _IPEXCTL_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="ipexctl exe")
    assert [line.startswith('_arguments \'*: :(("exec":"') and line.endswith("\"))'") for line in zsh] == [True]
    assert tab(place, "exec", "--gat") == ["--gather"]


@pytest.mark.parametrize(("shell", "ends"), [("bash", "complete -o default"), ("zsh", "compdef ")])
def test_completion_scripts_call_ipexctl_and_register_completion(place: Path, shell: str, ends: str) -> None:
    script = run_completion(place, _IPEXCTL_COMPLETE=f"source_{shell}")
    assert any(f"_IPEXCTL_COMPLETE=complete_{shell}" in line for line in script)
    assert next(line for line in reversed(script) if line).startswith(ends)


@pytest.mark.needs("bash")
def test_bash_completes_with_the_completion_script(place: Path) -> None:
    program = place / "bin/ipexctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ipexctl "$@"\n')
    program.chmod(0o755)
    line = 'eval "$(_IPEXCTL_COMPLETE=source_bash ipexctl)"; COMP_WORDS=(ipexctl exec -l node1,n); COMP_CWORD=3; '
    path = f"{program.parent}:{os.environ['PATH']}"
    env = {**os.environ, **environ(place, PATH=path, PYTHONPATH=str(Path(__file__).parents[3]))}
    line += '_ipexctl_completion ipexctl; printf "%s\\n" "${COMPREPLY[@]}"'
    done = run_program("bash", "--norc", "-c", line, cwd=place, env=env)
    assert (done.stdout.split(), done.stderr) == (["node1,node2", "node1,node3"], "")


def test_completion_waits_for_no_pipe(place: Path) -> None:
    os.mkfifo(place / "pipe")
    assert tab(place, "exec", "-H", "pipe", "-l", "") == []
