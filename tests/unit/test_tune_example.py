"""examples/tune.py: settings take turns, and only those whose turns all differ from the plan's are called different."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import ipexctl
from doc_blocks import ROOT
from ipexctl.node.common.records import RunStatus, Throughput


class Stand:
    """A cluster and its runs, which are as fast as `rates` says, one after the other."""

    rates: ClassVar[dict[str, list[float]]] = {}
    calls: ClassVar[list[str]] = []
    id = "train-1"

    def __init__(self, setting: str = "", exit_code: int = 0) -> None:
        self._exit_code = exit_code
        rate = self.rates[setting].pop(0) if setting in self.rates else None
        self._status = RunStatus("r", "running", throughput=Throughput(rate, None, None, "") if rate else None)

    def plan(self, script: str, args: list[str], **options: Any) -> None:
        self.calls.append(f"plan {script} {args} {options}")
        if "omp" in options and not isinstance(options["omp"], int):
            raise ipexctl.UserError("--omp takes a number", fix="omp=2")

    def run(self, script: str, args: list[str], *, exclusive: bool, wait: float, **options: Any) -> Stand:
        assert exclusive
        setting = " ".join(f"{name}={value}" for name, value in options.items())
        self.calls.append(f"run {script} {setting}")
        return Stand(setting, exit_code=3 if "bad" in setting else 0)

    def events(self) -> Iterator[object]:
        yield self._status
        yield ipexctl.RunEnded(self._exit_code)

    def stop(self) -> None:
        self.calls.append("stop")

    def wait(self, timeout: float) -> Any:
        return type("Waited", (), {"status": self._status})


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["tune.py", *words])
        monkeypatch.setitem(vars(ipexctl), "Cluster", Stand)
        Stand.calls.clear()
        runpy.run_path(str(ROOT / "examples/tune.py"), run_name="__main__")
        return capsys.readouterr().out

    return call


def test_a_setting_differs_only_if_all_its_turns_do(tune: Any) -> None:
    plan, fast, same = "export={}", "omp=2 bind=none export={}", "export={'A_B': '1'}"
    Stand.rates = {plan: [10.0, 11.0, 12.0], fast: [13.0, 14.0, 22.0], same: [11.5, 13.0, 14.0]}
    lines = tune("--rounds", "3", "omp=2,bind=none", "A_B=1", "--", "train.py", "--lr", "1").splitlines()[1:]
    assert [line.split("  ")[-1].strip() for line in lines] == ["11 (10 to 12)", "1.27 of the plan", "no difference"]
    turns = [f"run train.py {setting}" for setting in (plan, fast, same)]
    assert [call for call in Stand.calls if call.startswith("run")] == turns * 3
    assert Stand.calls[0] == "plan train.py ['--lr', '1'] {'export': {}}"
    assert Stand.calls.count("stop") == 9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("omp=x", "--", "train.py"), "fix: omp=2"),
        (("bind=bad", "--", "train.py"), "exit code 3; see: ipexctl why train-1"),
        (("bind=none", "--", "train.py"), "no step .* train-1"),
    ],
)
def test_a_setting_that_fails_ends_it_in_words(tune: Any, words: tuple[str, ...], said: str) -> None:
    Stand.rates = {"export={}": [10.0] * 3}
    with pytest.raises(SystemExit, match=said):
        tune(*words)
    assert Stand.calls.count("stop") == sum(call.startswith("run") for call in Stand.calls)
