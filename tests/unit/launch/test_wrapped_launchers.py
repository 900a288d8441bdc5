"""Commands with torchrun or accelerate launch are unwrapped, and their options are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.errors import UserError
from ipexctl.launch.accelerate_config import AccelerateConfig
from ipexctl.launch.request import LaunchOptions
from ipexctl.launch.wrapped_launchers import UnwrappedCommand, config_of, of_torchrun, unwrap, without_launcher
from message_data import missing


def unwrapped(line: str) -> UnwrappedCommand:
    found = unwrap(line.split())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("line", "launcher", "kind", "words"),
    [
        ("torchrun train.py --lr 1", "torchrun", "script", ("train.py", "--lr", "1")),
        ("torchrun --nproc-per-node 2 --standalone train.py", "torchrun", "script", ("train.py",)),
        ("/opt/env/bin/torchrun --nproc_per_node=2 -m pkg.train a", "torchrun", "module", ("pkg.train", "a")),
        ("python -m torch.distributed.run --no-python ./x.sh", "torchrun", "command", ("./x.sh",)),
        ("python3.11 -u -m torch.distributed.launch --use-env t.py", "torchrun", "script", ("t.py",)),
        ("accelerate launch t.py --config_file mine", "accelerate launch", "script", ("t.py", "--config_file", "mine")),
        ("accelerate launch --cpu --num_processes 4 t.py", "accelerate launch", "script", ("t.py",)),
        ("accelerate-launch -m pkg", "accelerate launch", "module", ("pkg",)),
        ("python -m accelerate.commands.launch --ipex t.py", "accelerate launch", "script", ("t.py",)),
    ],
)
def test_launcher_commands_are_unwrapped(line: str, launcher: str, kind: str, words: tuple[str, ...]) -> None:
    found = unwrapped(line)
    assert (found.launcher, found.kind, found.argv) == (launcher, kind, words)


@pytest.mark.parametrize("line", ["python train.py", "accelerate config", "python -m pip list", "./torchrun.sh", ""])
def test_other_commands_are_left_as_they_are(line: str) -> None:
    assert unwrap(line.split()) is None


@pytest.mark.parametrize("line", ["torchrun", "torchrun --nproc-per-node 2", "accelerate launch --cpu"])
def test_a_launcher_with_nothing_to_launch_is_refused(line: str) -> None:
    with pytest.raises(UserError, match="what\\?"):
        unwrap(line.split())


def test_torchrun_options_are_used_unless_run_has_its_own() -> None:
    found = unwrapped("torchrun --nproc-per-node 3 --master-port 4444 t.py")
    port = {"master_port": "torchrun --master_port 4444"}
    said = {"ranks": "torchrun --nproc_per_node 3", **port}
    assert of_torchrun(found, LaunchOptions()) == LaunchOptions(ppn=3, master_port=4444, sources=said)
    assert of_torchrun(found, LaunchOptions(n=5)) == LaunchOptions(n=5, master_port=4444, sources=port)
    automatic = unwrapped("torchrun --nproc-per-node auto t.py")
    assert of_torchrun(automatic, LaunchOptions()) == LaunchOptions()
    wrong = unwrapped("torchrun --nproc-per-node many t.py")
    with pytest.raises(UserError, match="many"):
        of_torchrun(wrong, LaunchOptions())


def test_accelerate_options_override_its_config_file() -> None:
    file = AccelerateConfig("c.yaml", processes=2, mixed_precision="bf16", dynamo={"backend": "INDUCTOR"}, ipex=True)
    found = unwrapped("accelerate launch --num_processes 6 --mixed_precision no --mpirun_ccl 2 t.py")
    config = config_of(found, file)
    assert (config.processes, config.mixed_precision, config.ccl_workers) == (6, "no", 2)
    assert (config.ipex, config.dynamo) == (True, {"backend": "INDUCTOR"})


def test_a_call_without_a_launcher_stays_as_it_is() -> None:
    words, options = ("python", "t.py"), LaunchOptions(n=2)
    asked = without_launcher(words, options, None, {})
    assert (asked.kind, asked.argv, asked.options, asked.config, asked.note) == ("command", words, options, None, "")
    # behind no `--` the words are a script of that name and its arguments


def test_named_accelerate_config_is_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("distributed_type: MULTI_CPU\nnum_processes: 8\n")
    words = ("accelerate", "launch", "--config_file", str(file), "t.py")
    asked = without_launcher(words, LaunchOptions(), None, {})
    assert asked.config is not None
    assert (asked.kind, asked.argv, asked.config.processes) == ("script", ("t.py",), 8)
    assert missing(asked.note, "accelerate launch") == []
    with pytest.raises(UserError, match="No such file"):
        without_launcher(("accelerate", "launch", "--config_file", "/none", "t.py"), LaunchOptions(), None, {})


def test_default_accelerate_config_is_read_unless_cpu_is_given(tmp_path: Path) -> None:
    place = tmp_path / "hf" / "accelerate"
    place.mkdir(parents=True)
    (place / "default_config.json").write_text('{"distributed_type": "MULTI_CPU", "num_processes": 3}')
    environ = {"HF_HOME": str(tmp_path / "hf")}
    read = without_launcher(("accelerate", "launch", "t.py"), LaunchOptions(), None, environ)
    assert read.config is not None
    assert (read.config.processes, read.config.path) == (3, str(place / "default_config.json"))
    told = without_launcher(("accelerate", "launch", "--cpu", "t.py"), LaunchOptions(), None, environ)
    assert told.config is not None
    assert told.config.processes is None


def test_hostfile_of_the_default_accelerate_config_counts_as_found(tmp_path: Path) -> None:
    (tmp_path / "accelerate").mkdir()
    file = tmp_path / "accelerate" / "default_config.yaml"
    file.write_text("distributed_type: MULTI_CPU\nmpirun_config: {mpirun_hostfile: hosts}\n")

    def found(*words: str) -> tuple[str | None, bool]:
        call = ("accelerate", "launch", *words, "t.py")
        asked = without_launcher(call, LaunchOptions(), None, {"HF_HOME": str(tmp_path)})
        assert asked.config is not None
        return asked.config.hostfile, asked.config.hostfile_found

    assert found() == ("hosts", True)
    assert found("--config_file", str(file)) == ("hosts", False)
    assert found("--mpirun_hostfile", "mine") == ("mine", False)


def test_accelerate_threads_option_sets_omp() -> None:
    words = ("accelerate", "launch", "--num_cpu_threads_per_process", "3", "t.py", "--cpu")
    asked = without_launcher(words, LaunchOptions(), None, {})
    assert (asked.options.omp, asked.argv) == (3, ("t.py", "--cpu"))
    assert without_launcher(words, LaunchOptions(omp=2), None, {}).options.omp == 2
    with pytest.raises(UserError, match="some"):
        without_launcher((*words[:3], "some", "t.py"), LaunchOptions(), None, {})
