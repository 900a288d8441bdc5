"""A hub that lab hosts reach over the uplink, and huggingface_hub on such a host."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from hub_server import Hub
from ipexctl.addons.lab import lab_system
from ipexctl.addons.lab.faults import ssh_argv
from ipexctl.addons.lab.lab_plan import front_gateway
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.addons.lab.lab_system import in_host
from ipexctl.node.env.env_replies import EnvRecord
from ipexctl.stack.env.record import SCHEMA

ENV = "hub-download-0123abcd"


@contextmanager
def hub_on_uplink(lab: Lab, directory: Path) -> Iterator[Hub]:
    """Its storage has an address of its own, as the real one's, and neither is that of the control machine."""
    network = front_gateway(lab.block).rpartition(".")[0]
    address, storage = f"{network}.249", f"{network}.250"
    for added in (address, storage):
        lab_system.run(["ip", "address", "add", f"{added}/32", "dev", lab.uplink])
    try:
        with Hub(directory, address, storage) as hub:
            yield hub
    finally:
        for added in (address, storage):
            lab_system.run(["ip", "address", "delete", f"{added}/32", "dev", lab.uplink])


@contextmanager
def without_hub(hosts: Sequence[LabHost], hub: Hub) -> Iterator[None]:
    """These hosts have no route to it."""
    route = f"blackhole {urlsplit(hub.endpoint).hostname}"
    for host in hosts:
        in_host(host, f"ip route add {route}")
    try:
        yield
    finally:
        for host in hosts:
            in_host(host, f"ip route delete {route}")


def _packages(name: str, found: dict[str, str]) -> None:
    known = distribution(name)
    found[known.metadata["Name"].lower()] = known.version
    for line in known.requires or ():
        requirement = Requirement(line)
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_needed and requirement.name.lower().replace("_", "-") not in {word.replace("_", "-") for word in found}:
            _packages(requirement.name, found)


def install_downloader(host: LabHost) -> None:
    """An environment with the huggingface_hub of this one, as `ipexctl install` would record it."""
    found: dict[str, str] = {}
    _packages("huggingface_hub", found)
    record = EnvRecord(
        schema=SCHEMA,
        name=ENV,
        row="hub",
        python="3.11",
        interpreter="",
        digest="0123abcd",
        packages=found,
        backend="gloo",
        requests=(),
        module=None,
        retired=False,
        mpi=None,
        why="",
        installer=None,
    )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in found:
            known = distribution(name)
            for file in known.files or ():
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    archive.add(str(known.locate_file(file)), str(file))
        data = json.dumps(record._asdict()).encode()
        entry = tarfile.TarInfo("env.json")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    place = f"~/.ipexctl/envs/{ENV}"
    line = (
        f"mkdir -p ~/.ipexctl/envs && : > ~/.ipexctl/.ipexctl-home && chmod 700 ~/.ipexctl && "
        f"python3 -m venv --without-pip {place} && cd {place}/lib/python3.*/site-packages && tar -x && "
        f"mv env.json {place}/"
    )
    subprocess.run([*ssh_argv(host), line], input=packed.getvalue(), capture_output=True, check=True, timeout=60)
