"""The newest whole copy of each unit goes to all hosts as it is; what is half-written or deleted is set aside."""

from __future__ import annotations

import hashlib
import random
import re
from typing import NamedTuple

import pytest

from case_table import case_table
from ipexctl.node.common.checkpoint_layout import find_checkpoints, parts_of
from ipexctl.node.files.checkpoint_report import HostCopies, KnownContent
from ipexctl.node.files.checkpoint_units import ExchangePlan, plan_exchange
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.run.supervisor.checkpoint_exchange import describe_exchange

SHORT = {
    "M": "model.safetensors", "T": "training_args.bin", "O": "optimizer.pt", "S": "trainer_state.json",
    "R0": "rng_state_0.pth", "R1": "rng_state_1.pth", "R2": "rng_state_2.pth",
    "D0": "__0_0.distcp", "D1": "__1_0.distcp", "D2": "__2_0.distcp", "D": ".metadata",
    "A0": "random_states_0.pkl", "A1": "random_states_1.pkl",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parts", "others"),
    [
        ("last.pt", "last.pt", "config.json best.pt"),
        ("adapter_model.safetensors", "adapter_config.json adapter_model.safetensors tokenizer.json", "optimizer.pt"),
        ("model-00002-of-00002.safetensors", ("config.json model-00001-of-00002.safetensors "
         "model-00002-of-00002.safetensors model.safetensors.index.json"), "adapter_model.bin trainer_state.json"),
        ("model.safetensors.index.json", "model-00001-of-00002.safetensors model.safetensors.index.json", "last.pt"),
        ("x-00001-of-00002.bin", "x-00001-of-00002.bin x-00002-of-00002.bin x.bin.index.json", "y-00001-of-00002.bin"),
        ("__0_0.distcp", ".metadata __0_0.distcp __1_0.distcp", "log.txt"),
        ("config.json", "config.json", "model.safetensors"),
    ],
)  # fmt: skip
def test_what_is_one_checkpoint(name: str, parts: str, others: str) -> None:
    assert sorted(parts_of(name, f"{parts} {others}".split())) == parts.split()


def full(word: str) -> str:
    """`60/M` is the model of checkpoint-60 in the directory `ck`; other words are paths below it."""
    directory, _, last = word.rpartition("/")
    parts = [f"checkpoint-{directory}" if directory.isdigit() else directory, SHORT.get(last, last)]
    return "/".join(filter(None, ("ck", *parts)))


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def host(words: str) -> HostCopies:
    """A report, from words with a sign each.

    `=` written here, as after the last exchange; `<` brought, likewise; `+` new; `~` written here, and changed since;
    `b` brought, and changed since; `-` written here, and deleted; `x` brought, and deleted; `?` new and half-written;
    `0` empty; `!` new in another tree of the project. After `*`: its time, and its content; after a colon: the files
    that the list names. `#3`: the number of the last exchange of this host, and of what it has known since; else 1.
    `@1`: what is new was put back; it is one exchange older.
    """
    copies: dict[str, dict[str, ManifestEntry]] = {"": {}, "!": {}}
    known, half, left, named_parts = {}, {}, {}, {}
    number, age = (next((int(word[1:]) for word in words.split() if word[0] == sign), 1) for sign in "#@")
    for word in words.split():
        word, _, parts = word.partition(":")
        word, _, version = word.partition("*")
        sign, name = word[0], full(word[1:])
        if parts:
            named_parts[name] = frozenset(SHORT[part] for part in parts.split(","))
        if sign in "=<~b-x":
            known[name] = KnownContent(sha(name), sign in "<bx", number)
        if sign in "=<+~b!":
            new = sign in "+~b!"
            at, content = int(version or 1 + new), sha(f"{version or 'new'} {name}" if new else name)
            copies["!" * (sign == "!")][name] = ManifestEntry(name, "f", 0o644, 1, content, at)
        if sign == "?":
            half[name] = "it is half-written"
        if sign == "0":
            left[name] = "it is empty"
    here, there = copies.values()
    written = {name for name, copy in here.items() if name not in known or known[name].sha256 != copy.content}
    number = number if known or "#" in words else 0
    others = (HostCopies(there, written=set(there), number=number, place="p.gen2"),) if there else ()
    return HostCopies(
        here, half, left, known, written, number, named_parts, age=age if "@" in words else 0, others=others
    )


class Result(NamedTuple):
    common: set[str]
    """Files that all hosts have."""
    aside_files: dict[str, set[str]]
    alone: dict[str, set[str]]
    """Files that a host has beyond the common ones."""


def apply(reports: dict[str, HostCopies], plan: ExchangePlan) -> dict[str, HostCopies]:
    """The reports of the hosts after the exchange, if nothing happens."""
    after = {}
    trees = [tree for report in reports.values() for tree in (report, *report.others)]
    lists = {(file, tree.copies[file].content): parts for tree in trees for file, parts in tree.named_parts.items()}
    for name, report in reports.items():
        aside_files = set(plan.removals.get(name, ()))
        copies = {file: copy for file, copy in report.copies.items() if file not in aside_files}
        for transfer in plan.transfers:
            if transfer.target == name:
                copies.update({copy.path: copy for copy in transfer.copies})
        known = plan.known[name]
        assert all(copies[file].content == known[file].sha256 for file in known)
        after[name] = report._replace(
            copies=copies,
            half={file: why for file, why in report.half.items() if file not in aside_files},
            left={file: why for file, why in report.left.items() if file not in {*aside_files, *copies}},
            known=known,
            written=copies.keys() - known.keys(),
            number=plan.number,
            age=0,
            named_parts={
                file: lists[file, copy.content] for file, copy in copies.items() if (file, copy.content) in lists
            },
            others=(),
        )
    return after


def outcome(reports: dict[str, HostCopies]) -> Result:
    plan = plan_exchange(reports)
    after = apply(reports, plan)
    common = set.intersection(*({*report.copies} for report in after.values()))
    alone = {name: {*report.copies, *report.half, *report.left} - common for name, report in after.items()}
    again = plan_exchange(after)
    assert (again.transfers, again.removals, again.known) == ((), {}, plan.known)
    assert not [file for report in after.values() for file in report.half]
    return Result(
        common,
        {name: set(names) for name, names in plan.removals.items()},
        {name: names for name, names in alone.items() if names},
    )


def names(words: str) -> set[str]:
    return set(map(full, words.split()))


def reports_of(words: str) -> dict[str, HostCopies]:
    """The reports of node1, node2 …, from words of each host, with a semicolon between hosts."""
    return {f"node{number}": host(each) for number, each in enumerate(words.split(";"), 1)}


def per_host(words: str) -> dict[str, set[str]]:
    return {f"node{number}": names(each) for number, each in enumerate(words.split(";"), 1) if each.strip()}


@case_table
def test_directories_are_whole_on_all_hosts_or_set_aside(words: str, common: str, aside: str, alone: str) -> None:
    assert outcome(reports_of(words)) == Result(names(common), per_host(aside), per_host(alone))


@case_table
def test_the_newest_whole_copy_of_a_file_is_on_all_hosts(words: str, moves: str, aside: str) -> None:
    plan = plan_exchange(reports := reports_of(words))
    assert {f"{each.source}>{each.target}".replace("node", "") for each in plan.transfers} == set(moves.split())
    assert outcome(reports).aside_files == per_host(aside)


def test_a_checkpoint_of_another_tree_is_gathered_there_alone() -> None:
    reports = {"node1": host("!60/M !60/S !60/R0"), "node2": host("!60/R1 +60/R2")}
    assert outcome(reports) == Result(names("60/M 60/S 60/R0 60/R1"), per_host("; 60/R2"), {})


def test_a_unit_belongs_to_its_writer_until_another_host_writes_it() -> None:
    first = apply(reports := {"node1": host("+a.pt"), "node2": host("")}, plan_exchange(reports))
    assert [report.known["ck/a.pt"].is_brought for report in first.values()] == [False, True]
    copy = first["node2"].copies["ck/a.pt"]._replace(content=sha("again"))
    other = first["node2"]._replace(copies={copy.path: copy}, written={copy.path})
    second = plan_exchange({**first, "node2": other})
    assert [known["ck/a.pt"].is_brought for known in second.known.values()] == [True, False]
    assert {known["ck/a.pt"].number for known in second.known.values()} == {2}


def test_the_marker_of_a_directory_is_put_in_place_last() -> None:
    reports = {"node1": host("+60/S +60/R0 +60/M +60/T"), "node2": host("~60/S*0 ~60/M*0")}
    plan = plan_exchange(reports)
    assert plan.markers == (full("60/S"),)
    assert full("60/S") in plan.removals["node2"]


def test_single_file_is_no_part_of_a_directory() -> None:
    for name in ("random_states_1.pkl", "__1_0.distcp", "model.safetensors"):
        copy = ManifestEntry(name, "f", 0o644, 1, sha(name), 1)
        half = HostCopies({}, {name: "it is half-written"})
        whole = HostCopies({name: copy}, written={name})
        result = outcome({"node1": whole, "node2": HostCopies(), "node3": half})
        assert result == Result({name}, {"node3": {name}}, {})


def test_a_restart_names_a_path_where_no_host_has_a_file() -> None:
    reports = {"node1": host(""), "node2": host("")}
    (line,) = describe_exchange("out/ck", reports, plan_exchange(reports), is_restart=True)
    assert ("out/ck" in line, "--checkpoint" in line) == (True, True)
    assert describe_exchange("out/ck", reports, plan_exchange(reports)) == []
    reports["node2"] = host("+a.pt")
    assert "no host" not in "".join(describe_exchange("ck", reports, plan_exchange(reports), is_restart=True))


def test_lines_name_the_reason_for_what_is_set_aside() -> None:
    reports = {
        "node1": host("-60/M -60/S -60/R0 x60/R1 ~40/M =40/S +80/M ?a.pt"),
        "node2": host("<60/M <60/S <60/R0 =60/R1 <40/M <40/S =40/R1 +80/R1 ?a.pt"),
    }
    lines = describe_exchange("out/ck", reports, plan_exchange(reports))
    found = {tuple(re.findall(r"checkpoint-\d+|a.pt|half|\d files?|node\d", line)) for line in lines}
    assert found >= {
        ("checkpoint-40", "1 file", "node1"),  # its last save did not end
        ("checkpoint-80", "2 files", "node1", "node2"),
        ("checkpoint-60", "node1", "4 files", "node2"),
        ("a.pt", "half", "2 files", "node1", "node2"),
    }


def test_directories_with_the_same_reason_and_hosts_have_one_line() -> None:
    rotated = " ".join(f"+{number}/R1" for number in (60, 80, 100))
    reports = {"node1": host("+120/M +120/S"), "node2": host(rotated), "node3": host("+40/R2")}
    lines = [line for line in describe_exchange("out/ck", reports, plan_exchange(reports)) if "set aside" in line]
    found = {tuple(re.findall(r"checkpoint-\d+|\d checkpoints|\d files?|node\d", line)) for line in lines}
    assert found == {
        ("checkpoint-60", "checkpoint-100", "3 checkpoints", "3 files", "node2"),
        ("checkpoint-40", "1 file", "node3"),
    }


class SavingHosts:
    """The files of hosts whose ranks save, and delete old saves."""

    def __init__(self, seed: int, count: int) -> None:
        self.random = random.Random(seed)
        self.reports = {f"node{number}": HostCopies() for number in range(1, count + 1)}
        self.clock = self.step = 0
        self.whole: set[int] = set()
        """Steps of a Trainer that were saved to their end, and not deleted by rank 0."""
        self.deleted: set[int] = set()

    def write(self, name: str, path: str, parts: frozenset[str] | None = None) -> None:
        self.clock += 1
        report = self.reports[name]
        copy = ManifestEntry(path, "f", 0o644, 1, sha(f"{path} {self.clock}"), self.clock)
        self.reports[name] = report._replace(
            copies={**report.copies, path: copy},
            written={*report.written, path},
            named_parts=report.named_parts if parts is None else {**report.named_parts, path: parts},
        )

    def steps_of(self, name: str) -> list[int]:
        return sorted({int(path.split("/")[1].rpartition("-")[2]) for path in self.reports[name].copies})

    def keep_two(self, name: str) -> None:
        report, old = self.reports[name], self.steps_of(name)[:-2]
        kept = {path: copy for path, copy in report.copies.items() if int(re.split("[-/]", path)[2]) not in old}
        lists = {path: parts for path, parts in report.named_parts.items() if path in kept}
        self.reports[name] = report._replace(copies=kept, named_parts=lists)
        self.whole.difference_update(old)
        self.deleted.update(old)

    def train(self, order: list[str]) -> None:
        """Some saves of a Trainer; the last may be cut anywhere. Rank 0 keeps two, the newest by number."""
        step = max(self.steps_of(order[0]), default=0) if self.random.random() < 0.7 else 0
        for _ in range(self.random.randrange(1, 4)):
            step += 20
            writes = [(order[0], file) for file in ("M", "T", "R0")]
            writes += [(order[0], "S"), *((name, f"R{rank}") for rank, name in enumerate(order) if rank)]
            is_cut = self.random.random() < 0.15
            if is_cut:
                writes = writes[: self.random.randrange(2, 4)] + writes[4 : self.random.randrange(4, 6)]
            for name, file in writes:
                self.write(name, f"ck/checkpoint-{step}/{SHORT[file]}")
            if is_cut:
                return
            self.whole.add(step)
            self.keep_two(order[0])

    def save_shards(self, order: list[str]) -> None:
        """One shard for each host; it may be cut anywhere. Rank 0 deletes the oldest of more than two."""
        self.step += 1
        shards = [f"__{rank}_0.distcp" for rank in range(len(order))]
        writes = list(zip(order, shards, strict=True))
        self.random.shuffle(writes)
        cut = self.random.randrange(len(order)) if self.random.random() < 0.2 else None
        for name, shard in writes[:cut]:
            self.write(name, f"ck/s-{self.step}/{shard}")
        if cut is None:
            self.write(order[0], f"ck/s-{self.step}/.metadata", frozenset(shards))
            self.keep_two(order[0])

    def sharded(self, hosts: list[str]) -> set[int]:
        """The steps of which these hosts have all parts."""
        names = {path for host in hosts for path in self.reports[host].copies}
        lists = {path: parts for host in hosts for path, parts in self.reports[host].named_parts.items()}
        return {
            int(path.split("/")[1][2:])
            for path, parts in lists.items()
            if all(f"{path.rpartition('/')[0]}/{part}" in names for part in parts)
        }

    def exchange(self, *names: str) -> None:
        reports = {name: self.reports[name] for name in names}
        self.reports.update(apply(reports, plan_exchange(reports)))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("seed", range(100))
def test_ranks_find_the_newest_whole_checkpoint_after_any_runs(seed: int, count: int) -> None:
    hosts = SavingHosts(seed, count)
    order = list(hosts.reports)
    for _ in range(8):
        hosts.train(order)
        hosts.exchange(*order)
        assert {name: hosts.steps_of(name) for name in order} == dict.fromkeys(order, sorted(hosts.whole))
        for report in hosts.reports.values():
            assert set(report.copies) == set(hosts.reports[order[0]].copies)
            assert all(each.is_whole for each in find_checkpoints(report.copies, "ck").values())


@pytest.mark.parametrize("seed", range(200))
def test_shards_are_whole_on_all_hosts_that_take_part_and_no_whole_checkpoint_is_lost(seed: int) -> None:
    hosts = SavingHosts(seed, 3)
    for _ in range(10):
        names = sorted(hosts.random.sample(list(hosts.reports), hosts.random.randrange(1, 4)))
        for is_trained in (False, True):
            if is_trained:
                hosts.save_shards(names)
            whole = hosts.sharded(names)
            hosts.exchange(*names)
        for name in names:
            report = hosts.reports[name]
            found = find_checkpoints(report.copies, "ck", (), report.named_parts)
            steps = {int(path.rpartition("-")[2]) for path in found}
            assert all(checkpoint.is_whole for checkpoint in found.values())
            assert whole - hosts.deleted <= steps <= whole
