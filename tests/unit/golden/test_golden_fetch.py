"""The texts of fetch, and of finding a run by its id."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
import test_run_fetch as fetching
from golden_file import Case, golden_diff, refusal, without

from ipexctl.files.requested import FetchSource, parse_source
from ipexctl.homes.registry import RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.node.files.file_sender import unreadable
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import HostError
from ipexctl.run.fetch import fetch, order_of_host, order_of_run
from ipexctl.run.find_run import OwnRuns
from ipexctl.run.start.start_project import files_in_other_generations
from record_helpers import run_record
from test_run_record import BELOW, RUN


def sources() -> list[Case]:
    first, second = Host("a", "10.0.0.1"), Host("b", "10.0.0.2")
    record = run_record("r-1", first, "/h", "python3", hosts=("a", "b"), world_size=2, nodes=(first, second))

    def of_run(rank: int | None, host: str | None) -> None:
        order_of_run(record, "x", ".", rank=rank, host=host, others=())

    return [
        *(refusal(f"source {text!r}", parse_source, text) for text in (":x", "last:", "[fe80::2]", "", "last:a\0b")),
        refusal("source of an unknown host", order_of_host, FetchSource("node3", "x"), ".", [first], "~/.ipexctl"),
        refusal("source of several hosts", order_of_host, FetchSource("a[1-3]", "x"), "d", [first], "~/.ipexctl"),
        *(
            refusal(f"destination {dest!r}", order_of_host, FetchSource("a", "x"), dest, [first], "~/.ipexctl")
            for dest in ("", "/dev/null", "/dev/stdout")
        ),
        refusal("source of an unknown rank", of_run, 4, None),
        refusal("source of a host outside the run", of_run, None, "c"),
    ]


def runs(tmp_path: Path) -> list[Case]:
    register = RunRegistry(tmp_path / "runs")

    def find(word: str) -> None:
        own = OwnRuns.read(register)
        if own.choose(word) is None:
            raise own.error(word, None, hosts_first=False)

    cases = [refusal("no run at all", find, "last")]
    for number in (1, 2, 12):
        register.save(replace(RUN, id=f"train-{number}", started=float(number)))
    cases += [refusal("several runs", find, "tr"), refusal("no such run", find, "x")]
    (tmp_path / "runs" / "train-3.json").write_text("{")
    cases.append(refusal("a damaged record", find, "train-3", at=tmp_path))
    beside = replace(RUN, id="train-2", source=RUN.plan._replace(cwd="/code/p-1.gen2/sub"))
    return [*cases, Case("left elsewhere", files_in_other_generations("/code/p-1", BELOW, [RUN, beside]))]


def files(tmp_path: Path) -> list[Case]:
    there, out = tmp_path / "there", tmp_path / "out"
    there.mkdir()
    fetching.write_file(there / "checkpoints/1.pt")
    with pytest.raises(HostError) as caught:
        fetching.run_fetch(there, "chekpoints/", out)
    cases = [Case("nothing is there", without(caught.value.reason, tmp_path), without(caught.value.fix, tmp_path))]
    fetching.write_file(there / "sub/a.pt")
    fetching.write_file(there / "w.pt")
    fetching.write_file(out / "w.pt/mine")
    (tmp_path / "elsewhere").mkdir()
    (out / "sub").symlink_to(tmp_path / "elsewhere")
    (there / "pipe").symlink_to("/dev/null")
    fetching.write_file(there / "z.pt")
    os.mkfifo(out / "z.pt")
    done = fetching.run_fetch(there, ".", out)
    cases.append(refusal("a FIFO is named", fetching.run_fetch, out, "z.pt", out, at=tmp_path))
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    cases.append(Case("a file can't be read", unreadable(b"/data/my file", denied)))
    kept = sorted((*done.failed, *done.left_out), key=lambda each: each.name)
    record = run_record("r-1", fetching.HERE, str(tmp_path / "home"), "", cwd=str(there))
    fetching.write_file(tmp_path / "home/results/r-1/tb/events")
    order = order_of_run(record, "tb", "./out", rank=None, host=None, others=())
    with pytest.raises(HostError) as caught:
        fetch(order, lambda: LocalSession(fetching.HERE), lambda _: None, Cancel())
    cases.append(Case("it is a result", without(caught.value.reason, tmp_path), without(caught.value.fix, tmp_path)))
    return [*cases, *(Case(f"not brought: {each.name}", without(each.reason, tmp_path)) for each in kept)]


def test_fetch(tmp_path: Path) -> None:
    cases = [*sources(), *runs(tmp_path), *files(tmp_path)]
    assert not (diff := golden_diff("fetch", cases)), diff
