"""A plain mpirun over ssh on the lab's hosts, as a person would type it who has `ipexctl trust` for the logins."""

from __future__ import annotations

from .harness import Contender
from .rig import Rig


def mpirun_by_hand(
    rig: Rig, name: str, counts: tuple[int, int, int], script: str, arguments: str = "", ssh_options: str = ""
) -> Contender:
    """`counts`: hosts, ranks per host, ranks in all; `script`: its path on the hosts."""
    hosts, ppn, ranks = counts
    home = rig.lab.hosts[0].home
    env, ssh = f"{home}/.ipexctl/envs/default", f"{home}/bare-{len(name)}"
    text = f"#!/bin/sh\\nexec ssh {ssh_options} -F {home}/.ipexctl/ssh/config"
    rig.on_hosts(f"printf '{text} \"$@\"\\n' >{ssh}; chmod 755 {ssh}", 1)
    addresses = ",".join(host.address for host in rig.lab.hosts[:hosts])
    words = f"PATH={env}/bin:$PATH I_MPI_ROOT={env} I_MPI_PIN=0 mpiexec.hydra -bootstrap ssh -bootstrap-exec {ssh} "
    words += f"-iface eth0 -hosts {addresses} -ppn {ppn} -n {ranks} {env}/bin/python {script} {arguments}"
    return Contender(name, (str(rig.peers["ssh"]), "-F", str(rig.lab.ssh_config), rig.names(1)[0], words.rstrip()))
