"""examples/tune.py: settings take turns, and only those whose turns all differ from the plan's are called different."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import ipexctl
from doc_blocks import ROOT
from ipexctl.node.common.records import RunStatus, Throughput


class Stand:
    """A cluster and its runs, which are as fast as `rates` says, one after the other."""

    rates: ClassVar[dict[str, list[float]]] = {}
    calls: ClassVar[list[str]] = []
    places: ClassVar[list[tuple[Path, Path, list[str]]]] = []
    """Script, working directory, and the files of the script's directory, of each run."""
    said: ClassVar[str] = ""
    losses: ClassVar[dict[str, bytes]] = {}
    id = "train-1"

    def __init__(self, setting: str = "", exit_code: int = 0) -> None:
        self._exit_code, self._output = exit_code, self.losses.get(setting, b"")
        ranks = 4 if "ppn" in setting else 2
        rate = self.rates[setting].pop(0) if setting in self.rates else None
        self._status = RunStatus("r", "running", world_size=ranks)
        if rate is not None:
            self._status = self._status._replace(throughput=Throughput(rate, None, None, ""))

    def exec(self, line: str) -> None:
        self.calls.append(line)

    def plan(self, script: str, args: list[str], **options: Any) -> Any:
        self.calls.append(f"plan {script} {args} {options}")
        if "omp" in options and not isinstance(options["omp"], int):
            raise ipexctl.UserError("--omp takes a number", fix="omp=2")
        if "autocast" in options:
            raise ipexctl.UserError("no bf16", fix="")
        ranks = [SimpleNamespace(omp=4)] * 2
        hosts = [SimpleNamespace(ranks=ranks, cores=8)]
        return SimpleNamespace(hosts=hosts, home="/h h", project=SimpleNamespace(root=str(Path.cwd())))

    def run(self, script: str, args: list[str], *, exclusive: bool, wait: float, **options: Any) -> Stand:
        assert exclusive
        setting = " ".join(f"{name}={value}" for name, value in options.items())
        path = Path(script)
        self.places.append((path, Path.cwd(), sorted(each.name for each in path.parent.iterdir())))
        (path.parent / "last.pt").touch()  # as a script that checkpoints
        self.calls.append(f"run {path.name} {setting}")
        return Stand(setting, exit_code=3 if "bad" in setting else 0)

    def events(self) -> Iterator[object]:
        yield ipexctl.Chunk(1, "stdout", b"loss 9.9\n")
        yield ipexctl.Chunk(0, "stdout", self._output)
        yield self._status
        yield ipexctl.RunEnded(self._exit_code)

    def stop(self) -> None:
        self.calls.append("stop")

    def wait(self, timeout: float) -> Any:
        return type("Waited", (), {"status": self._status})


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    Stand.places.clear()

    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["tune.py", *words])
        monkeypatch.setitem(vars(ipexctl), "Cluster", Stand)
        Stand.calls.clear()
        runpy.run_path(str(ROOT / "examples/tune.py"), run_name="__main__")
        shown = capsys.readouterr()
        Stand.said = shown.err
        return shown.out

    return call


def test_a_setting_differs_only_if_all_its_turns_do(tune: Any) -> None:
    plan, fast, same = "export={}", "omp=2 bind=none export={}", "export={'A_B': '1'}"
    Stand.rates = {plan: [10.0, 11.0, 12.0], fast: [13.0, 14.0, 22.0], same: [11.5, 13.0, 14.0]}
    *lines, _, line = tune("--rounds", "3", "omp=2,bind=none", "A_B=1", "--", "train.py", "--lr", "1").splitlines()[1:]
    assert line == "the fastest: ipexctl run --omp 2 --bind none train.py --lr 1"
    assert [line.split("  ")[-1].strip() for line in lines] == ["11 (10 to 12)", "1.27 of the plan", "no difference"]
    turns = [f"run train.py {setting}" for setting in (plan, fast, same)]
    assert [call for call in Stand.calls if call.startswith("run")] == turns * 3
    assert Stand.calls[0] == "plan train.py ['--lr', '1'] {'export': {}}"
    assert Stand.calls.count("stop") == 9


def test_each_turn_has_a_copy_of_the_project_that_is_gone_afterwards(tune: Any, tmp_path: Path) -> None:
    (tmp_path / "last.pt").write_bytes(b"mine")
    (tmp_path / ".git").mkdir()
    Stand.rates = {"export={}": [10.0, 11.0], "omp=2 export={}": [13.0, 14.0]}
    tune("--rounds", "2", "omp=2", "--", "train.py")
    assert (tmp_path / "last.pt").read_bytes() == b"mine"
    assert len({script for script, _, _ in Stand.places}) == 4
    for script, directory, files in Stand.places:
        assert directory == script.parent != tmp_path
        assert files == [".ipexctlignore", "last.pt", "train.py"]
        assert not directory.exists()
        assert f"rm -rf '/h h'/code/{directory.name}*" in Stand.calls
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("omp=x", "--", "train.py"), "fix: omp=2; if it is an argument of the script: -- train.py omp=x"),
        (("bind=bad", "--", "train.py"), "exit code 3; see: ipexctl why train-1"),
        (("bind=none", "--", "train.py"), "no step .* train-1"),
    ],
)
def test_a_setting_that_fails_ends_it_in_words(tune: Any, words: tuple[str, ...], said: str) -> None:
    Stand.rates = {"export={}": [10.0] * 3}
    with pytest.raises(SystemExit, match=said):
        tune(*words)
    assert Stand.calls.count("stop") == sum(call.startswith("run") for call in Stand.calls)


def test_without_settings_those_for_an_unchanged_script_take_turns(tune: Any) -> None:
    said = {setting: f"{setting}=True export={{}}" for setting in ("fast", "fused_optimizer")}
    said |= {setting: f"{setting} export={{}}" for setting in ("fp32_math=bf16", "ppn=1", "ppn=4", "omp=2")}
    rates = {"fast": 20.0, "fused_optimizer": 12.0, "fp32_math=bf16": 10.0, "ppn=4": 90.0, "omp=2": 5.0}
    Stand.rates = {"export={}": [10.0, 10.0], **{said[setting]: [rate, rate] for setting, rate in rates.items()}}
    plain = b"step 1 train_loss 2.50\nstep 2 val_loss: 1 loss: 2.25\nstep 3 loss 2.0\n"
    Stand.losses = {"export={}": plain, **dict.fromkeys(said.values(), plain), said["fast"]: b"loss=2.5\nloss=2.26\n"}
    lines = tune("--rounds", "2", "train.py", "--lr", "1e-3").splitlines()
    Stand.losses = {}
    assert lines == [
        "setting          steps/s (lowest to highest)  loss no. 2",
        "the plan         10 (10 to 10)  2.25",
        "fast             20 (20 to 20)  2.26  2.00 of the plan",
        "fused-optimizer  12 (12 to 12)  2.25  1.20 of the plan",
        "fp32-math=bf16   10 (10 to 10)  2.25  no difference",
        "ppn=4            90 (90 to 90)  2.25  4 ranks, and its samples were not counted",
        "omp=2            5 (5 to 5)  2.25  0.50 of the plan",
        "",
        "the fastest: ipexctl run --fast train.py --lr 1e-3",
    ]
    turns = [call.split(" ", 2)[2] for call in Stand.calls if call.startswith("run")]
    assert turns[:3] == ["export={}", said["fast"], said["fused_optimizer"]]


def test_usual_settings_that_are_refused_or_fail_are_left_out_in_words(tune: Any) -> None:
    Stand.rates = {"export={}": [10.0]}
    with pytest.raises(SystemExit):
        tune("--rounds", "1", "omp=2", "train.py")
    assert tune("--rounds", "1", "train.py").endswith("\nnothing is faster than the plan: ipexctl run train.py\n")
    assert "autocast=bf16 is left out: no bf16" in Stand.said
    assert "left out: fast: no step of a torch optimizer was counted in run train-1" in Stand.said
