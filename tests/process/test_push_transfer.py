"""A push whose host is this machine, from SRC to PATH: what others do to both while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from sync_helpers import LOCAL_HOST, LocalConnector

from ipexctl.files.push import Push, PushOptions, PushReport
from ipexctl.files.push_source import PushSource, read_source
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.outcome import ignore_event

LARGE = bytes(range(256)) * 8000


def read(source: Path) -> PushSource:
    return read_source(source, ignore_event, Cancel())


def push(source: PushSource, path: Path, *, force: bool = False) -> PushReport:
    with SessionPool(LocalConnector([]), Cancel(), forks=1) as pool:  # type: ignore[arg-type]
        options = PushOptions(str(path), str(path.parent / "home"), force=force)
        return Push(source, "src", (LOCAL_HOST,), pool, options).run()


@pytest.mark.parametrize("content", [b"small", LARGE], ids=["small", "large"])
@pytest.mark.parametrize("is_longer", [True, False])
def test_a_source_that_changes_during_the_push_is_named(tmp_path: Path, content: bytes, is_longer: bool) -> None:
    source = tmp_path / "src"
    source.write_bytes(content)
    found = read(source)
    source.write_bytes(content + b"more" if is_longer else content[::-1])
    (host,) = push(found, tmp_path / "path").hosts
    assert (host.status, host.reason) == ("failed", f"{source} on this machine changed while it was sent")
    assert host.fix == "run it again when it is complete"
    (host,) = push(read(source), tmp_path / "path").hosts
    assert (host.status, (tmp_path / "path").read_bytes()) == ("changed", source.read_bytes())
    assert {entry.name for entry in tmp_path.iterdir()} == {"src", "path"}
