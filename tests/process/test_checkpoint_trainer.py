"""Exchanges of checkpoints as ranks of a Trainer write and rotate them, between directories of this machine."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkpoint_helpers import Hosts

from ipexctl.node.files.checkpoint_aside import remove_aside
from ipexctl.node.files.checkpoint_files import CheckpointFiles
from message_data import missing

TRAINER = Path(__file__).parents[1] / "stand_ins" / "trainer.py"
OF_RANK_0 = {
    "config.json", "model.safetensors", "training_args.bin", "optimizer.pt", "scheduler.pt", "trainer_state.json",
}  # fmt: skip


class Training(Hosts):
    """Hosts on which each rank of a Trainer runs, after an exchange."""

    run = 0
    seconds = 0.005
    """Of a step. Directories less than a second apart are rotated by their numbers."""

    def train(self, *arguments: str, first: str = "node1") -> dict[str, tuple[int, list[str]]]:
        """Rank 0 is on `first`. Returns the exit code and the output of each host."""
        self.run += 1
        order = [first, *(name for name in self.names if name != first)]
        ranks = {}
        for rank, name in enumerate(order):
            environ = {**os.environ, "RANK": str(rank), "RUN": str(self.run), "STEP_SECONDS": str(self.seconds)}
            argv = [sys.executable, str(TRAINER), self.path, *arguments]
            self.of(name, ".").mkdir(parents=True, exist_ok=True)
            ranks[name] = subprocess.Popen(
                argv, env=environ, cwd=self.of(name, "."), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        ends = {name: process.communicate(timeout=60)[0].decode().splitlines() for name, process in ranks.items()}
        return {name: (ranks[name].returncode, lines) for name, lines in ends.items()}

    def exchanged(self) -> None:
        assert self.exchange().failure == "", self.errors

    def found(self) -> dict[str, dict[str, set[str]]]:
        """Host → checkpoint → its files."""
        return {
            name: {path.name: set(os.listdir(path)) for path in sorted(self.of(name).glob("checkpoint-*"))}
            for name in self.names
        }

    def whole(self) -> set[str]:
        return {*OF_RANK_0, *(f"rng_state_{rank}.pth" for rank in range(len(self.names)))}

    def aside_files(self, name: str) -> set[str]:
        base = self.base / name / "checkpoints"
        return {path.name for path in base.glob("*/aside/**/*") if path.is_file() and path.name != "parts.json"}


@pytest.fixture(params=[2, 3], ids="{} hosts".format)
def hosts(tmp_path: Path, request: pytest.FixtureRequest) -> Training:
    return Training(tmp_path, "checkpoints", request.param)


@pytest.fixture
def three(tmp_path: Path) -> Training:
    return Training(tmp_path, "checkpoints", 3)


def everywhere(hosts: Training, *checkpoints: str) -> dict[str, dict[str, set[str]]]:
    return {name: dict.fromkeys(checkpoints, hosts.whole()) for name in hosts.names}


def test_three_runs_with_rotation_resume_from_the_newest_whole_checkpoint(hosts: Training) -> None:
    hosts.seconds = 0.06
    hosts.exchanged()
    hosts.train("60")
    assert set(hosts.found()["node1"]) == {"checkpoint-40", "checkpoint-60"}
    assert hosts.found()["node2"]["checkpoint-20"] == {"rng_state_1.pth"}
    hosts.exchanged()
    assert hosts.found() == everywhere(hosts, "checkpoint-40", "checkpoint-60")
    assert hosts.aside_files("node2") == {"rng_state_1.pth"}
    hosts.train("30")
    hosts.exchanged()
    assert hosts.found() == everywhere(hosts, "checkpoint-20", "checkpoint-30")
    assert hosts.aside_files("node2") == hosts.whole()
    assert hosts.aside_files("node1") == set()
    ends = hosts.train("100", "--resume")
    assert ends == {name: (0, ["from checkpoint-30", "at 100"]) for name in hosts.names}
    hosts.exchanged()
    assert hosts.found() == everywhere(hosts, "checkpoint-80", "checkpoint-100")
    hosts.exchanged()
    assert hosts.notes == []
    assert [hosts.aside_files(name) for name in hosts.names] == [set()] * len(hosts.names)
    assert not list(hosts.base.glob("*/checkpoints/*/aside"))


def test_rank_0_rotates_by_the_time_of_directories_which_an_exchange_keeps(three: Training) -> None:
    """Files that are brought change a directory; the exchange would decide which checkpoint is the oldest."""
    three.train("60", "--limit", "1")
    three.train("20", "--limit", "9")
    shutil.rmtree(three.of("node3"))
    paths = {step: three.of("node1", f"checkpoints/checkpoint-{step}") for step in (20, 60)}
    times = {step: path.stat().st_mtime for step, path in paths.items()}
    assert times[60] < times[20]
    three.exchanged()
    assert {step: path.stat().st_mtime for step, path in paths.items()} == times
    for step in paths:
        new = three.of("node3", f"checkpoints/checkpoint-{step}")
        assert set(os.listdir(new)) == three.whole() - {"rng_state_2.pth"}
        assert new.stat().st_mtime == max(path.stat().st_mtime for path in new.iterdir())


@pytest.mark.parametrize("file", ["config.json", "optimizer.pt", "rng_state_0.pth", "trainer_state.json"])
def test_save_that_was_killed_is_no_checkpoint_on_any_host(three: Training, file: str) -> None:
    three.exchanged()
    ends = three.train("40", "--die-at", f"40/{file}")
    assert ends["node1"][0] == -9
    if file == "config.json":  # as one that is killed in the middle of a file
        three.write("node1", b"\x10\0\0\0\0\0\0\0{", "checkpoints/checkpoint-40/model.safetensors")
    three.of("node3", "checkpoints/checkpoint-60").mkdir()
    three.of("node2", "checkpoints/checkpoint-40/model.safetensors.tmp").write_bytes(b"half")
    three.exchanged()
    assert three.found() == everywhere(three, "checkpoint-20")
    ends = three.train("60", "--resume")
    assert ends == {name: (0, ["from checkpoint-20", "at 60"]) for name in three.names}


@pytest.mark.core
def test_save_into_an_old_checkpoint_that_was_killed_leaves_the_old_one(three: Training) -> None:
    three.train("20")
    three.exchanged()
    model = three.of("node1", "checkpoints/checkpoint-20/model.safetensors")
    before = model.read_bytes()
    three.train("20", "--die-at", "20/optimizer.pt")
    after = model.read_bytes()
    assert after != before
    three.exchanged()
    assert three.found() == everywhere(three, "checkpoint-20")
    assert three.content("checkpoints/checkpoint-20/model.safetensors") == [before] * 3
    (aside_files,) = (three.base / "node1/checkpoints").glob("*/aside/*/checkpoints/checkpoint-20/model.safetensors")
    assert aside_files.read_bytes() == after


def test_file_of_the_user_stays_in_a_whole_checkpoint_and_goes_aside_with_a_rotated_one(three: Training) -> None:
    three.train("40", "--limit", "1")
    three.exchanged()
    notes = three.write("node2", b"of the user", "checkpoints/checkpoint-40/notes.txt")
    three.exchanged()
    assert notes.read_bytes() == b"of the user"
    three.train("80", "--limit", "1")
    three.exchanged()
    assert three.found() == everywhere(three, "checkpoint-80")
    assert three.aside_files("node2") == {*three.whole(), "notes.txt"}


def write_shard(hosts: Training, step: int, rank: int) -> None:
    """As torch.distributed.checkpoint does; the first rank writes the list of all parts at the end."""
    name = f"node{rank + 1}"
    hosts.write(name, f"shard {rank} of step {step}".encode(), f"checkpoints/step-{step}/__{rank}_0.distcp")
    if rank == 0:
        parts = {f"weight.{number}": f"__{number % 3}_0.distcp" for number in range(1000)}
        hosts.write(name, pickle.dumps(parts), f"checkpoints/step-{step}/.metadata")


def test_ranks_without_the_host_of_a_shard_load_an_older_checkpoint(three: Training) -> None:
    for rank in range(3):
        write_shard(three, 1, rank)
    three.exchanged()
    for rank in range(3):
        write_shard(three, 2, rank)
    steps = [three.of(name) for name in three.names]
    three.names = ("node1", "node2")
    three.exchanged()
    whole = {".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"}
    for path in steps[:2]:
        assert {step.name: set(os.listdir(step)) for step in path.iterdir()} == {"step-1": whole}
    three.names = ("node1", "node2", "node3")
    three.exchanged()
    for path in steps:
        assert {step.name: set(os.listdir(step)) for step in path.iterdir()} == {"step-1": whole, "step-2": whole}


def test_failed_exchange_removes_nothing_that_was_set_aside(three: Training) -> None:
    three.train("60", "--limit", "1")
    three.exchanged()
    before = three.aside_files("node2")
    assert before == {"rng_state_1.pth"}
    three.train("80", "--limit", "1")
    (three.base / "node3/checkpoints").rename(three.base / "node3/moved")
    (three.base / "node3/checkpoints").write_text("a file where the exchange needs a directory")
    assert three.exchange().failure
    assert three.aside_files("node2") >= before
    (three.base / "node3/checkpoints").unlink()
    (three.base / "node3/moved").rename(three.base / "node3/checkpoints")
    three.exchanged()
    assert three.found() == everywhere(three, "checkpoint-80")
    three.exchanged()
    assert [three.aside_files(name) for name in three.names] == [set()] * 3


@pytest.fixture(params=["disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own, of 4 MB."""
    path: Path = tmp_path / request.param
    path.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], check=False).returncode:
        pytest.skip("no filesystem can be mounted here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def put_on_disks(hosts: Training, name: str) -> None:
    """The checkpoint is on each host the same link, to a directory that only on node2 is on another disk."""
    for host in hosts.names:
        path, target = hosts.of(host), hosts.base / host / name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(exist_ok=True)
        if path.exists():
            shutil.copytree(path, target, dirs_exist_ok=True)
            shutil.rmtree(path)
        path.symlink_to(f"../{name}")


ON_NODE2 = pytest.mark.parametrize("disk", ["node2/disk"], indirect=True)


@ON_NODE2
@pytest.mark.parametrize("is_root_of_disk", [True, False])
def test_files_on_another_disk_are_set_aside_there_and_uninstall_finds_them(
    three: Training, disk: Path, is_root_of_disk: bool
) -> None:
    three.train("20")
    put_on_disks(three, "disk" if is_root_of_disk else "disk/mine")
    three.exchanged()
    shutil.rmtree(three.of("node1", "checkpoints/checkpoint-20"))
    (disk / "full").write_bytes(b"x" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))
    three.exchanged()
    assert not three.found()["node2"]
    (aside_files,) = disk.glob(".ipexctl-aside-*")
    assert aside_files.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in aside_files.rglob("*") if path.is_file()} == three.whole()
    assert missing(" ".join(three.notes), f"node2 {aside_files}") == []
    (link,) = (three.base / "node2/checkpoints").glob("*/aside")
    remove_aside(str(link))
    assert not aside_files.exists()
    assert not os.path.lexists(link)


def test_full_disk_that_earlier_files_fill_names_them(tmp_path: Path, disk: Path) -> None:
    """Home and checkpoint of node2 are on a disk of their own."""
    flat = Training(tmp_path, "out", 2)
    (tmp_path / "node2").symlink_to(disk)
    flat.write("node1", b"a" * 3_000_000, "out/last.pt")
    flat.exchanged()
    flat.of("node1", "out/last.pt").unlink()
    flat.exchanged()
    flat.write("node1", b"b" * 3_000_000, "out/next.pt")
    failure = flat.exchange().failure
    (aside_files,) = disk.glob("checkpoints/*/aside")
    assert missing(failure, "node2 full rm -r") == []
    command = failure[failure.index("rm -r") : failure.index("  #")]
    assert (tmp_path / "node2").resolve() / aside_files.relative_to(disk) == Path(command.split()[-1]).resolve()
    assert list(aside_files.rglob("last.pt"))
    subprocess.run(command, shell=True, check=True)
    flat.exchanged()
    assert flat.content("out/next.pt") == [b"b" * 3_000_000] * 2


def as_another_account(directory: Path, act: Callable[[], object]) -> None:
    """`act` is called in the directory."""
    pid = os.fork()
    if not pid:
        os.chdir(directory)
        os.setgroups([])
        os.setgid(12345)
        os.setuid(12345)
        try:
            act()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def aside_of(hosts: Training, disk: Path) -> Path:
    """Set a file of node2 aside on a disk where every account can write."""
    disk.chmod(0o777)
    put_on_disks(hosts, "disk/mine")
    hosts.of("node1").resolve().mkdir()
    hosts.write("node1", b"one", "out/last.pt")
    hosts.exchanged()
    hosts.of("node1", "out/last.pt").unlink()
    hosts.exchanged()
    (found,) = disk.rglob(".ipexctl-aside-*")
    return found


def replace_by_link(name: str, target: Path) -> None:
    os.rename(name, f"{name}.old")
    os.symlink(target, name)


@pytest.fixture
def flat(tmp_path: Path) -> Training:
    return Training(tmp_path, "out", 2)


@ON_NODE2
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_another_account_gets_no_hand_on_what_is_removed(flat: Training, disk: Path) -> None:
    """It renames the directory beside the checkpoint, and puts a link to files of the user in its place."""
    aside_files = aside_of(flat, disk)
    caches = flat.base / "caches"
    (caches / ("a" * 32)).mkdir(parents=True)
    (caches / ("a" * 32) / "model").write_text("of the user")
    as_another_account(disk, lambda: replace_by_link(aside_files.name, caches))
    assert aside_files.is_symlink()
    flat.write("node1", b"two", "out/last.pt")
    flat.exchanged()
    assert (caches / ("a" * 32) / "model").read_text() == "of the user"
    flat.of("node1", "out/last.pt").unlink()
    flat.exchanged()
    assert flat.content("out/last.pt") == [None, None]
    assert [path.name for path in caches.iterdir()] == ["a" * 32]
    (found,) = (flat.base / "node2/checkpoints").glob("*/aside")
    assert found.resolve() == disk / "mine" / aside_files.name


@ON_NODE2
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_directory_of_another_account_beside_the_checkpoint_gets_no_files(flat: Training, disk: Path) -> None:
    aside_files = aside_of(flat, disk)
    flat.exchanged()
    assert not aside_files.exists()
    as_another_account(disk, lambda: aside_files.relative_to(disk).mkdir())
    assert aside_files.stat().st_uid == 12345
    flat.write("node1", b"two", "out/last.pt")
    flat.exchanged()
    flat.of("node1", "out/last.pt").unlink()
    flat.exchanged()
    assert flat.content("out/last.pt") == [None, None]
    assert not list(aside_files.iterdir())


def test_file_that_became_a_link_is_not_sent(tmp_path: Path) -> None:
    files = CheckpointFiles(str(tmp_path / "out"), str(tmp_path / "home"))
    (tmp_path / "out").mkdir()
    path, secret = tmp_path / "out/last.pt", tmp_path / "secret"
    path.write_bytes(b"weights")
    secret.write_bytes(b"secrets")
    copy = files.scan().copies["out/last.pt"]
    os.utime(secret, ns=(copy.mtime, copy.mtime))
    with files.open_copy(copy) as file:
        assert file.read() == b"weights"
    path.unlink()
    for link in (lambda: path.symlink_to(secret), lambda: path.write_bytes(b"changed")):
        link()
        with pytest.raises(OSError, match=r"last\.pt|changed"):
            files.open_copy(copy)
        path.unlink()
