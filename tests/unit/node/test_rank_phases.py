"""The phases of a rank's command and its bond with the supervisor: what may follow what."""

from __future__ import annotations

import pytest

from ipexctl.node.run.rank import BONDS, PHASES, Bond, Phase, Rank


def make_rank(phase: Phase = Phase.CONNECTING, bond: Bond = Bond.HELD) -> Rank:
    rank = Rank.__new__(Rank)
    rank.phase, rank.bond = phase, bond
    return rank


def test_every_phase_leads_to_the_end_and_none_back() -> None:
    order = list(Phase)
    assert all(order.index(after) > order.index(phase) for phase, following in PHASES.items() for after in following)
    assert [phase for phase in order if not PHASES[phase]] == [Phase.DONE]
    assert set(PHASES) == set(order)


@pytest.mark.parametrize("phase", Phase)
def test_a_phase_that_can_not_follow_is_an_error(phase: Phase) -> None:
    for after in Phase:
        rank = make_rank(phase)
        if after in PHASES[phase]:
            rank.enter(after)
            assert rank.phase is after
        else:
            with pytest.raises(AssertionError):
                rank.enter(after)
            assert rank.phase is phase


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((Bond.RELEASED,), Bond.RELEASED),
        ((Bond.RELEASED, Bond.LOST), Bond.LOST),
        ((Bond.LOST, Bond.RELEASED), Bond.LOST),
        ((Bond.LOST, Bond.REPLACED), Bond.REPLACED),
        ((Bond.REPLACED, Bond.LOST, Bond.RELEASED), Bond.REPLACED),
    ],
)
def test_a_lost_supervisor_releases_nobody(changes: tuple[Bond, ...], expected: Bond) -> None:
    rank = make_rank()
    for bond in changes:
        rank.change_bond(bond)
    assert rank.bond is expected
    assert set(BONDS) == set(Bond)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("bond", Bond)
def test_a_rank_is_over_when_its_command_is_and_no_one_waits_for_it(phase: Phase, bond: Bond) -> None:
    assert make_rank(phase, bond).is_over == (phase is Phase.DONE and bond is not Bond.HELD)
