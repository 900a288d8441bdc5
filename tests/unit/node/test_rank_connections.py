"""When the supervisor takes a rank for lost that sends nothing: at turns of its loop, with their times."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ipexctl.node.common.job import RankPlacement
from ipexctl.node.common.link import Link
from ipexctl.node.run.rank_connections import RankConnection, RankConnections
from ipexctl.node.run.recorder import WindowFiles

SETUP_TIME = 120.0


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[tuple[RankConnections, RankConnection, float]]:
    """A connected rank that sends nothing from that time on."""
    peers = RankConnections("0" * 64, [], lambda peer, message: None)
    peers.setup_time = SETUP_TIME
    peer = RankConnection(RankPlacement(0, "here", "here"), {}, WindowFiles(str(tmp_path / "0000")))
    peers.add(peer)
    near, far = socket.socketpair()
    with closing(far):
        peer.link = Link(near)
        yield peers, peer, peer.link.last_received
        near.close()


def first_lost(peers: RankConnections, begin: float, turns: list[float]) -> float | None:
    return next((at for at in turns if peers.drop_silent(begin + at)), None)


@pytest.mark.parametrize(("has_started", "limit"), [(True, 25), (False, 120)])
def test_a_rank_is_silent_for_longer_before_its_command_has_started(
    silent: tuple[RankConnections, RankConnection, float], has_started: bool, limit: int
) -> None:
    """While it sources a setup file, it sends nothing."""
    peers, peer, begin = silent
    peer.status = peer.status._replace(pid=4711 if has_started else None)
    assert first_lost(peers, begin, [number + 0.5 for number in range(200)]) == limit + 0.5


@pytest.mark.parametrize(("gap", "is_lost"), [(4.5, True), (5.5, False), (3600.0, False)])
def test_time_in_which_the_supervisor_was_suspended_is_no_silence(
    silent: tuple[RankConnections, RankConnection, float], gap: float, is_lost: bool
) -> None:
    peers, peer, begin = silent
    peer.status = peer.status._replace(pid=4711)
    assert first_lost(peers, begin, [*(number + 0.5 for number in range(23)), 22.5 + gap]) == (
        22.5 + gap if is_lost else None
    )
