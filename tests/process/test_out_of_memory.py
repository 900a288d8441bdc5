"""A rank that the kernel kills for lack of memory, in a real memory cgroup of version 1."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attach_helpers import Attached

from message_data import missing

pytest_plugins = ["run_fixtures", "attach_fixtures"]
GROUPS = Path("/sys/fs/cgroup/memory")
LIMIT = 200 << 20
GROW = """
import os, sys, time
print("here", flush=True)
if os.environ["RANK"] == "1":
    with open(sys.argv[1] + "/cgroup.procs", "w") as file: file.write(str(os.getpid()))
    time.sleep(0.3)
    held = [b"x" * (1 << 20) for _ in range(2000)]
time.sleep(600)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    place = GROUPS / f"ipexctl-test-{os.getpid()}"
    try:
        place.mkdir()
    except OSError:
        pytest.skip("no memory cgroup of version 1 here that we may write to")
    (place / "memory.limit_in_bytes").write_text(str(LIMIT))
    yield place
    with contextlib.suppress(OSError):
        place.rmdir()


@pytest.mark.core
def test_limit_that_was_reached_and_memory_of_the_rank_are_named(
    attach: Callable[..., Attached], group: Path, tmp_path: Path
) -> None:
    script = tmp_path / "grow.py"
    script.write_text(GROW)
    attached = attach([sys.executable, str(script), str(group)])
    attached.run.wait()
    first = attached.run.status["first_failure"]
    assert (first["kind"], first["rank"], first["oom"]["by"], first["oom"]["limit"]) == ("oom", 1, "cgroup", LIMIT)
    assert LIMIT * 0.9 < first["oom"]["memory"] < LIMIT * 1.1
    why = json.loads(attached.call("why", "last", "--json").stdout)
    assert (why["cause"]["id"], why["cause"]["confidence"]) == ("memory.oom", "likely")
    assert missing(why["cause"]["sentence"], "rank 1 here control group's limit of 200 MB reached memory MB") == []
    assert why["first_failure"]["memory"] == first["oom"]["memory"]
    assert "dmesg" not in json.dumps(why)
