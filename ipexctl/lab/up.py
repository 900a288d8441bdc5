"""Making a lab: the plan written down first, then wires, disks and hosts, or nothing at all."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.lab import cpu_overlay as dress
from ipexctl.lab import disk, network, render, state, system
from ipexctl.lab import etc_files as etc
from ipexctl.lab import spec as specs
from ipexctl.lab.down import labs_of, remove
from ipexctl.lab.locks import lab_lock, machine_lock
from ipexctl.lab.plan import free_block, free_name, make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ipexctl.lab.spec import LabSpec
    from ipexctl.lab.state import Lab, LabHost

_NODE_SCRIPT: Final = Path(__file__).with_name("node.sh")
_START_TIMEOUT: Final = 60.0
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class LabEvent:
    """Something `up` got done: "planned", "wired", then "host" for each that answers."""

    step: str
    lab: Lab
    host: str = ""
    done: int = 0


def up(spec: LabSpec, on_event: Callable[[LabEvent], None] | None = None) -> Lab:
    """Make a lab and return it once every host's sshd answers; whatever cuts that short leaves nothing."""
    tell = on_event or _tell_nobody
    system.require()
    specs.check(spec)
    with _reserved(spec) as lab:
        try:
            tell(LabEvent("planned", lab))
            return _make(lab, tell)
        except system.CommandError as error:
            raise UserError(f"the lab could not be made: {error}") from error


def _tell_nobody(_event: LabEvent) -> None:
    pass


@contextmanager
def _reserved(spec: LabSpec) -> Iterator[Lab]:
    """A name and a block nobody else has, on disk before anything is made; gone again on any error."""
    with ExitStack() as held:
        with machine_lock():
            lab = _choose(spec)
            lab.dir.mkdir(parents=True, mode=0o700)
            (lab.dir / "lock").touch()
            held.enter_context(lab_lock(lab.name))
            state.save(lab)
        try:
            yield lab
        except BaseException:
            with _undisturbed():
                remove(lab.name)
            raise


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No second Ctrl-C while we clear up after the first; signals can be set from the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _choose(spec: LabSpec) -> Lab:
    labs = state.load_all()
    links = system.links()
    taken = {lab.block for lab in labs}
    taken |= {block for block in range(1, 255) if f"{state.LINK_PREFIX}{block}" in links}
    names = {*state.directories(), *labs_of(system.namespaces())}
    name = free_name(names, spec.name)
    return make_plan(spec, name, free_block(taken, system.routes()))


def _make(lab: Lab, tell: Callable[[LabEvent], None]) -> Lab:
    v6 = system.has_ipv6()
    system.ip_batch(network.namespaces(lab))
    system.ip_batch(network.uplink(lab, v6=v6))
    system.ip_batch(network.switch(lab), netns=lab.switch)
    _write_common(lab)
    shared = disk.make_shared_home(lab) if lab.shared_home else None
    dress.write_profiles(lab)
    tell(LabEvent("wired", lab))
    openssh = etc.openssh_version(_ssh_banner())
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        jobs = {pool.submit(_start, lab, host, shared, openssh, v6=v6): host for host in lab.nodes}
        for number, job in enumerate(as_completed(jobs), start=1):
            job.result()
            tell(LabEvent("host", lab, jobs[job].name, number))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    disk.let_go_of_shared_home(lab)
    keys = {host.name: (host.dir / "etc/ssh/ssh_host_ed25519_key.pub").read_text() for host in lab.nodes}
    lab.known_hosts.write_text(render.known_hosts(lab, keys))
    made = replace(lab, ready=True)
    state.save(made)
    return made


def _write_common(lab: Lab) -> None:
    _keygen(lab.key, f"ipexctl-lab-{lab.name}")
    lab.hostfile.write_text(render.hostfile(lab))
    lab.ssh_config.write_text(render.ssh_config(lab))
    lab.inventory.write_text(render.inventory(lab))


def _keygen(path: Path, comment: str) -> None:
    system.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])


def _ssh_banner() -> str:
    done = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False, timeout=10)
    return done.stderr


def _start(lab: Lab, host: LabHost, shared: Path | None, openssh: tuple[int, int], *, v6: bool) -> None:
    """Bring one host from a directory to an sshd that answers."""
    _write_host(lab, host, openssh, v6=v6)
    disk.make_image(host)
    environment = {
        "PATH": f"{system.SBIN}:/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C",
        "STATE": str(host.dir),
        "NAME": host.name,
        "LOGIN": host.user,
        "HOME_DIR": host.home,
        "SHARED": str(shared or "") if not host.is_bastion else "",
        "COSTUME": str(dress.profile_directory(lab, host.cpu_profile)) if host.cpu_profile else "",
        "SHELF": str(state.LABS.parent),
        "INIT": str(_NODE_SCRIPT.with_name("init.sh")),
    }
    # setsid --fork: the host is nobody's child, and a Ctrl-C meant for us never reaches it.
    argv = ["setsid", "--fork", "ip", "netns", "exec", host.netns, "unshare", "--fork", "--pid", "--uts", "--ipc"]
    argv += ["--mount", "/bin/sh", str(_NODE_SCRIPT)]
    log = host.dir / "start.log"
    with log.open("w") as errors:
        said = _first_line(argv, environment, errors, timeout=_START_TIMEOUT)
    if said != b"ready\n":
        raise UserError(f"{host.name} did not start{_last_words(log)}")
    if not host.behind_bastion:
        _await_banner(host.address, timeout=_START_TIMEOUT)


def _first_line(argv: list[str], environment: dict[str, str], errors: IO[str], *, timeout: float) -> bytes:
    """Start a program that outlives us and return its first line, or what there was of it in time."""
    line = b""
    deadline = time.monotonic() + timeout
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd="/"
    ) as starter:
        assert starter.stdout is not None
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([starter.stdout], [], [], left)[0]:
                break
            part = os.read(starter.stdout.fileno(), 100)
            if not part:
                break
            line += part
    return line


def _write_host(lab: Lab, host: LabHost, openssh: tuple[int, int], *, v6: bool) -> None:
    own = host.dir / "etc"
    for directory in (own / "ssh", host.dir / "disk", host.dir / "root"):
        directory.mkdir(parents=True)
    accounts = etc.passwd(Path("/etc/passwd").read_text(), host)
    files = {
        "passwd": accounts,
        "shadow": etc.shadow(accounts),
        "group": etc.group(Path("/etc/group").read_text(), host),
        "gshadow": "",
        "hostname": f"{host.name}\n",
        "hosts": etc.hosts(lab, host, others=lab.names),
        "resolv.conf": etc.RESOLV_CONF,
        "nsswitch.conf": etc.NSSWITCH,
        "ssh/sshd_config": etc.sshd_config(openssh),
    }
    for name, text in files.items():
        (own / name).write_text(text)
    _keygen(own / "ssh/ssh_host_ed25519_key", host.name)
    (host.dir / "net").write_text(network.inside(host, v6=v6))


def _last_words(log: Path) -> str:
    words = log.read_text(errors="replace").strip().splitlines()[-3:]
    return f": {' / '.join(words)}" if words else ""


def _await_banner(address: str, *, timeout: float) -> None:
    """Return when sshd says its name."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((address, 22), timeout=2) as connection:
                if connection.recv(8).startswith(b"SSH-"):
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise UserError(f"the sshd of {address} said nothing for {timeout:.0f} s")
