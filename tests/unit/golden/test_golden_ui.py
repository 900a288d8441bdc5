"""The texts that are shown around results: ps, install, the end of a run, its live view."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_ui_install as install
import test_unit_lab_condition as lab
from golden_file import Case, golden_diff, refusal
from test_run_screen import plain, status

from ipexctl.addons.lab.lab_command import condition_text
from ipexctl.addons.lab.lab_record import labs_to_remove
from ipexctl.commands import install_command, ps_command
from ipexctl.errors import Refusal
from ipexctl.node.common.records import Failure, RankFigures, RankStatus, RunStatus, TrainingGroup, Untrained
from ipexctl.node.run.decisions.verdict import describe_exit
from ipexctl.run.ranks import parse_ranks
from ipexctl.stack.install_context import InstallReport
from ipexctl.ui.run.end_of_run import end_lines
from ipexctl.ui.run.state import Controls, RunState


def ends() -> list[Case]:
    failures: list[tuple[Failure | None, str]] = [
        (Failure(3, "node2", 7, kind="exit"), "rank 3 on node2 ended with exit code 7"),
        (Failure(3, "node2", 137, 9, kind="oom"), "REASON"),
        (Failure(None, None, kind="lost"), "REASON"),
        (None, "REASON"),
        (Failure(3, "node2", None, 9), f"rank 3 on node2 {describe_exit(None, 9, None)}"),
    ]
    ended = [
        RunStatus("run1", "failed", world_size=6, nodes=3, first_failure=each, reason=why) for each, why in failures
    ]
    ranks = (
        RankStatus(0, "a", figures=RankFigures(lost=1000)),
        RankStatus(1, "a"),
        RankStatus(2, "b", figures=RankFigures(lost=234)),
    )
    ended.append(RunStatus("run1", "ok", world_size=3, nodes=2, ranks=ranks, attempt=2, restarts=3))
    ended += [RunStatus("run1", "ok", world_size=3, nodes=2), RunStatus("run1", "stopped", world_size=3, nodes=2)]
    ended.append(RunStatus("run1", "ok", world_size=4, nodes=2, group=TrainingGroup(4, 2)))
    ended += [RunStatus("run1", "ok", untrained=each) for each in (Untrained(), Untrained(1, "no GPU"))]
    cases = [Case("end of a run", "\n".join(end_lines(each, each.state != "ok"))) for each in ended]
    screen = RunState(status(2))
    screen.controls.stopping = True
    controls = Controls(parse_ranks("1"))
    for key in ["/", "-", "enter"]:
        controls.press(key)
    return [*cases, Case("live view, stopping", plain(screen)[-1]), Case("live view, filter", controls.error)]


def test_ui(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # where no call has failed
    cases = ends()
    for hidden in (0, 3):
        ps_command.show([], hidden=hidden)
        cases.append(Case(f"ps, {hidden} hidden", capfd.readouterr().err))
    good, bad = install.host("n1", verify=install.PROOF), install.host("n2", "failed", "REASON", fix="FIX")
    refused = InstallReport((bad,), 1.0, refusal=Refusal("REASON", "FIX", ("n2",)))
    unchanged = install.report(install.host("n1", "ok", verify=install.PROOF))
    for report in (install.report(good), install.report(good, bad), unchanged, refused):
        install_command.show(report)
        out, err = capfd.readouterr()
        cases += [Case("install, stdout", out), Case("install, stderr", err)]
    monkeypatch.setenv("COLUMNS", "140")
    assert not (diff := golden_diff("ui", [*cases, *labs()])), diff


def labs() -> list[Case]:
    told = [Case(f"lab list, {case}", *condition_text(item)) for case, (item, *_) in lab.CONDITIONS.items()]
    refused = [
        refusal("lab down", lambda: labs_to_remove(lab.named(*cases), name, remove_all=remove_all))  # noqa: B023
        for cases, name, remove_all in (
            (("up", "unreadable", "abandoned"), None, False),
            (("up", "up and temporary"), None, False),
            (("up and temporary", "cut-short"), None, False),
            (("busy",), None, False),
            (("up",), "other", False),
            (("up",), "up", True),
        )
    ]
    return [*(case for case in told if case.message), *refused]
