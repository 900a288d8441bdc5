"""The output of install: JSON, lines, warnings; and of envs: sizes, what a prune would free."""

from __future__ import annotations

import pytest

from ipexctl.commands import envs_command
from ipexctl.commands.install_command import show
from ipexctl.errors import Refusal
from ipexctl.hosts.host import Host
from ipexctl.node.env.env_replies import EnvEntry, EnvListing
from ipexctl.remote.outcome import BytesMoved, HostFinished, Notice, StepStarted
from ipexctl.stack.env.envs import EnvsReport, EnvsResult
from ipexctl.stack.install_context import InstallReport, InstallResult, StackSummary
from ipexctl.stack.lock.wheel_lock import Lock, Wheel
from ipexctl.ui.progress_view import ProgressView, _Bars
from message_data import missing

LOCK = Lock("3.11", (Wheel("torch", "2.8.0", "torch-2.8.0-cp311-cp311-linux_x86_64.whl", "0" * 64, 200_000_000),))
STACK = StackSummary("ipex-2.8", "2.8.0", "2.8.0", None, "2021.15.0", "3.11", "gloo", "it was asked for", retired=True)
PROOF = {"ok": True, "capability": "AVX512", "bf16": "training", "allreduce_ms": [0.4, 7], "backend": "gloo"}


def host(name: str, status: str = "changed", reason: str = "", **more: object) -> InstallResult:
    return InstallResult(Host(name, name), status, reason, env="ipex-2.8-12345678", **more)  # type: ignore[arg-type]


def report(*hosts: InstallResult, **more: object) -> InstallReport:
    return InstallReport(hosts, 1.5, stack=STACK, lock=LOCK, path="/h/envs/default", **more)  # type: ignore[arg-type]


def test_hosts_with_the_same_result_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(report(*(host(f"n{number}", verify=PROOF) for number in range(1, 65))))
    out = capsys.readouterr().out
    assert missing(out, "n[1-64] changed AVX512 bf16 gloo") == []
    assert out.count("\n") == 3


@pytest.mark.parametrize("amx", [True, False, None])
def test_amx_is_named_beside_the_instructions_of_torch_itself(
    amx: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    show(report(host("n1", verify={**PROOF, "amx": amx})))
    out = capsys.readouterr().out
    assert "torch's own kernels use AVX512" in out
    assert ("AMX" in out) == bool(amx)


def test_refusal_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    refusal = Refusal("REASON", "FIX --torch 2.5", ("n2",))
    hosts = (host("n1", "failed", "NOTHING"), host("n2", "failed", refusal.reason))
    show(InstallReport(hosts, 1.0, refusal=refusal))
    said = capfd.readouterr()
    assert said.err.count("REASON") == 1
    assert "--torch 2.5" in said.err


def test_quiet_shows_failures_only(capfd: pytest.CaptureFixture[str]) -> None:
    show(report(host("n1", verify=PROOF), host("n2", "failed", "no room")), quiet=True)
    said = capfd.readouterr()
    assert said.out == ""
    assert "no room" in said.err


def test_without_a_terminal_progress_is_plain_lines(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 100, 3))
    monkeypatch.setattr("ipexctl.ui.progress_view.time.monotonic", lambda: next(clock))
    with ProgressView() as view:
        view.watch(Notice("27 wheels, 3.7 GB"))
        view.watch(BytesMoved("n1", "receiving", 10, 1000))
        view.watch(BytesMoved("n1", "receiving", 500, 1000))
        view.watch(BytesMoved("n1", "receiving", 1000, 1000))
        view.watch(BytesMoved("n1", "receiving", 1000, 1000))
        view.watch(StepStarted("n1", "unpacking 7.2 GB"))
        view.watch(HostFinished("n1", "verified", ok=True))
    said = capfd.readouterr().err
    assert said.splitlines() == [
        "27 wheels, 3.7 GB",
        "n1: receiving 1 kB of 1 kB (165 bytes/s)",
        "n1: unpacking 7.2 GB",
    ]


def test_a_rate_is_that_of_the_files_on_their_way(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that gets other files later begins anew."""
    clock = iter(range(0, 100, 2))
    monkeypatch.setattr("ipexctl.ui.progress_view.time.monotonic", lambda: next(clock))
    with ProgressView() as view:
        for done, total in ((9000, 10_000), (1000, 5000), (5000, 5000)):
            view.watch(BytesMoved("n1", "receiving", done, total))
    assert capfd.readouterr().err == "n1: receiving 5 kB of 5 kB (2 kB/s)\n"


def test_each_step_has_a_time_of_its_own_also_after_bytes() -> None:
    bars = _Bars()
    bars.show(StepStarted("n1", "reading wheels"))
    progress = bars._progress
    assert progress is not None
    now = [100.0]
    task = progress.tasks[0]
    task._get_time = progress.get_time = lambda: now[0]
    for event in (BytesMoved("n1", "receiving", 9, 9), StepStarted("n1", "verifying torch")):
        bars.show(event)
    now[0] += 75
    with progress.console.capture() as shown:
        progress.console.print(progress.make_tasks_table(progress.tasks))
    bars.stop()
    assert missing(shown.get(), "verifying torch 0:01:15") == []


def test_transfer_without_duration_has_no_progress_line(capfd: pytest.CaptureFixture[str]) -> None:
    with ProgressView() as view:
        view.watch(BytesMoved("n1", "receiving", 10, 1000))
        view.watch(BytesMoved("n1", "receiving", 1000, 1000))
    assert capfd.readouterr().err == ""


def test_quiet_keeps_warnings(capfd: pytest.CaptureFixture[str]) -> None:
    with ProgressView(quiet=True) as view:
        view.watch(Notice("27 wheels"))
        view.watch(Notice("WARNING", warning=True))
    assert capfd.readouterr().err == "warning: WARNING\n"


GB = 10**9


def entry(name: str, *names: str, size: int | None = 7 * GB) -> EnvEntry:
    return EnvEntry(name, names, f"/h/envs/{name}", "ipex-2.8", "3.11", "gloo", None, {"torch": "2.8.0"}, size, True)


def listed(*listings: EnvListing) -> EnvsReport:
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
    found = listed(listing)
    assert envs_command.as_json(found)["hosts"][0]["prunable_bytes"] == freed
    envs_command.show(found)
    printed = capfd.readouterr()
    assert ("7.0 GB" if listing.envs[0].bytes else "?") in printed.out
    assert ("--prune" in printed.err) == (shown is not None)
    assert (shown or "") in printed.err


def test_hosts_with_equal_leftovers_share_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    full = EnvListing((entry("a"),), 1, GB, 0, 0)
    envs_command.show(listed(full, full, EnvListing((entry("a"),), 2, 2 * GB, 0, 0)))
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
