"""Record what the probe prints on every costume of the lab: `python tests/unit/facts/record.py`, as root.

What is this machine's own and says nothing about a costume (its kernel, its other mounts) is made neutral.
"""

from __future__ import annotations

import re
from pathlib import Path

from ipexctl.facts.gather import names_of
from ipexctl.facts.probe import probe_command
from ipexctl.hosts.detect import read_hosts_file
from ipexctl.lab import LabSpec, down, up
from ipexctl.lab.cpu_profiles import CPU_PROFILES
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector
from ipexctl.remote.session import capture

RECORDED = Path(__file__).with_name("recorded")
LAB = "factsrecord"


def main() -> None:
    lab = up(LabSpec(hosts=len(CPU_PROFILES), name=LAB, cpus=tuple(cpu_profile.name for cpu_profile in CPU_PROFILES)))
    try:
        hosts = read_hosts_file(lab.hostfile)
        command = probe_command([name for host in hosts[:4] for name in names_of(host)])
        with Connector(ConnectOptions()) as connector:
            for host, cpu_profile in zip(hosts, CPU_PROFILES, strict=True):
                session = connector.open(host, Cancel())
                text = capture(session, command).stdout.decode()
                session.close()
                (RECORDED / f"lab-{cpu_profile.name}.txt").write_text(neutral(text))
    finally:
        down(LAB)


def neutral(text: str) -> str:
    text = re.sub(r"^(uname \S+ \S+) \S+", r"\1 6.1.0-18-amd64", text, flags=re.MULTILINE)
    text = re.sub(r"^boot_id .*", "boot_id 4c1f5b1e-7d0a-4a53-9a63-0d2f5a7f3c11", text, flags=re.MULTILINE)
    text = re.sub(r"/var/lib/ipexctl/labs/[^,\s]*", "/lab", text)
    keep = ("/", "/home", "/tmp", "/dev/shm")
    lines = (line for line in text.splitlines() if not line.startswith("mount ") or line.split()[5] in keep)
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
