"""Synthetic runs for the page of `ipexctl report`."""

from __future__ import annotations

import random

from ipexctl.addons.report.measurements import HostWindow, Measurements, RunPhase, Window, host_curves, rank_grid
from ipexctl.addons.report.page import Fact, ReportPage, SettingRow, StackText, throughput_of
from ipexctl.known_errors.match import Cause
from ipexctl.run.why.diagnosis import AlikeRanks, Diagnosis, Line

START = 1_700_000_000.0


def measurements(ranks: int, seconds: float, ranks_per_host: int = 8, *, seed: int = 1) -> Measurements:
    """Windows of 10 s whose values are noise, which is the worst case for the size of a page."""
    noise = random.Random(seed)
    starts = [START + 10 * n for n in range(int(seconds / 10))]
    windows = {
        rank: [
            Window(at, 10.0, 30, 960, 8 * noise.random() ** 3, 10 * noise.random(), 3e11 * noise.random())
            for at in starts
        ]
        for rank in range(ranks)
    }
    hosts = {
        f"node-{number:03}.example.com": [HostWindow(at, 10.0, 1e8 * noise.random()) for at in starts]
        for number in range(-(-ranks // ranks_per_host))
    }
    return Measurements(windows, hosts)


def hosts_of(ranks: int, ranks_per_host: int = 8) -> dict[int, str]:
    return {rank: f"node-{rank // ranks_per_host:03}.example.com" for rank in range(ranks)}


def measured_page(ranks: int, seconds: float, measured: Measurements) -> ReportPage:
    hosts = hosts_of(ranks)
    grid = rank_grid(measured, hosts, START, START + seconds)
    assert grid is not None
    return page(
        throughput=throughput_of(grid),
        grid=grid,
        hosts=host_curves(measured, hosts, START, START + seconds),
        phases=(RunPhase("start", 0.0, 4.0, "the ranks are started"), RunPhase("steps", 4.0, seconds, "steps")),
    )


def page(text: str = "x", **more: object) -> ReportPage:
    """A page with a text wherever a host, a file or a user has a word."""
    fields: dict[str, object] = {
        "run": f"train-{text}",
        "diagnosis": Diagnosis(
            f"train-{text}",
            "failed",
            f"run train failed: {text}",
            cause=Cause("id", text, f"{text}; ipexctl doctor", "likely"),
            lines=(Line("stderr", text), Line("stdout", text)),
            whose=text,
            others=(AlikeRanks("failed", (1,), ("node1",), text),),
            notes=(text,),
            next=(f"ipexctl logs {text}",),
        ),
        "facts": (Fact("Script", text), Fact("Commit", text)),
        "phases": (RunPhase("script", 0.0, 60.0, text), RunPhase("restart", 60.0, 60.0, text)),
        "settings": (SettingRow(text, text, text, text), SettingRow("TOKEN", "", "asked", "", is_hidden=True)),
        "stacks": (StackText(text, (text, text)),),
        "missing": (text,),
        **more,
    }
    return ReportPage(**fields)  # type: ignore[arg-type]
