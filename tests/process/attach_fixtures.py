"""The fixture `attach`: recorded runs on this machine, ended with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attach_helpers import Attached
from run_helpers import Run

from ipexctl.homes.registry import RunRegistry


@pytest.fixture
def attach(tmp_path: Path) -> Iterator[Callable[..., Attached]]:
    made: list[Attached] = []

    def make(command: str, size: int = 2, ranks_in: Path | None = None, **more: Any) -> Attached:
        run = Run(tmp_path / "home", command, size, **more)
        run.listen()
        if ranks_in is not None:  # a disk of its own for the output
            (run.rundir / "ranks").symlink_to(ranks_in)
        run.send_go()
        attached = Attached(run, tmp_path / "state")
        RunRegistry(attached.copies).save(run.record)
        made.append(attached)
        return attached

    yield make
    for attached in made:
        attached.close()
