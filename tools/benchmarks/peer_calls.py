"""Calls of the other tools on the lab's first hosts, each None if the tool is not installed here."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .harness import Contender
from .rig import CONTENDERS, Rig


def bare_pool(rig: Rig, name: str, count: int, command: str) -> Contender:
    program = str(CONTENDERS / "bare_pool.py")
    return Contender(name, (sys.executable, program, *rig.login, command, *rig.addresses(count)))


def ansible(rig: Rig, name: str, count: int, *module: str, **settings: str) -> Contender | None:
    """One module. No ControlPersist, which Ansible asks for by default: from the second run on it would not be cold."""
    if not rig.peers["ansible"]:
        return None
    argv = (str(rig.peers["ansible"]), "all", *_ansible_inventory(rig, count), "-m", *module)
    return Contender(name, argv, {**_ansible_config(rig), "ANSIBLE_SSH_ARGS": f"-F {rig.lab.ssh_config}", **settings})


def playbook(rig: Rig, name: str, file: str, values: Mapping[str, Any], count: int) -> Contender:
    """A playbook of ours, with pipelining; no connection of an earlier call is there to be used."""
    every = {"ansible_python_interpreter": "/usr/bin/python3", **values}
    program = rig.peers.playbook or Path(str(rig.peers["ansible"])).with_name("ansible-playbook")
    argv = (str(program), *_ansible_inventory(rig, count), "-e", json.dumps(every), str(CONTENDERS / file))
    env = {
        **_ansible_config(rig),
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_SSH_ARGS": f"-F {rig.lab.ssh_config} -o ControlMaster=auto -o ControlPersist=20s",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": tempfile.mkdtemp(prefix="cp", dir=rig.scratch),
    }
    return Contender(name, argv, env)


def _ansible_inventory(rig: Rig, count: int) -> tuple[str, ...]:
    return ("-i", ",".join(rig.names(count)) + ",", "-f", "32")


def _ansible_config(rig: Rig) -> dict[str, str]:
    """An empty file, so that no other is read."""
    settings = rig.scratch / "ansible.cfg"
    settings.touch()
    return {"ANSIBLE_CONFIG": str(settings)}


def pyinfra(rig: Rig, name: str, count: int, *operation: str) -> Contender | None:
    if not rig.peers["pyinfra"]:
        return None
    known = rig.lab.known_hosts
    data = f"ssh_config_file={rig.lab.ssh_config} ssh_known_hosts_file={known} ssh_strict_host_key_checking=yes"
    options = [word for item in data.split() for word in ("--data", item)]
    hosts = ",".join(f"@ssh/{host}" for host in rig.names(count))  # one bare name alone would be taken for a file
    return Contender(name, (str(rig.peers["pyinfra"]), "-y", "--parallel", "32", *options, hosts, *operation))
