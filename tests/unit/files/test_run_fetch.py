"""fetch: files keep their attributes, are sent once, are resumed, and are written below the destination only."""

from __future__ import annotations

import fcntl
import os
import resource
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_run import running

from agent_helpers import other_pythons, wait_until
from case_table import case_table
from ipexctl.commands.fetch_command import as_json, show, show_hosts_with_path, show_other_hosts
from ipexctl.files import destination
from ipexctl.files.requested import FetchResult, FetchSource, parse_source
from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import StreamName
from ipexctl.node.common.processes import is_running
from ipexctl.node.files.file_sender import SendRequest
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import AgentPlace
from ipexctl.remote.outcome import Cancelled, HostError, ProgressEvent, TimedOut, Unreachable
from ipexctl.remote.session import CommandEnd
from ipexctl.run import fetch as fetch_module
from ipexctl.run.fetch import (
    FetchRequest,
    PathOnHosts,
    fetch,
    has_found_nothing,
    order_of_host,
    order_of_run,
    orders_of_all_hosts,
)
from message_data import missing
from record_helpers import run_record

pytest_plugins = ["compiled_agent"]
pytestmark = pytest.mark.usefixtures("compiled_agent")
HERE = Host("localhost", "localhost")
YEAR_AGO = time.time_ns() - 365 * 86400 * 10**9 + 123456789


def write_file(path: Path, content: bytes = b"x", *, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    os.utime(path, ns=(YEAR_AGO, YEAR_AGO))
    return path


def tree_contents(top: Path) -> dict[bytes, Any]:
    """Every path below `top` with its type, mode, mtime and content."""
    found: dict[bytes, Any] = {}
    for path in sorted(Path(os.fsdecode(os.fsencode(top))).rglob("*")):
        seen = path.lstat()
        what: Any = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else "directory"
        mtime = 0 if path.is_symlink() else seen.st_mtime_ns
        found[os.fsencode(path.relative_to(top))] = (stat.S_IFMT(seen.st_mode), seen.st_mode & 0o777, mtime, what)
    return found


def request_for(base: Path, path: str) -> SendRequest:
    return {"path": path if path.startswith(("/", "~")) else f"{base}/{path}", "run": None}


def run_fetch(
    base: Path, path: str, dest: str | Path, session: Callable[[], LocalSession] = lambda: LocalSession(HERE)
) -> FetchResult:
    order = FetchRequest(HERE, request_for(base, path), str(dest), AgentPlace("", "~/.ipexctl"))
    return fetch(order, session, lambda _: None, Cancel())


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_directory_is_fetched_with_attributes_and_only_once(there: Path, out: Path) -> None:
    write_file(there / "ck/a.pt", os.urandom(3 << 20), mode=0o640)
    write_file(there / "ck/run.sh", b"#!/bin/sh\n", mode=0o755)
    write_file(there / "ck/empty", b"")
    write_file(there / "ck" / "new\nline 'quoted' \"twice\" $HOME *", b"odd")
    write_file(there / "ck" / ("long" * 63 + ".pt"), b"long")
    odd = os.fsencode(there / "ck") + b"/caf\xe9.bin"
    with open(odd, "wb") as file:
        file.write(b"latin")
    (there / "ck/deep/er").mkdir(parents=True)
    (there / "ck/last.pt").symlink_to("a.pt")
    (there / "ck/deep/gone").symlink_to("../not there")
    write_file(there / "ck/closed/w.pt")
    (there / "ck/closed").chmod(0o550)
    for path in ("ck/deep/er", "ck/deep", "ck/closed", "ck"):
        os.utime(there / path, ns=(YEAR_AGO, YEAR_AGO))
    done = run_fetch(there, "ck", out)
    assert (done.exit_code, done.unchanged) == (0, 0), done
    assert tree_contents(out) == tree_contents(there)
    again = run_fetch(there, "ck", out)
    assert (again.brought, again.received, again.unchanged) == ((), 0, len(done.brought))
    write_file(there / "ck/closed/w2.pt")
    assert run_fetch(there, "ck", out).brought == ("ck/closed/w2.pt",)
    assert tree_contents(out) == tree_contents(there)
    (there / "ck/closed").chmod(0o750)
    (out / "ck/closed").chmod(0o750)


@case_table
def test_paths_have_the_same_meaning_as_for_rsync(
    tmp_path: Path, there: Path, path: str, dest: str, names: list[str]
) -> None:
    write_file(there / "ck/1.pt")
    write_file(there / "ck/sub/2.pt")
    write_file(there / "old/sub/2.pt")
    write_file(there / "csv")
    write_file(there / "a[1].pt")
    write_file(there / "top.pt")
    (there / "link").symlink_to("ck/1.pt")
    (tmp_path / "is").mkdir()
    done = run_fetch(there, path, f"{tmp_path}/{dest}")
    assert done.exit_code == 0, done
    found = [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()]
    assert sorted(each for each in found if not each.startswith("there")) == names
    assert not any(each.is_symlink() for each in tmp_path.rglob("*") if "there" not in each.parts)


@pytest.fixture
def deep(there: Path, out: Path) -> Iterator[Path]:
    """`there/d/d/…/f`, deeper than Python's stack and than the descriptors that a process may have open."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    number = os.open(there, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=number)
        below = os.open("d", os.O_RDONLY, dir_fd=number)
        os.close(number)
        number = below
    with open(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=number), "w") as file:
        file.write("deep")
    os.close(number)
    yield there
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    subprocess.run(("rm", "-rf", there, out), check=True)


@pytest.mark.parametrize("path", ["./", "d", "**/f", None])
def test_a_deep_tree_is_fetched(deep: Path, out: Path, path: str | None) -> None:
    if path is None:
        with running(deep.parent / "home", "r-1", deep):
            (deep / ("d/" * 1500 + "f")).write_text("deep")
        record = run_record("r-1", HERE, str(deep.parent / "home"), "", cwd=str(deep), started=time.time() - 100)
        order = order_of_run(record, None, str(out), rank=None, host=None, others=())
        done = fetch(order, lambda: LocalSession(HERE), lambda _: None, Cancel())
    else:
        done = run_fetch(deep, path, out)
    assert ([name for name in done.brought if name.endswith("/f")] != [], done.failed) == (True, ())
    found = subprocess.run(("find", out, "-type", "f", "-name", "f"), capture_output=True, check=True, text=True).stdout
    assert found.endswith("/d/d" * 700 + "/f\n")
    assert found.count("\n") == 1


def test_link_out_of_the_directory_is_left_out_unless_requested(there: Path, out: Path) -> None:
    write_file(there / "ck/1.pt", b"weights")
    write_file(there / "2.pt")
    (there / "ck/best.pt").symlink_to("1.pt")
    (there / "ck/whole.pt").symlink_to(there / "ck/1.pt")
    (there / "ck/up.pt").symlink_to("../2.pt")
    done = run_fetch(there, "ck", out)
    assert done.exit_code == 0
    assert [each.name for each in done.left_out] == ["ck/up.pt", "ck/whole.pt"]
    assert sorted(path.name for path in (out / "ck").iterdir()) == ["1.pt", "best.pt"]
    assert run_fetch(there, "ck/whole.pt", f"{out}/").brought == ("whole.pt",)
    assert (out / "whole.pt").read_bytes() == b"weights"


def test_recursive_pattern_fetches_a_link_to_a_directory_as_a_link(there: Path, out: Path) -> None:
    write_file(there / "ck/1.pt")
    (there / "last").symlink_to("ck")
    done = run_fetch(there, "**", out)
    assert done.exit_code == 0
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*")) == ["ck", "ck/1.pt", "last"]
    assert run_fetch(there, "last/*", out / "more").brought == ("1.pt",)


def test_tilde_fetches_the_contents_of_the_home(there: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(there / "w.pt")
    monkeypatch.setenv("HOME", str(there))
    assert run_fetch(there, "~", out).brought == ("w.pt",)
    assert [path.name for path in out.iterdir()] == ["w.pt"]
    with pytest.raises(HostError) as caught:
        run_fetch(there, "~nobody-here", out)
    assert "./~nobody-here" in caught.value.fix


class UnstableConnection:
    """Opens sessions that are lost after the given numbers of bytes."""

    def __init__(self, *after: int) -> None:
        self.after = list(after)
        self.moved = 0

    def __call__(self) -> LocalSession:
        limit = self.after.pop(0) if self.after else None
        cut = self

        class Session(LocalSession):
            def run(self, command: Command, sink: Callable[[StreamName, bytes], None], **more: Any) -> CommandEnd:
                left = limit

                def counted(stream: StreamName, data: bytes) -> None:
                    nonlocal left
                    cut.moved += len(data)
                    if left is not None and len(data) > left:
                        sink(stream, data[:left])
                        raise Unreachable("the connection was lost")
                    left = left if left is None else left - len(data)
                    sink(stream, data)

                return super().run(command, counted, **more)

        return Session(HERE)


def test_fetch_is_resumed_after_a_lost_connection(there: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipexctl.run.fetch.RETRY_INTERVALS", (0.01, 0.01))
    content = os.urandom(9_000_000)
    write_file(there / "w.pt", content)
    link = UnstableConnection(3_000_000, 3_000_000)
    done = run_fetch(there, "w.pt", out, link)
    assert out.read_bytes() == content
    assert done.resumed == ("out",)
    assert done.received == len(content)
    assert 5_000_000 < done.kept < 6_000_000  # when the third connection resumed it
    assert link.moved < len(content) + 1_000_000


def test_connection_that_transfers_nothing_is_an_error(there: Path, out: Path) -> None:
    write_file(there / "w.pt")
    with pytest.raises(Unreachable):
        run_fetch(there, "w.pt", out, UnstableConnection(0))


def _cancel_fetch(there: Path, out: Path, after: int) -> Path:
    """Cancel a fetch in its middle and return the partial file."""
    order = FetchRequest(HERE, request_for(there, "w.pt"), f"{out}/", AgentPlace("", "~/.ipexctl"))
    cancel, link = Cancel(), UnstableConnection(after)

    def broken(_: ProgressEvent) -> None:
        if link.moved > after - 300_000:
            cancel.throw()

    with pytest.raises(Cancelled):
        fetch(order, link, broken, cancel)
    (part,) = out.glob(".ipexctl-*.part")
    return part


def test_partial_file_is_resumed_only_if_its_content_is_correct(there: Path, out: Path) -> None:
    content = os.urandom(6_000_000)
    write_file(there / "w.pt", content)
    part = _cancel_fetch(there, out, 4_000_000)
    begun = part.stat().st_size
    assert 3_000_000 < begun < 5_000_000
    done = run_fetch(there, "w.pt", f"{out}/")
    assert (out / "w.pt").read_bytes() == content
    assert done.received == len(content) - begun
    assert list(out.iterdir()) == [out / "w.pt"]

    (out / "w.pt").unlink()
    part = _cancel_fetch(there, out, 4_000_000)
    spoiled = bytearray(part.read_bytes())
    spoiled[1000] ^= 1
    part.write_bytes(spoiled)
    done = run_fetch(there, "w.pt", f"{out}/")
    assert (out / "w.pt").read_bytes() == content
    assert done.received == len(content)
    assert done.resumed == ()


def test_concurrent_fetch_of_the_same_file_fails(there: Path, out: Path) -> None:
    content = os.urandom(2_000_000)
    write_file(there / "w.pt", content)
    part = _cancel_fetch(there, out, 1_000_000)
    begun = part.stat().st_size
    with part.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done = run_fetch(there, "w.pt", f"{out}/")
    assert [each.name for each in done.failed] == ["w.pt"]
    assert "another fetch" in done.failed[0].reason
    assert part.stat().st_size == begun
    assert run_fetch(there, "w.pt", f"{out}/").resumed == ("w.pt",)
    assert (out / "w.pt").read_bytes() == content


@pytest.mark.parametrize("python", other_pythons())
def test_every_python_version_can_send_files(there: Path, out: Path, python: str) -> None:
    write_file(there / "ck/w.pt", b"weights")
    order = FetchRequest(HERE, request_for(there, "c*"), str(out), AgentPlace(python, "~/.ipexctl"))
    assert fetch(order, lambda: LocalSession(HERE), lambda _: None, Cancel()).brought == ("ck/w.pt",)


def test_file_with_equal_content_gets_only_its_attributes(there: Path, out: Path) -> None:
    content = os.urandom(100_000)
    write_file(there / "w.pt", content, mode=0o600)
    out.write_bytes(content)
    done = run_fetch(there, "w.pt", out)
    assert done.received == 0
    assert out.stat().st_mtime_ns == YEAR_AGO
    assert out.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("umask", "modes"),
    [
        (0o022, {"open": 0o644, "run": 0o755, "set": 0o755, "own": 0o600, "dir": 0o755, "dir/w": 0o644}),
        (0o007, {"open": 0o660, "run": 0o770, "set": 0o770, "own": 0o600, "dir": 0o770, "dir/w": 0o660}),
        (0o077, {"open": 0o600, "run": 0o700, "set": 0o700, "own": 0o600, "dir": 0o700, "dir/w": 0o600}),
    ],
)
def test_modes_of_the_host_are_limited_by_the_umask(there: Path, out: Path, umask: int, modes: dict[str, int]) -> None:
    for name, mode in (("open", 0o666), ("run", 0o777), ("set", 0o6777), ("own", 0o600), ("dir/w", 0o666)):
        write_file(there / name, mode=mode)
    (there / "dir").chmod(0o1777)

    def fetched() -> dict[str, int]:
        run_fetch(there, "./", out)
        return {name: stat.S_IMODE((out / name).stat().st_mode) for name in modes}

    before = os.umask(umask)
    try:
        assert fetched() == modes
        (out / "run").chmod(0o777)
        assert fetched() == modes
    finally:
        os.umask(before)
    assert stat.S_IMODE(out.stat().st_mode) == 0o777 & ~umask


def test_directories_keep_the_group_bit_of_a_shared_directory(there: Path, out: Path) -> None:
    out.mkdir()
    out.chmod(0o2775)
    write_file(there / "ck/w.pt")
    run_fetch(there, "ck", out)
    assert (out / "ck").stat().st_mode & stat.S_ISGID


def test_umask_is_read_where_proc_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    shown = destination.read_umask()
    monkeypatch.setattr("builtins.open", missing)
    assert destination.read_umask() == shown == os.umask(shown)


def test_pipes_are_left_out(there: Path, out: Path) -> None:
    write_file(there / "good.pt")
    os.mkfifo(there / "pipe")
    done = run_fetch(there, ".", out)
    assert done.exit_code == 0
    assert [each.name for each in done.left_out] == ["pipe"]
    assert sorted(each.name for each in out.iterdir()) == ["good.pt"]


def test_fetch_of_a_run_brings_its_record_and_the_files_that_it_wrote(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "home/code/p-1"
    write_file(cwd / "old.csv")
    with running(home, "train-1", cwd) as rundir:
        for name in ("ranks/0000.out", "ranks/0000.err", "job.json", "agent.zip"):
            write_file(rundir / name, b"{}")
        write_file(cwd / "ck/1.pt", b"weights")
    record = run_record("train-1", HERE, str(home), "", cwd=str(cwd), started=time.time() - 100)
    order = order_of_run(record, None, str(tmp_path / "out"), rank=None, host=None, others=())
    done = fetch(order, lambda: LocalSession(HERE), lambda _: None, Cancel())
    assert sorted(done.brought) == [
        "train-1/files/ck/1.pt",
        "train-1/record/plan.json",
        "train-1/record/ranks/0000.err",
        "train-1/record/ranks/0000.out",
        "train-1/record/status.json",
    ]
    assert (tmp_path / "out/train-1/files/ck/1.pt").read_bytes() == b"weights"


def test_path_of_a_run_is_relative_to_the_cwd_of_its_plan(tmp_path: Path) -> None:
    with running(tmp_path / "home", "old-1", tmp_path / "work"):
        write_file(tmp_path / "work/ck/1.pt", b"weights")
    record = run_record("old-1", HERE, str(tmp_path / "home"), "")
    order = order_of_run(record, "ck/", str(tmp_path / "out"), rank=None, host=None, others=())
    assert fetch(order, lambda: LocalSession(HERE), lambda _: None, Cancel()).brought == ("1.pt",)


def test_files_older_than_the_run_are_fetched_by_path_and_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ck = tmp_path / "work/ck"
    for name in ("old.pt", "older.pt"):
        write_file(ck / name)
    with running(tmp_path / "home", "r-1", tmp_path / "work"):
        (ck / "new.pt").write_bytes(b"weights")
    record = run_record("r-1", HERE, str(tmp_path / "home"), "", cwd=str(tmp_path / "work"), started=1.0)

    def done(path: str | None) -> FetchResult:
        order = order_of_run(record, path, str(tmp_path / "out"), rank=None, host=None, others=())
        return fetch(order, lambda: LocalSession(HERE), lambda _: None, Cancel())

    first, again, alone = done("ck/"), done("ck/"), done("ck/new.pt")
    assert (sorted(first.brought), first.exit_code) == (["new.pt", "old.pt", "older.pt"], 0)
    assert as_json(first)["older"] == ["old.pt", "older.pt"] == list(again.older)
    assert (alone.older, done(None).older, run_fetch(ck, ".", tmp_path / "host").older) == ((), (), ())
    show(first)
    assert missing(capfd.readouterr().err, "2 older old.pt older.pt") == []
    show(first, quiet=True)
    show(alone)
    assert capfd.readouterr().err == ""


def test_node_of_a_rank_is_found_in_the_local_record() -> None:
    first, second = Host("a", "10.0.0.1"), Host("b", "10.0.0.2")
    record = run_record(
        "r-1", first, "/h", "python3", hosts=("a", "b"), world_size=4, nodes=(first, second), ranks=("a", "a", "b", "b")
    )
    assert order_of_run(record, "x", ".", rank=2, host=None, others=()).host == second
    assert order_of_run(record, "x", ".", rank=None, host="10.0.0.2", others=()).host == second
    assert order_of_run(record, "x", ".", rank=None, host=None, others=()).host == first


def test_other_hosts_of_a_run_are_named_with_the_command_for_all(
    capfd: pytest.CaptureFixture[str],
) -> None:
    hosts = tuple(Host(f"n{index}", f"10.0.0.{index}") for index in range(3))
    record = run_record("r-1", hosts[0], "/h", "", world_size=3, nodes=hosts, stores=("n0", "n1", "n2"))
    order = order_of_run(record, "my ck/", "./out", rank=None, host=None, others=())
    assert order.other_hosts == ("n1", "n2")
    show_other_hosts(order)
    note = capfd.readouterr().err
    assert missing(note, "n0 n[1-2]") == []
    assert "ipexctl fetch 'r-1:my ck/' ./out --all-hosts" in note
    show_other_hosts(order_of_run(record, None, ".", rank=None, host=None, others=()))
    assert "ipexctl fetch r-1 . --all-hosts" in capfd.readouterr().err
    shared = replace(record, source=record.plan._replace(stores=dict.fromkeys(record.hosts, "n0")))
    assert order_of_run(shared, "x", ".", rank=None, host=None, others=()).other_hosts == ()
    assert order_of_run(record, "x", ".", rank=None, host="n1", others=()).other_hosts == ()


def notes_of_path(*having: str, unknown: tuple[str, ...] = (), reason: str = "", quiet: bool = False) -> None:
    hosts = tuple(Host(f"n{index}", f"10.0.0.{index}") for index in range(4))
    record = run_record("r-1", hosts[0], "/h", "", nodes=hosts, stores=tuple(host.name for host in hosts))
    order = order_of_run(record, "my ck/", "./out", rank=None, host=None, others=())
    result = FetchResult(hosts[0], "failed" if reason else "changed", reason)
    show_hosts_with_path(order, result, PathOnHosts(having, unknown), quiet=quiet)


def test_hosts_that_have_the_path_too_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    notes_of_path("n1", "n2", unknown=("n3",))
    said = capfd.readouterr().err
    assert missing(said, "n0 n[1-2] n3") == []
    assert "ipexctl fetch 'r-1:my ck/' ./out --all-hosts" in said
    notes_of_path("n2", reason="there is none")
    assert "ipexctl fetch 'r-1:my ck/' ./out --from n2" in capfd.readouterr().err
    notes_of_path("n1", "n2", reason="there is none", quiet=True)
    assert "--all-hosts" in capfd.readouterr().err
    notes_of_path()
    notes_of_path("n1", quiet=True)
    assert capfd.readouterr().err == ""


def test_results_in_a_home_whose_name_is_a_pattern_are_fetched(there: Path, out: Path) -> None:
    for name in ("a[1]*", "a1x"):
        write_file(there / name / "results/r-1/metrics", name.encode())
    home = f"{there}/a[1]*"
    record = run_record("r-1", HERE, home, "", nodes=(HERE,), stores=(HERE.name,))
    (order,) = orders_of_all_hosts(record, None, str(out), results=True)
    assert fetch(order, lambda: LocalSession(HERE), lambda _: None, Cancel()).brought == ("metrics",)
    assert (out / HERE.name / "metrics").read_bytes() == b"a[1]*"
    (none,) = orders_of_all_hosts(replace(record, id="r-2"), None, str(out), results=True)
    assert fetch(none, lambda: LocalSession(HERE), lambda _: None, Cancel()).status == "ok"


def test_all_hosts_of_a_run_are_asked_once_a_store_and_each_has_its_directory() -> None:
    hosts = tuple(Host(f"n{index}", f"10.0.0.{index}") for index in range(3))
    record = run_record("r-1", hosts[0], "/h", "", world_size=3, nodes=hosts, stores=("n0", "n2"))
    of_path = orders_of_all_hosts(record, "ck/", "./out/", results=False)
    assert [(order.host.name, order.dest, order.request["path"]) for order in of_path] == [
        ("n0", "./out/n0/", "ck/"),
        ("n2", "./out/n2/", "ck/"),
    ]
    of_results = orders_of_all_hosts(record, None, "/", results=True)
    assert [(order.dest, order.request) for order in of_results] == [
        ("/n0/", {"path": "/h/results/r-1/", "run": None, "may_be_missing": True}),
        ("/n2/", {"path": "/h/results/r-1/", "run": None, "may_be_missing": True}),
    ]


def test_host_of_a_source_is_found_by_name_login_and_address() -> None:
    host = Host("node2", "10.0.0.2", user="me")
    for word in ("node2", "me@node2", "10.0.0.2"):
        assert order_of_host(FetchSource(word, "x"), ".", [host], "~/.ipexctl").host == host


@case_table
def test_source_is_split_into_name_and_path(text: str, word: str, path: str | None) -> None:
    assert parse_source(text) == FetchSource(word, path)


@pytest.mark.parametrize("may_be_missing", [True, False])
def test_results_that_no_rank_wrote_are_no_failure(there: Path, out: Path, may_be_missing: bool) -> None:
    def fetch_results() -> FetchResult:
        request: SendRequest = {"path": f"{there}/results/r-1/", "run": None, "may_be_missing": may_be_missing}
        order = FetchRequest(HERE, request, f"{out}/", AgentPlace("", "~/.ipexctl"))
        return fetch(order, lambda: LocalSession(HERE), lambda _: None, Cancel())

    if may_be_missing:
        lacks = fetch_results()
        assert (lacks.status, lacks.brought, lacks.exit_code) == ("ok", (), 0)
        assert has_found_nothing([lacks, lacks])
        (there / "results/r-1").mkdir(parents=True)
        assert fetch_results().status == "ok"
        assert not out.exists()
    else:
        with pytest.raises(HostError, match="there is no"):
            fetch_results()
    write_file(there / "results/r-1/deep/metrics")
    assert fetch_results().brought == ("deep/metrics",)
    again = fetch_results()
    assert (again.status, again.unchanged) == ("ok", 1)
    assert not has_found_nothing([again])


def test_a_host_whose_program_hangs_is_given_up(
    there: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(there / "a.pt")
    stopping = write_file(tmp_path / "python", b'#!/bin/sh\necho $$ > "$0.pid"\nkill -STOP $$\n', mode=0o755)
    monkeypatch.setattr(fetch_module, "PATIENCE", 0.5)
    order = FetchRequest(HERE, request_for(there, "a.pt"), str(out), AgentPlace(str(stopping), "~/.ipexctl"))
    with pytest.raises(TimedOut, match="nothing has arrived from it"):
        fetch(order, lambda: LocalSession(HERE), lambda _: None, Cancel())
    process = int(Path(f"{stopping}.pid").read_text())
    wait_until(lambda: not is_running(process), 5)


class SwappingSession(LocalSession):
    """Something happens on the host once the list has been sent."""

    def __init__(self, swap: Callable[[], object]) -> None:
        super().__init__(HERE)
        self._swap = swap

    def run(self, command: Command, sink: Callable[[StreamName, bytes], None], **more: Any) -> CommandEnd:
        def swapping(stream: StreamName, data: bytes) -> None:
            if b'"listed"' in data:
                self._swap()
            sink(stream, data)

        return super().run(command, swapping, **more)


def test_a_file_that_cannot_be_read_is_named_by_its_path_on_the_host(there: Path, out: Path) -> None:
    wanted = write_file(there / "w.pt")
    done = run_fetch(there, "w.pt", out, lambda: SwappingSession(wanted.unlink))
    assert [(each.name, each.reason.startswith(f"{wanted} ")) for each in done.failed] == [("out", True)]


@pytest.mark.parametrize("path", ["ck", "ck/", "c*/deep/a.pt", "link/deep", "link/deep/a.pt"])
def test_a_directory_that_becomes_a_link_after_the_list_leads_nowhere(there: Path, out: Path, path: str) -> None:
    write_file(there / "ck/deep/a.pt", b"mine")
    write_file(there / "secret/a.pt", b"not for the one who swaps")
    (there / "link").symlink_to("ck")

    def swap() -> None:
        (there / "ck/deep").rename(there / "moved")
        (there / "ck/deep").symlink_to("../secret")

    done = run_fetch(there, path, out / "x", lambda: SwappingSession(swap))
    assert ("is a link" in done.failed[0].reason, done.brought) == (True, ())
