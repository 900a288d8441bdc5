"""The list of environments: their sizes, and what a prune would free."""

from __future__ import annotations

import pytest

from ipexctl.hosts.host import Host
from ipexctl.node.env.replies import EnvEntry, EnvListing
from ipexctl.stack.env.envs import EnvsReport, EnvsResult
from ipexctl.ui import envs

GB = 10**9


def entry(name: str, *names: str, size: int | None = 7 * GB) -> EnvEntry:
    return EnvEntry(name, names, f"/h/envs/{name}", "ipex-2.8", "3.11", "gloo", None, {"torch": "2.8.0"}, size, True)


def report(*listings: EnvListing) -> EnvsReport:
    hosts = [EnvsResult(Host(f"n{number}", "a"), "ok", listing=listing) for number, listing in enumerate(listings, 1)]
    return EnvsReport(tuple(hosts), 0.0)


@pytest.mark.parametrize(
    ("listing", "freed", "shown"),
    [
        (EnvListing((entry("a", "default"),), 0, 0, 0, 0), 0, None),
        (EnvListing((entry("a", "default"), entry("b")), 0, 0, 0, 0), 7 * GB, "up to 7.0 GB"),
        (EnvListing((entry("a"), entry("b")), 1, GB, 2, 3 * GB), 18 * GB, "up to 18.0 GB"),
        (EnvListing((entry("a", size=None),), 0, 0, 0, 4096), None, "not all measured"),
    ],
)
def test_list_says_what_a_prune_frees(
    listing: EnvListing, freed: int | None, shown: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    found = report(listing)
    assert envs.as_json(found)["hosts"][0]["prunable_bytes"] == freed
    envs.show(found)
    printed = capfd.readouterr()
    assert ("7.0 GB" if listing.envs[0].bytes else "?") in printed.out
    assert ("--prune" in printed.err) == (shown is not None)
    assert (shown or "") in printed.err
