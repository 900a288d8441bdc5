"""Configurations of accelerate, of every generation, and the environment of their ranks."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from accelerate_files import ALONE
from ipexctl.errors import UserError
from ipexctl.launch.accelerate_config import read_accelerate, read_accelerate_file, remarks, with_config
from ipexctl.launch.accelerate_env import unsupported_settings, variables_of
from ipexctl.launch.spec import AccelerateConfig
from message_data import missing
from plan_helpers import spec_of

CLUSTER_CONFIG = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_CPU
downcast_bf16: 'no'
dynamo_config:
  dynamo_backend: INDUCTOR
ipex_config:
  ipex: true
machine_rank: 0
main_process_ip: 192.168.20.2
main_process_port: 29511
main_training_function: main
mixed_precision: bf16
mpirun_config:
  mpirun_ccl: '1'
  mpirun_hostfile: /home/me/hostfile
num_machines: 4
num_processes: 16
rdzv_backend: static
same_network: true
use_cpu: true
"""
UNINDENTED_CONFIG = """\
distributed_type: MULTI_CPU
ipex_config:
ipex: true
mpirun_config:
mpirun_ccl: 2
mpirun_hostfile: hosts
num_machines: 2
num_processes: 4
use_cpu: true
"""
OLD = {"accelerate": "0.34.2", "intel-extension-for-pytorch": "2.3.0"}
NEW = {"accelerate": "1.14.0"}


def read(text: str) -> AccelerateConfig:
    return read_accelerate(text, "default_config.yaml")


def words(config: AccelerateConfig, packages: Mapping[str, str]) -> dict[str, str | None]:
    return {setting.name: setting.value for setting in variables_of(config, packages)}


def test_config_for_one_machine() -> None:
    config = read(ALONE)
    assert (config.processes, config.machines, config.hostfile, config.ipex) == (1, 1, None, True)
    assert config.mixed_precision == "bf16"
    assert config.notes == ()


def test_config_for_several_machines_with_mpirun() -> None:
    config = read(CLUSTER_CONFIG)
    assert (config.processes, config.machines, config.hostfile) == (16, 4, "/home/me/hostfile")
    assert (config.main_ip, config.main_port, config.ccl_workers) == ("192.168.20.2", 29511, 1)
    assert config.dynamo == {"backend": "INDUCTOR"}
    options = with_config(spec_of(), config, hosts=4)
    assert (options.asked.n, options.asked.ppn, options.asked.master_port) == (16, 4, 29511)
    assert options.asked.sources == {
        "ranks": "default_config.yaml: num_processes 16, num_machines 4",
        "master_port": "default_config.yaml: main_process_port",
    }
    assert with_config(spec_of(), config, hosts=3).asked.ppn == 6


def test_the_command_line_wins_over_the_file() -> None:
    options = with_config(spec_of(n=2, master_port=4000), read(CLUSTER_CONFIG), hosts=4)
    assert (options.asked.n, options.asked.ppn, options.asked.master_port) == (2, None, 4000)
    assert options.asked.sources == {}
    assert with_config(spec_of(ppn=1), read(CLUSTER_CONFIG), hosts=4).asked.n is None


def test_lost_indentation_is_read() -> None:
    config = read(UNINDENTED_CONFIG)
    assert (config.ipex, config.ccl_workers, config.hostfile) == (True, 2, "hosts")


def test_oldest_keys_are_read() -> None:
    config = read("distributed_type: MULTI_CPU\nfp16: true\ndynamo_backend: 'NO'\nipex_config: {ipex_enabled: true}\n")
    assert config.ipex_enabled is True
    assert config.mixed_precision == "fp16"
    assert [missing(note, "mixed_precision fp16 bf16") for note in config.notes] == [[]]
    assert words(config, {"accelerate": "0.19.0"})["IPEX_ENABLED"] == "true"


def test_unquoted_no_is_read_as_text() -> None:
    config = read("distributed_type: NO\nmixed_precision: no\nnum_processes: -1\n")
    assert (config.mixed_precision, config.processes) == ("no", None)


def test_largest_number_is_read() -> None:
    assert read("distributed_type: MULTI_CPU\nnum_processes: 1000000\n").processes == 1_000_000
    config = read("distributed_type: MULTI_GPU\nnum_processes: 2\n")
    assert (config.is_distributed, [note.partition(": ")[2] for note in config.notes]) == (
        True, ["MULTI_GPU is read as MULTI_CPU, ranks compute on CPUs"],
    )  # fmt: skip


def test_json_config_is_read() -> None:
    assert read('{"distributed_type": "MULTI_CPU", "num_processes": 3}').processes == 3


def test_variables_of_each_generation() -> None:
    old = words(read(CLUSTER_CONFIG), OLD)
    assert old == {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR",
        "ACCELERATE_DYNAMO_MODE": "default",
        "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
        "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
        "CCL_WORKER_COUNT": "1",
        "ACCELERATE_USE_IPEX": "true",
        "ACCELERATE_USE_XPU": "false",
    }
    new = words(read(CLUSTER_CONFIG), NEW)
    assert "ACCELERATE_USE_IPEX" not in new
    assert new["ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"] == "False"


def test_installed_ipex_is_disabled_unless_configured() -> None:
    assert words(read("distributed_type: MULTI_CPU\n"), OLD)["ACCELERATE_USE_IPEX"] == "false"
    assert "ACCELERATE_USE_IPEX" not in words(read(ALONE), {"accelerate": "0.34.2"})


def test_fully_supported_config_has_no_notes() -> None:
    assert unsupported_settings(read(CLUSTER_CONFIG), OLD) == ()
    assert remarks(read(CLUSTER_CONFIG), 4, ("node1", "192.168.20.2")) == ()
    assert read("use_cpu: true\n").notes == ()


def test_too_large_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("num_processes: 2\n" + "# and more\n" * 100_000)
    with pytest.raises(UserError, match="64,000"):
        read_accelerate_file(file)
    with pytest.raises(UserError, match="64,000"):
        read_accelerate_file(Path("/dev/zero"), is_typed=True)


@pytest.mark.timeout(10)
def test_a_pipe_is_read_only_if_its_name_was_typed(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    os.mkfifo(file)
    with pytest.raises(UserError, match=r"config\.yaml.*regular"):
        read_accelerate_file(file)
    threading.Thread(target=lambda: file.write_text("num_processes: 2\n"), daemon=True).start()
    assert read_accelerate_file(file, is_typed=True).processes == 2
