"""The list of environments: their sizes, and what a prune would free."""

from __future__ import annotations

import pytest

from ipexctl.commands import envs_command
from ipexctl.hosts.host import Host
from ipexctl.node.env.replies import EnvEntry, EnvListing
from ipexctl.stack.env.envs import EnvsReport, EnvsResult

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
    assert envs_command.as_json(found)["hosts"][0]["prunable_bytes"] == freed
    envs_command.show(found)
    printed = capfd.readouterr()
    assert ("7.0 GB" if listing.envs[0].bytes else "?") in printed.out
    assert ("--prune" in printed.err) == (shown is not None)
    assert (shown or "") in printed.err


def test_hosts_with_equal_leftovers_share_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    full = EnvListing((entry("a"),), 1, GB, 0, 0)
    envs_command.show(report(full, full, EnvListing((entry("a"),), 2, 2 * GB, 0, 0)))
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines[::2]] == ["n[1-2]", "n3"]
    assert "up to 8.0 GB on each" in lines[1]
    assert "up to 9.0 GB while" in lines[3]


@pytest.mark.parametrize("columns", [80, 120, 300])
def test_long_names_are_whole_in_a_narrow_table(
    columns: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    name = "an-environment-of-the-team-that-trains-models"
    listing = EnvListing((entry("ipex-2.8-12345678", name), entry("torch-2.13-12345678", "b")), 0, 0, 0, 0)
    hosts = [Host(f"worker-{number}.cluster.example.org", "a") for number in range(128)]
    envs_command.show(EnvsReport(tuple(EnvsResult(host, "ok", listing=listing) for host in hosts), 0.0))
    out = capfd.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    assert all(text in out for text in (name, "ipex-2.8-12345678", "worker-[0-127].cluster.example.org", "3.11"))
