"""The example of fewer hosts: three, then two, then three again train as three that are not disturbed.

With IPEXCTL_GOLDEN=write it draws the picture of docs/fewer-hosts.md from the losses of its own run.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from real_helpers import EXAMPLES, real_lab

from ipexctl.extras.lab.faults import break_host, mend_host
from lab_run_helpers import Cluster, new_cluster

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

DISK_NEEDED: Final = 9e9
STEPS: Final = 600
PICTURE: Final = EXAMPLES.parent / "docs/pictures/fewer-hosts.svg"
WIDTH, HEIGHT, EDGE = 560, 200, 44
_LOSS: Final = re.compile(r"step (\d+)/\d+ loss (\d\.\d+)")
_START: Final = re.compile(r"(\d) of 3 ranks go on from step (\d+)")


def losses(out: str) -> dict[int, list[float]]:
    """Of each step as often as it was trained."""
    found: dict[int, list[float]] = {}
    for step, loss in _LOSS.findall(out):
        found.setdefault(int(step), []).append(float(loss))
    return found


def picture(undisturbed: dict[int, list[float]], out: str) -> str:
    """The losses of each attempt as a line of its own, over those of the undisturbed run."""
    most = max(max(found) for found in undisturbed.values())

    def line(points: list[tuple[int, float]], color: str, width: float) -> str:
        at = " ".join(
            f"{EDGE + WIDTH * step / STEPS:.1f},{20 + HEIGHT * (1 - loss / most):.1f}" for step, loss in points
        )
        return f'<polyline points="{at}" stroke="{color}" stroke-width="{width}"/>'

    starts = [*_START.finditer(out), None]
    parts = [line([(step, loss[0]) for step, loss in undisturbed.items()], "#dddddd", 6)]
    for number, (start, end) in enumerate(pairwise(starts)):
        assert start
        points = [
            (int(step), float(loss))
            for step, loss in _LOSS.findall(out, start.start(), end.start() if end else len(out))
        ]
        left = EDGE + WIDTH * int(start[2]) / STEPS
        color = ("#1f77b4", "#d95f02", "#1b9e77")[number % 3]
        parts.append(line(points, color, 1.4))
        parts.append(f'<path class="start" d="M{left:.1f} 20V{20 + HEIGHT}"/>')
        text = f"{start[1]} hosts, from step {start[2]}"
        parts.append(f'<text x="{left + 4:.1f}" y="{34 + 15 * number}" fill="{color}">{text}</text>')
    style = (
        "text{font:12px sans-serif}polyline{fill:none}.axes{fill:none;stroke:#999}"
        ".start{stroke:#999;stroke-dasharray:3}svg{background:#fff}"
    )
    bottom = 20 + HEIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + 2 * EDGE}" height="{bottom + 40}" role="img">',
            f"<style>{style}</style>",
            f'<path class="axes" d="M{EDGE} 20V{bottom}H{EDGE + WIDTH}"/>',
            f'<text x="{EDGE - 4}" y="28" text-anchor="end">{most:.2f}</text>',
            f'<text x="{EDGE - 4}" y="{bottom}" text-anchor="end">0</text>',
            f'<text x="{EDGE + WIDTH}" y="{bottom + 18}" text-anchor="end">step {STEPS}</text>',
            *parts,
            "</svg>",
            "",
        ]
    )


def test_a_host_is_lost_and_comes_back_and_the_losses_go_on(tmp_path: Path) -> None:
    with real_lab("fewer", 3, disk=DISK_NEEDED) as lab:
        cluster: Cluster = new_cluster(lab, tmp_path)
        hosts = ("-H", lab.hostfile)
        cluster.good("trust", *hosts)
        cluster.good("install", *hosts, "--stack", "torch", timeout=600)
        script = ("fewer_hosts.py", "--steps", STEPS, "--log-every", 10)
        options = ("--plain", "--ppn", "1", "-x", "OMP_NUM_THREADS=1")
        (tmp_path / "alone").mkdir()
        alone = new_cluster(lab, tmp_path / "alone")
        for project in (cluster.project, alone.project):
            shutil.copy(EXAMPLES / "fewer_hosts.py", project)
        undisturbed = losses(alone.run(*options, *script).out)

        pooled = ("--min-hosts", "2", "--max-restarts", "5", "--checkpoint", "checkpoints")
        began = cluster.begin(*options, *pooled, *script, "--pace", "0.25")
        began.wait_for("step 60/")
        lost = break_host(lab.hosts[2], "link-down")
        began.wait_for("2 of 3 ranks go on from step", timeout=120)
        began.wait_for("step", times=began.said().count("step") + 1)
        mend_host(lost, "link-down")
        time.sleep(20)  # it answers by then
        cluster.kill_rank(began.id, 1)
        began.wait_for("3 of 3 ranks go on from step", times=2, timeout=120)
        assert began.end(timeout=200) == 0, began.said()

        starts = [(int(ranks), int(step)) for ranks, step in _START.findall(began.said())]
        assert [ranks for ranks, _ in starts] == [3, 2, 3]
        assert 0 == starts[0][1] < 60 <= starts[1][1] < starts[2][1]
        trained = losses(began.said())
        assert trained.keys() == undisturbed.keys()
        for step, found in trained.items():
            assert found == pytest.approx(undisturbed[step] * len(found), abs=2e-3), step
        if os.environ.get("IPEXCTL_GOLDEN") == "write":
            PICTURE.write_text(picture(undisturbed, began.out.read_text()))
