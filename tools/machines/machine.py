"""Boots a machine, finds those that run, logs in, and removes them.

A machine is a QEMU process, and a directory with its record, console and pid. What it writes to its disk is gone with
the process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipexctl.node.common.processes import ProcessIdentity, start_of

from . import network
from .image import ACCOUNT
from .kinds import KINDS, Kind, topology
from .programs import MachineError, require, run

HOME: Final = Path("/var/cache/ipexctl-machines")
_PROGRAMS: Final = {
    "debootstrap": "debootstrap",
    "mke2fs": "e2fsprogs",
    "ip": "iproute2",
    "ssh": "openssh-client",
}
_PROGRAMS_OF_ARM: Final = {"qemu-system-aarch64": "qemu-system-arm", "qemu-aarch64-static": "qemu-user-static"}


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    kind: str
    number: int
    pid: int
    start: int
    """Of the process, in the kernel's ticks."""

    @property
    def directory(self) -> Path:
        return HOME / "machines" / self.name

    @property
    def image(self) -> Path:
        return image_of(KINDS[self.kind].image)

    @property
    def address(self) -> str:
        ipv4, ipv6 = network.address_of(self.number)
        return ipv4 if KINDS[self.kind].has_ipv4 else ipv6

    @property
    def process(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start)

    def options(self, account: str = ACCOUNT) -> tuple[str, ...]:
        """Options of ipexctl for it."""
        keys = ("--identity", self.image / "key", "--known-hosts", self.image / "known_hosts")
        return ("--hosts", self.address, "--user", account, *map(str, keys))

    def ssh_argv(self, account: str = ACCOUNT) -> list[str]:
        known = f"UserKnownHostsFile={self.image / 'known_hosts'}"
        options = ("-o", known, "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=10", "-o", "BatchMode=yes")
        return ["ssh", "-F", "none", "-i", str(self.image / "key"), *options, f"{account}@{self.address}"]

    def run(self, command: str, *, account: str = ACCOUNT, timeout: float = 120) -> str:
        return run(*self.ssh_argv(account), command, timeout=timeout)


def image_of(name: str) -> Path:
    return HOME / name


def require_programs(image: str = "") -> None:
    """Raise MachineError if this machine lacks what builds and boots an image."""
    of_image = _PROGRAMS_OF_ARM if image.endswith("-arm64") else {"qemu-system-x86_64": "qemu-system-x86"}
    require({**_PROGRAMS, **(of_image if image else {})})


def accelerator(kind: Kind) -> str:
    """KVM where it is the hardware's: another's may not boot Debian's kernel."""
    has_kvm = not kind.is_arm and any(Path("/sys/module", name).exists() for name in ("kvm_intel", "kvm_amd"))
    return "kvm" if has_kvm and os.access("/dev/kvm", os.R_OK | os.W_OK) else "tcg,thread=multi,tb-size=512"


def boot(kind_name: str, name: str = "", words: str = "", *, timeout: float = 900) -> Machine:
    """Boot a machine and wait until an account can log in. `words`: more of the kernel's command line."""
    kind, name = KINDS[kind_name], name or kind_name
    require_programs(kind.image)
    image = image_of(kind.image)
    if not (image / "root.img").exists():
        raise MachineError(f"there is no image of {kind.image}; first: python -m tools.machines build {kind.image}")
    running = living()
    if name in (machine.name for machine in running):
        raise MachineError(f"a machine {name} runs; to remove it: python -m tools.machines remove {name}")
    number = next((number for number in network.NUMBERS if number not in {each.number for each in running}), None)
    if number is None:
        raise MachineError(f"{len(running)} machines run, and no more have an address; remove one")
    if not network.exists():
        network.up()
    directory = HOME / "machines" / name
    directory.mkdir(parents=True)
    ipv4, ipv6 = network.address_of(number)
    init = "/lib/systemd/systemd" if kind.has_systemd else "/usr/local/sbin/sshd-alone"
    own = {"name": name, "ipv4": ipv4 if kind.has_ipv4 else "", "ipv6": ipv6, "program": init}
    program = "qemu-system-aarch64" if kind.is_arm else "qemu-system-x86_64"
    quiet = f"console={'ttyAMA0' if kind.is_arm else 'ttyS0'} net.ifnames=0 mitigations=off random.trust_cpu=on quiet"
    line = " ".join([quiet, *(f"machine.{key}={value}" for key, value in own.items()), kind.words, words])
    tap = network.tap_of(number)
    run(
        *("ip", "netns", "exec", network.NETWORK_NAMESPACE, program, "-accel", accelerator(kind)),
        *("-nodefaults", "-display", "none", "-no-reboot", "-daemonize", "-pidfile", directory / "pid"),
        *("-kernel", image / "kernel", "-initrd", image / "initrd", "-append", line),
        *("-drive", f"file={image / 'root.img'},format=raw,if=virtio,cache=unsafe,snapshot=on"),
        *("-netdev", f"tap,id=net,ifname={tap},script=no,downscript=no"),
        *("-device", f"virtio-net-pci,netdev=net,mac=52:54:00:79:00:{number:02x}", "-device", "virtio-rng-pci"),
        *("-serial", f"file:{directory / 'console'}"),
        *topology(kind),
    )
    pid = int((directory / "pid").read_text())
    machine = Machine(name, kind_name, number, pid, start_of(pid))
    record = {"name": name, "kind": kind_name, "number": number, "pid": pid, "start": machine.start}
    (directory / "machine.json").write_text(json.dumps(record))
    _wait(machine, timeout)
    return machine


def _wait(machine: Machine, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and machine.process.is_alive:
        argv = [*machine.ssh_argv(), "true"]
        if subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(1)
    console = (machine.directory / "console").read_text(errors="replace").splitlines()
    what = f"did not let {ACCOUNT} log in within {timeout:.0f} s" if machine.process.is_alive else "ended"
    remove([machine])
    raise MachineError(f"{machine.name} {what}; its console ends with:\n" + "\n".join(console[-15:]))


def living() -> list[Machine]:
    return [machine for machine in _recorded() if machine.process.is_alive]


def _recorded() -> list[Machine]:
    files = sorted((HOME / "machines").glob("*/machine.json"))
    return [Machine(**json.loads(file.read_text())) for file in files]


def remove(machines: Iterable[Machine]) -> None:
    """End them and remove their files; with the last one, the network."""
    for machine in machines:
        if machine.process.is_alive:
            machine.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 10
            while machine.process.is_alive and time.monotonic() < deadline:
                time.sleep(0.1)
            machine.process.send_signal(signal.SIGKILL)
        shutil.rmtree(machine.directory, ignore_errors=True)
    if not living() and network.exists():
        network.down()


def remove_all() -> None:
    """Remove all machines, the network and the images."""
    remove(_recorded())
    shutil.rmtree(HOME, ignore_errors=True)
