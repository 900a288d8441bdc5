"""Files are brought as they are, once, from where it broke off, and to nowhere but where they belong."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import other_pythons
from ipexctl.errors import UserError
from ipexctl.hosts.host import Host
from ipexctl.jobs.fetch.fetch import FetchRequest, fetch, order_of_host, order_of_run
from ipexctl.jobs.fetch.manifest import FetchResult, FetchSource, parse_source
from ipexctl.jobs.registry import RunRecord
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import Command
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import Cancelled, HostError, Unreachable
from ipexctl.remote.progress import Event
from ipexctl.remote.session import Ended, Stream
from ipexctl.ui.fetch import as_json, show, show_other_hosts
from message_data import missing

HERE = Host("localhost", "localhost")
YEAR_AGO = time.time_ns() - 365 * 86400 * 10**9 + 123456789


def put(path: Path, content: bytes = b"x", *, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    os.utime(path, ns=(YEAR_AGO, YEAR_AGO))
    return path


def looks(top: Path) -> dict[bytes, Any]:
    """Everything below, with all that is to be the same afterwards."""
    found: dict[bytes, Any] = {}
    for path in sorted(Path(os.fsdecode(os.fsencode(top))).rglob("*")):
        seen = path.lstat()
        what: Any = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else "directory"
        mtime = 0 if path.is_symlink() else seen.st_mtime_ns
        found[os.fsencode(path.relative_to(top))] = (stat.S_IFMT(seen.st_mode), seen.st_mode & 0o777, mtime, what)
    return found


def bring(
    base: Path, path: str, dest: str | Path, session: Callable[[], LocalSession] = lambda: LocalSession(HERE)
) -> FetchResult:
    order = FetchRequest(HERE, {"base": str(base), "path": path}, str(dest), "~/.ipexctl")
    return fetch(order, session, lambda _: None, Cancel())


@pytest.fixture
def there(tmp_path: Path) -> Path:
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_directory_arrives_as_it_is_and_is_not_brought_twice(there: Path, out: Path) -> None:
    put(there / "ck/a.pt", os.urandom(3 << 20), mode=0o640)
    put(there / "ck/run.sh", b"#!/bin/sh\n", mode=0o755)
    put(there / "ck/empty", b"")
    put(there / "ck" / "new\nline 'quoted' \"twice\" $HOME *", b"odd")
    put(there / "ck" / ("long" * 63 + ".pt"), b"long")
    odd = os.fsencode(there / "ck") + b"/caf\xe9.bin"
    with open(odd, "wb") as file:
        file.write(b"latin")
    (there / "ck/deep/er").mkdir(parents=True)
    (there / "ck/last.pt").symlink_to("a.pt")
    (there / "ck/deep/gone").symlink_to("../not there")
    put(there / "ck/closed/w.pt")
    (there / "ck/closed").chmod(0o550)
    for path in ("ck/deep/er", "ck/deep", "ck/closed", "ck"):
        os.utime(there / path, ns=(YEAR_AGO, YEAR_AGO))
    done = bring(there, "ck", out)
    assert done.exit_code == 0, done
    assert looks(out) == looks(there)
    again = bring(there, "ck", out)
    assert (again.brought, again.received, again.unchanged) == ((), 0, len(done.brought) + 2)
    put(there / "ck/closed/w2.pt")
    assert bring(there, "ck", out).brought == ("ck/closed/w2.pt",)
    assert looks(out) == looks(there)
    (there / "ck/closed").chmod(0o750)
    (out / "ck/closed").chmod(0o750)


@pytest.mark.parametrize(
    ("path", "dest", "names"),
    [
        ("ck/", "out", ["out/1.pt", "out/sub/2.pt"]),
        ("ck/.", "out/new", ["out/new/1.pt", "out/new/sub/2.pt"]),
        ("ck", "out", ["out/ck/1.pt", "out/ck/sub/2.pt"]),
        ("ck/1.pt", "out", ["out"]),
        ("ck/1.pt", "out/", ["out/1.pt"]),
        ("ck/1.pt", "is", ["is/1.pt"]),
        ("**/top.pt", "out", ["out/top.pt"]),
        ("*/1.pt", "out", ["out/ck/1.pt"]),
        ("ck/*.pt", "out", ["out/1.pt"]),
        ("c[k]/su*", "out", ["out/ck/sub/2.pt"]),
        ("**/2.pt", "out", ["out/ck/sub/2.pt"]),
        ("a[1].pt", "out", ["out"]),
        ("link", "out/", ["out/link"]),
        ("./ck/../ck/sub", "out", ["out/sub/2.pt"]),
    ],
)
def test_paths_mean_what_rsync_makes_of_them(
    tmp_path: Path, there: Path, path: str, dest: str, names: list[str]
) -> None:
    put(there / "ck/1.pt")
    put(there / "ck/sub/2.pt")
    put(there / "a[1].pt")
    put(there / "top.pt")
    (there / "link").symlink_to("ck/1.pt")
    (tmp_path / "is").mkdir()
    done = bring(there, path, f"{tmp_path}/{dest}")
    assert done.exit_code == 0, done
    found = [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()]
    assert sorted(each for each in found if not each.startswith("there")) == names
    assert not any(each.is_symlink() for each in tmp_path.rglob("*") if "there" not in each.parts)


def test_a_link_that_leads_out_is_left_out_and_its_own_path_brings_what_it_links_to(there: Path, out: Path) -> None:
    put(there / "ck/1.pt", b"weights")
    put(there / "2.pt")
    (there / "ck/best.pt").symlink_to("1.pt")
    (there / "ck/whole.pt").symlink_to(there / "ck/1.pt")
    (there / "ck/up.pt").symlink_to("../2.pt")
    done = bring(there, "ck", out)
    assert done.exit_code == 0
    assert [each.name for each in done.left_out] == ["ck/up.pt", "ck/whole.pt"]
    assert sorted(path.name for path in (out / "ck").iterdir()) == ["1.pt", "best.pt"]
    assert bring(there, "ck/whole.pt", f"{out}/").brought == ("whole.pt",)
    assert (out / "whole.pt").read_bytes() == b"weights"


def test_a_pattern_that_finds_a_link_and_things_below_it_brings_the_link(there: Path, out: Path) -> None:
    put(there / "ck/1.pt")
    (there / "last").symlink_to("ck")
    done = bring(there, "**", out)
    assert done.exit_code == 0
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*")) == ["ck", "ck/1.pt", "last"]
    assert bring(there, "last/*", out / "more").brought == ("1.pt",)


def test_a_home_is_what_is_in_it(there: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(there / "w.pt")
    monkeypatch.setenv("HOME", str(there))
    assert bring(there, "~", out).brought == ("w.pt",)
    assert [path.name for path in out.iterdir()] == ["w.pt"]
    with pytest.raises(HostError) as caught:
        bring(there, "~nobody-here", out)
    assert "./~nobody-here" in caught.value.fix


def test_what_is_not_there_is_told_with_what_is(there: Path, out: Path) -> None:
    put(there / "checkpoints/1.pt")
    with pytest.raises(HostError) as caught:
        bring(there, "chekpoints/", out)
    assert missing(caught.value.reason, f"{there}/chekpoints") == []
    assert missing(caught.value.fix, f"{there} checkpoints") == []
    assert not out.exists()


class Cut:
    """A link that breaks after so many bytes, each time it is made."""

    def __init__(self, *after: int) -> None:
        self.after = list(after)
        self.moved = 0

    def __call__(self) -> LocalSession:
        limit = self.after.pop(0) if self.after else None
        cut = self

        class Session(LocalSession):
            def run(self, command: Command, sink: Callable[[Stream, bytes], None], **more: Any) -> Ended:
                left = limit

                def counted(stream: Stream, data: bytes) -> None:
                    nonlocal left
                    cut.moved += len(data)
                    if left is not None and len(data) > left:
                        sink(stream, data[:left])
                        raise Unreachable("the connection was lost")
                    left = left if left is None else left - len(data)
                    sink(stream, data)

                return super().run(command, counted, **more)

        return Session(HERE)


def test_a_link_that_breaks_is_made_again_and_gone_on_with(there: Path, out: Path) -> None:
    content = os.urandom(9_000_000)
    put(there / "w.pt", content)
    link = Cut(3_000_000, 3_000_000)
    done = bring(there, "w.pt", out, link)
    assert out.read_bytes() == content
    assert done.resumed == ("out",)
    assert done.received == len(content)
    assert link.moved < len(content) + 1_000_000


def test_a_link_that_never_lets_anything_through_is_an_error(there: Path, out: Path) -> None:
    put(there / "w.pt")
    with pytest.raises(Unreachable):
        bring(there, "w.pt", out, Cut(0))


def _break_off(there: Path, out: Path, after: int) -> Path:
    """A fetch that is killed in its middle; what it leaves behind."""
    order = FetchRequest(HERE, {"base": str(there), "path": "w.pt"}, f"{out}/", "~/.ipexctl")
    cancel, link = Cancel(), Cut(after)

    def broken(_: Event) -> None:
        if link.moved > after - 300_000:
            cancel.throw()

    with pytest.raises(Cancelled):
        fetch(order, link, broken, cancel)
    (part,) = out.glob(".ipexctl-*.part")
    return part


def test_the_next_call_goes_on_only_where_what_is_here_is_right(there: Path, out: Path) -> None:
    content = os.urandom(6_000_000)
    put(there / "w.pt", content)
    part = _break_off(there, out, 4_000_000)
    begun = part.stat().st_size
    assert 3_000_000 < begun < 5_000_000
    done = bring(there, "w.pt", f"{out}/")
    assert (out / "w.pt").read_bytes() == content
    assert done.received == len(content) - begun
    assert list(out.iterdir()) == [out / "w.pt"]

    (out / "w.pt").unlink()
    part = _break_off(there, out, 4_000_000)
    spoiled = bytearray(part.read_bytes())
    spoiled[1000] ^= 1
    part.write_bytes(spoiled)
    done = bring(there, "w.pt", f"{out}/")
    assert (out / "w.pt").read_bytes() == content
    assert done.received == len(content)
    assert done.resumed == ()


def test_two_at_once_do_not_write_into_one_another(there: Path, out: Path) -> None:
    content = os.urandom(2_000_000)
    put(there / "w.pt", content)
    part = _break_off(there, out, 1_000_000)
    begun = part.stat().st_size
    with part.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done = bring(there, "w.pt", f"{out}/")
    assert [each.name for each in done.failed] == ["w.pt"]
    assert "another fetch" in done.failed[0].reason
    assert part.stat().st_size == begun
    assert bring(there, "w.pt", f"{out}/").resumed == ("w.pt",)
    assert (out / "w.pt").read_bytes() == content


@pytest.mark.parametrize("python", other_pythons())
def test_every_python_of_a_node_can_give(there: Path, out: Path, python: str) -> None:
    put(there / "ck/w.pt", b"weights")
    order = FetchRequest(HERE, {"base": str(there), "path": "c*"}, str(out), "~/.ipexctl", python)
    assert fetch(order, lambda: LocalSession(HERE), lambda _: None, Cancel()).brought == ("ck/w.pt",)


def test_a_file_of_the_same_content_gets_its_time_and_no_bytes(there: Path, out: Path) -> None:
    content = os.urandom(100_000)
    put(there / "w.pt", content, mode=0o600)
    out.write_bytes(content)
    done = bring(there, "w.pt", out)
    assert done.received == 0
    assert out.stat().st_mtime_ns == YEAR_AGO
    assert out.stat().st_mode & 0o777 == 0o600


def test_a_different_file_is_replaced_and_a_link_is_replaced_not_followed(there: Path, out: Path) -> None:
    put(there / "a.pt", b"new a")
    put(there / "b.pt", b"new b")
    victim = put(out.parent / "victim", b"mine")
    put(out / "a.pt", b"old")
    (out / "b.pt").symlink_to(victim)
    assert bring(there, ".", out).exit_code == 0
    assert (out / "a.pt").read_bytes() == b"new a"
    assert (out / "b.pt").read_bytes() == b"new b"
    assert not (out / "b.pt").is_symlink()
    assert victim.read_bytes() == b"mine"


def test_nothing_is_written_through_a_link_that_lies_in_the_way(there: Path, out: Path) -> None:
    put(there / "sub/a.pt")
    put(there / "b.pt")
    elsewhere = out.parent / "elsewhere"
    elsewhere.mkdir()
    out.mkdir()
    (out / "sub").symlink_to(elsewhere)
    done = bring(there, ".", out)
    assert done.exit_code == 1
    assert {each.name for each in done.failed} == {"sub", "sub/a.pt"}
    assert "link" in done.failed[0].reason
    assert list(elsewhere.iterdir()) == []
    assert (out / "b.pt").exists()


def test_a_directory_in_a_files_place_stays_and_is_told(there: Path, out: Path) -> None:
    put(there / "w.pt")
    put(out / "w.pt/mine")
    done = bring(there, ".", out)
    assert [each.name for each in done.failed] == ["w.pt"]
    assert (out / "w.pt/mine").exists()


def test_pipes_are_left_out_and_what_may_not_be_read_is_told(there: Path, out: Path) -> None:
    put(there / "good.pt")
    os.mkfifo(there / "pipe")
    done = bring(there, ".", out)
    assert done.exit_code == 0
    assert [each.name for each in done.left_out] == ["pipe"]
    assert sorted(each.name for each in out.iterdir()) == ["good.pt"]


def test_a_run_alone_is_its_record_and_what_it_wrote(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "home/code/p-1"
    rundir = home / "runs/train-1"
    for name in ("ranks/0000.out", "ranks/0000.err", "plan.json", "job.json", "agent.zip"):
        put(rundir / name, b"{}")
    (rundir / "status.json").write_text(json.dumps({"state": "ok", "started": time.time() - 100}))
    put(cwd / "old.csv")
    brought = put(cwd / "train.py")
    os.utime(brought)
    seen = brought.stat()
    rows = [["train.py", "f", 0o644, 1, "hash", [seen.st_size, seen.st_mtime_ns, seen.st_ino], True]]
    (cwd / ".ipexctl").mkdir()
    (cwd / ".ipexctl/state.json").write_text(json.dumps({"rows": rows}))
    (cwd / "ck").mkdir()
    (cwd / "ck/1.pt").write_bytes(b"weights")
    record = RunRecord("train-1", HERE, str(home), "", cwd=str(cwd), started=time.time() - 100)
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


def test_a_runs_path_is_from_its_working_directory_on_also_where_only_its_plan_knows_it(tmp_path: Path) -> None:
    put(tmp_path / "work/ck/1.pt", b"weights")
    put(tmp_path / "home/runs/old-1/plan.json", json.dumps({"cwd": str(tmp_path / "work")}).encode())
    record = RunRecord("old-1", HERE, str(tmp_path / "home"), "")
    order = order_of_run(record, "ck/", str(tmp_path / "out"), rank=None, host=None, others=())
    assert fetch(order, lambda: LocalSession(HERE), lambda _: None, Cancel()).brought == ("1.pt",)


@pytest.mark.parametrize("has_status", [True, False])
def test_files_older_than_the_run_come_with_a_path_and_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], *, has_status: bool
) -> None:
    began = time.time() - 100
    ck = tmp_path / "work/ck"
    for name in ("old.pt", "older.pt"):
        put(ck / name)
    (ck / "new.pt").write_bytes(b"weights")
    if has_status:
        put(tmp_path / "home/runs/r-1/status.json", json.dumps({"started": began}).encode())
    since = 1.0 if has_status else began  # the clock of node0 decides
    record = RunRecord("r-1", HERE, str(tmp_path / "home"), "", cwd=str(tmp_path / "work"), started=since)

    def done(path: str | None) -> FetchResult:
        order = order_of_run(record, path, str(tmp_path / "out"), rank=None, host=None, others=())
        return fetch(order, lambda: LocalSession(HERE), lambda _: None, Cancel())

    first, again, alone = done("ck/"), done("ck/"), done("ck/new.pt")
    assert (sorted(first.brought), first.exit_code) == (["new.pt", "old.pt", "older.pt"], 0)
    assert as_json(first)["older"] == ["old.pt", "older.pt"] == list(again.older)
    assert (alone.older, done(None).older, bring(ck, ".", tmp_path / "host").older) == ((), (), ())
    show(first)
    assert missing(capfd.readouterr().err, "2 older old.pt older.pt") == []
    show(first, quiet=True)
    show(alone)
    assert capfd.readouterr().err == ""


def test_the_node_of_a_rank_is_found_without_asking_node0() -> None:
    first, second = Host("a", "10.0.0.1"), Host("b", "10.0.0.2")
    record = RunRecord(
        "r-1", first, "/h", "python3", hosts=("a", "b"), world_size=4, nodes=(first, second), ranks=("a", "a", "b", "b")
    )
    assert order_of_run(record, "x", ".", rank=2, host=None, others=()).host == second
    assert order_of_run(record, "x", ".", rank=None, host="10.0.0.2", others=()).host == second
    assert order_of_run(record, "x", ".", rank=None, host=None, others=()).host == first
    for rank, host in ((4, None), (None, "c")):
        with pytest.raises(UserError):
            order_of_run(record, "x", ".", rank=rank, host=host, others=())


def test_other_hosts_of_a_run_are_named_with_the_command_for_one(
    capfd: pytest.CaptureFixture[str],
) -> None:
    hosts = tuple(Host(f"n{index}", f"10.0.0.{index}") for index in range(3))
    record = RunRecord("r-1", hosts[0], "/h", "", world_size=3, nodes=hosts, stores=("n0", "n1", "n2"))
    order = order_of_run(record, "my ck/", "./out", rank=None, host=None, others=())
    assert order.other_hosts == ("n1", "n2")
    show_other_hosts(order)
    note = capfd.readouterr().err
    assert missing(note, "n0 n[1-2]") == []
    assert "ipexctl fetch 'r-1:my ck/' ./out-n1/ --from n1" in note
    show_other_hosts(order_of_run(record, None, ".", rank=None, host=None, others=()))
    assert "ipexctl fetch r-1 ./n1/ --from n1" in capfd.readouterr().err
    shared = replace(record, stores=("n0",))
    assert order_of_run(shared, "x", ".", rank=None, host=None, others=()).other_hosts == ()
    assert order_of_run(record, "x", ".", rank=None, host="n1", others=()).other_hosts == ()


def test_a_host_is_one_of_the_calls() -> None:
    host = Host("node2", "10.0.0.2", user="me")
    for word in ("node2", "me@node2", "10.0.0.2"):
        assert order_of_host(FetchSource(word, "x"), ".", [host], "~/.ipexctl").host == host
    with pytest.raises(UserError, match="node3"):
        order_of_host(FetchSource("node3", "x"), ".", [host], "~/.ipexctl")


@pytest.mark.parametrize(
    ("text", "word", "path"),
    [
        ("last", "last", None),
        ("last:ck/", "last", "ck/"),
        ("last:a:b", "last", "a:b"),
        ("me@node2:/data/x", "me@node2", "/data/x"),
        ("[fe80::2]:x", "fe80::2", "x"),
        ("me@[fe80::2]:~/x", "me@fe80::2", "~/x"),
        ("run:a@b", "run", "a@b"),
    ],
)
def test_a_source_is_a_word_and_a_path(text: str, word: str, path: str | None) -> None:
    assert parse_source(text) == FetchSource(word, path)


@pytest.mark.parametrize("text", [":x", "last:", "[fe80::2]", "", "last:a\0b"])
def test_a_source_without_one_is_a_wrong_call(text: str) -> None:
    with pytest.raises(UserError):
        parse_source(text)
