"""A printed line of `ipexctl run` starts the run that was typed, with one option more: lines of READMEs and of other
launchers are read as the command line reads them, and so is what is printed after a refusal; both have one plan."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from launch_helpers import cpu, machine, request
from test_config import parse

from case_table import sections_of
from ipexctl.commands.spec_of_call import read_launch_call
from ipexctl.errors import Refusal, UserError
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.run_declarations import call_of
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.fix import Fix, FixCommand
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.run_options import Export
from ipexctl.option_declaration import CallOptions, TypedCall
from ipexctl.run.start.start_request import StartFailure
from plan_helpers import spec_of

HERE = Path(__file__).parent
README = json.loads((HERE.parents[1] / "data" / "readme_lines.json").read_text())
SECTIONS = sections_of(HERE / "launcher_lines.txt")
ROWS = (
    *(row.split("|")[1] for row in SECTIONS["the_command_behind_the_launchers_is_run"][1:]),
    *(row.rpartition("|")[0] for row in SECTIONS["options_that_ipexctl_has_are_taken_over"][1:]),
)
LINES = [*((each["line"], each.get("files", {})) for each in README), *((row.strip(), {}) for row in ROWS)]
OWN = ("", "--ppn 1 -x A='b c' --hosts n[2-4]", "--omp 2 --master-port 1234 -l '!n1'")


def spec_of_call(words: list[str], monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    """What the command line makes of the words after `ipexctl`; no host is contacted."""
    specs = list[RunSpec]()

    def read_only(*given: Any) -> Any:
        specs.append(read_launch_call(*given))
        raise typer.Exit

    monkeypatch.setattr("ipexctl.commands.run_call.read_launch_call", read_only)
    monkeypatch.setattr(sys, "argv", ["ipexctl", *words])
    context = parse(*words)
    with pytest.raises(typer.Exit):
        context.command.invoke(context)
    return specs[0]


def planned(spec: RunSpec) -> Plan | Refusal:
    facts = machine(cpu(64, 2, sockets=2))
    names = [host.name for host in spec.hosts]
    internal = {name: f"10.1.0.{at}" for at, name in enumerate(names, 1)}
    context = request(*(facts for _ in names), names=names, internal=internal)
    return plan_launch(replace(context, spec=spec), "run-1")


def printed(spec: RunSpec, command: FixCommand) -> list[str]:
    (line,) = StartFailure("", Fix.of((command,))).with_call_options(spec.options).fix.commands  # type: ignore[attr-defined]
    words = shlex.split(str(line))
    assert words[0] == "ipexctl"
    return words[1:]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    (root / ".ipexctlignore").touch()
    for name in ("hostfile", "hosts"):
        (root / name).write_text("n1\nn2\nn3\nn4\n")
    return root


@pytest.mark.parametrize("own", OWN)
def test_the_printed_line_has_the_plan_of_the_call(own: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = set[str]()
    for line, files in LINES:
        scripts = {word: "" for word in shlex.split(line) if word.endswith(".py") and word[0] != "/"}
        for name, text in (files or scripts).items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
        typed = ["run", "--dry-run", *shlex.split(own), *shlex.split(line)]
        try:
            spec = spec_of_call(typed, monkeypatch)
        except UserError:
            continue  # a line that `run` refuses
        again = printed(spec, FixCommand("ipexctl ", ("run", "--install"), spec.asked.program))
        assert sorted(again) == sorted([*typed, "--install"]), line
        assert planned(spec_of_call(again, monkeypatch)) == planned(spec), line
        compared.add(line)
    assert len(compared) > 80


TORCHRUN = ("torchrun", "--nproc_per_node=2", "train.py", "--lr", "1")


@pytest.mark.parametrize(
    ("options", "words", "program", "fix", "line"),
    [
        ("--ppn 2 -H h", TORCHRUN, TORCHRUN[2:], ("", "-m pkg.train --lr 1"),
         "--ppn 2 -H h torchrun --nproc_per_node=2 -m pkg.train --lr 1"),
        ("-n4 -l a", TORCHRUN, TORCHRUN[2:], ("-n 1", "train.py --help"),
         "-n 1 -l a torchrun --nproc_per_node=2 train.py --help"),
        ("-l a --with x", TORCHRUN, TORCHRUN[2:], ("-l !b --with y", "-- bash ./x.sh"),
         "-l 'a,!b' --with y --with x -- bash ./x.sh"),
        ("--ppn 2 -m pkg", ("a",), ("-m", "pkg", "a"), ("--install", "-m pkg a"), "--install --ppn 2 -m pkg a"),
        ("--ppn 2 -m pkg", ("a",), ("-m", "pkg", "a"), ("-n 1 -m", "pkg --help"), "-n 1 -m pkg --help"),
        ("-x A=1", ("--", "tool", "a"), ("--", "tool", "a"), ("--install --", "tool a"), "--install -x A=1 -- tool a"),
        ("-x A=1", ("tool", "a"), ("tool", "a"), ("", "-- tool a"), "-x A=1 -- tool a"),
        ("-q", ("A=1", "mpirun", "-n", "2", "tool"), ("--", "tool"), ("--install", "-- tool"),
         "--install -q A=1 mpirun -n 2 tool"),
        ("", ("torchx", "run", "--script", "t.py", "--", "1"), ("t.py", "1"), ("", "t.py 2"), "--ppn 3 t.py 2"),
    ],
)  # fmt: skip
def test_a_line_for_another_program_keeps_the_launcher(
    options: str, words: tuple[str, ...], program: tuple[str, ...], fix: tuple[str, str], line: str
) -> None:
    given = CallOptions(run=" --ppn 3", call=TypedCall((*options.split(),), words, str(Path.cwd())), program=program)
    command = FixCommand("ipexctl ", ("run", *fix[0].split()), (*fix[1].split(),))
    assert str(given.complete(command)) == f"ipexctl run {line}"


def test_a_line_that_is_typed_elsewhere_goes_to_the_directory_of_the_call(tmp_path: Path) -> None:
    call = TypedCall(("--hostfile", "h"), ("train.py",), str(tmp_path / "my project"))
    again = FixCommand("ipexctl ", ("run", "--install"), ("train.py",))
    done = CallOptions(" -H h", call=call, program=("train.py",)).complete(again)
    assert str(done) == f"cd '{tmp_path}/my project' && ipexctl run --install --hostfile h train.py"


def test_a_program_s_run_is_printed_with_all_its_options() -> None:
    exports = (Export("A", "-x", "b c"), Export("TOKEN", "-x", None))
    given = {"ppn": 2, "master_port": 1234, "sync": False, "fast": True, "exclude": ("a", "b"), "time_limit": 60.0}
    asked = spec_of("module", ("pkg.train", "--lr", "1"), exports=exports, packages=("x<2",), **given).asked
    options = CallOptions(" -H h", call=call_of(asked), program=asked.program)
    fix = options.apply(Fix.of((FixCommand("ipexctl ", ("run", "--install"), asked.program),)))
    assert fix == (
        "ipexctl run -H h --install --ppn 2 --fast --master-port 1234 --time-limit 60 --exclude a --exclude b "
        "--no-sync -x 'A=b c' -x TOKEN --with 'x<2' -m pkg.train --lr 1"
    )


def test_a_word_that_is_no_script_is_looked_for_in_the_environment(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (("tool", "--a"), ("A=1", "tool", "--a")):
        spec = spec_of_call(["run", *words], monkeypatch)
        assert (spec.project.is_tool, spec.asked.kind, spec.asked.argv) == (True, "command", ("tool", "--a"))
        elsewhere = FixCommand("ipexctl ", ("run",), ("--", *spec.asked.argv))
        assert printed(spec, elsewhere) == ["run", *words[:-2], "--", "tool", "--a"]
    for wrong in ("tool.py", "no/tool"):
        with pytest.raises(UserError):
            spec_of_call(["run", wrong], monkeypatch)
