"""The commands of the pages from a to d, on lab hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from page_fixtures import PageHosts
from page_scenes import CLUSTER, Scene, play, scenes


@pytest.mark.lab
@pytest.mark.timeout(600)
@scenes(CLUSTER, first="a", last="d")
def test_pages_on_lab_hosts(context: Scene, page_hosts: PageHosts, tmp_path: Path) -> None:
    assert play(context, page_hosts.shell(context, tmp_path)) == []
