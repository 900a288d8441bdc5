"""Calls of Ansible: the lab's ssh config, pipelining, 32 forks, connections kept within a call."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .harness import Contender
from .rig import CONTENDERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .rig import Rig


def playbook(rig: Rig, name: str, file: str, values: Mapping[str, Any], count: int) -> Contender:
    """A playbook of ours on the first hosts; no connection of an earlier call is there to be used."""
    settings = rig.scratch / "ansible.cfg"
    settings.touch()
    every = {"ansible_python_interpreter": "/usr/bin/python3", **values}
    program = rig.peers.playbook or Path(str(rig.peers["ansible"])).with_name("ansible-playbook")
    argv = (str(program), "-i", ",".join(rig.names(count)) + ",", "-f", "32", "-e", json.dumps(every))
    env = {
        "ANSIBLE_CONFIG": str(settings),
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_SSH_ARGS": f"-F {rig.lab.ssh_config} -o ControlMaster=auto -o ControlPersist=20s",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": tempfile.mkdtemp(prefix="cp", dir=rig.scratch),
    }
    return Contender(name, (*argv, str(CONTENDERS / file)), env)
