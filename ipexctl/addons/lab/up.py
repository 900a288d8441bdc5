"""Make a lab: record the plan, then make the network, disks and hosts. A failure or signal removes everything.

Hosts start in parallel and are not children of this process, because Ctrl-C must not reach them. Filesystems are sparse
images, so a full disk of 16 GB uses no real space.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from ipexctl.addons.lab import cpu_profiles, lab_files, lab_record, lab_slurm, lab_system
from ipexctl.addons.lab.down import labs_of, remove
from ipexctl.addons.lab.faults import find_fault, inject
from ipexctl.addons.lab.lab_plan import LabSpec, check, free_block, free_name, plan_lab
from ipexctl.addons.lab.lab_record import Lab, LabHost, lab_lock, machine_lock
from ipexctl.errors import UserError
from ipexctl.limits import LAB_HOST_START
from ipexctl.node.common.processes import own_identity

_SIZE: Final = 16 << 30


def can_mount_images() -> bool:
    """Return whether images can be mounted. They can't in most containers, where a tmpfs replaces them."""
    return Path("/dev/loop-control").exists() and Path("/sys/block").exists()


def make_image(host: LabHost) -> None:
    """Make the image of a host's disk, if images can be mounted."""
    if can_mount_images():
        _format(host.dir / "disk.img")


def _format(path: Path) -> None:
    """Make a sparse image with a filesystem."""
    with path.open("wb") as file:
        os.truncate(file.fileno(), _SIZE)
    # No journal and lazy initialisation: formatting takes 10 ms and the image stays sparse.
    options = ["-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", "-m", "0"]
    lab_system.run(["mkfs.ext4", "-q", "-F", *options, str(path)])


def shared_home(lab: Lab) -> Path:
    """Return where the home that all hosts share is mounted on this machine while the lab is made."""
    return lab.dir / "home"


def make_shared_home(lab: Lab) -> Path:
    """Make the home that all hosts share, and return its path. It is mounted here until all hosts have mounted it."""
    home = shared_home(lab)
    home.mkdir()
    if can_mount_images():
        image = lab.dir / "home.img"
        _format(image)
        with suppress(lab_system.CommandError):  # a plain directory can be shared too, but it can't be filled
            lab_system.run(["mount", "-o", "loop,noatime", str(image), str(home)])
            (home / "lost+found").rmdir()
    if Path("/etc/skel").is_dir():
        shutil.copytree("/etc/skel", home, dirs_exist_ok=True, symlinks=True)
    (home / ".ssh").mkdir(mode=0o700)
    shutil.copy(lab.key.with_suffix(".pub"), home / ".ssh/authorized_keys")
    (home / ".ssh/authorized_keys").chmod(0o600)
    owner = 0 if lab.hosts[0].user == "root" else lab_files.UID
    for path in [home, *home.rglob("*")]:
        os.chown(path, owner, owner, follow_symlinks=False)
    home.chmod(0o700)
    return home


def unmount_shared_home(lab: Lab) -> None:
    """Unmount the shared home here; the hosts' own mounts keep it alive."""
    home = shared_home(lab)
    if home.is_mount():
        lab_system.run(["umount", str(home)])


_NODE_SCRIPT: Final = Path(__file__).with_name("node.sh")
_PARALLEL_STARTS: Final = 16
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def up(spec: LabSpec) -> Lab:
    """Make a lab and return it once all hosts have started. Raises a UserError if that fails; then nothing of the lab
    remains."""
    lab_system.require()
    check(spec)
    with _reserved(spec) as lab:
        try:
            return _make(lab)
        except lab_system.CommandError as error:
            raise UserError(f"the lab could not be made: {error}") from error


@contextmanager
def _reserved(spec: LabSpec) -> Iterator[Lab]:
    """Record a free name and block before anything is made; removed on any error."""
    with ExitStack() as held:
        with machine_lock():
            lab = replace(_plan(spec), maker=own_identity())
            lab.dir.mkdir(parents=True, mode=0o700)
            (lab.dir / "lock").touch()
            held.enter_context(lab_lock(lab.name))
            lab_record.save(lab)
        try:
            yield lab
        except BaseException:
            with _ignore_signals():
                remove(lab.name)
            raise


@contextmanager
def _ignore_signals() -> Iterator[None]:
    """Ignore a second signal during cleanup; handlers can only be set in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _plan(spec: LabSpec) -> Lab:
    """Return a lab with a name and networks that are free now. The caller holds the machine's lock."""
    labs = lab_record.load_all()
    links = lab_system.links()
    taken = {lab.block for lab in labs}
    taken |= {block for block in range(1, 255) if f"{lab_record.LINK_PREFIX}{block}" in links}
    name = free_name({*lab_record.directories(), *labs_of(lab_system.namespaces())}, spec.name)
    return plan_lab(spec, name, free_block(taken, lab_system.routes()))


def _make(lab: Lab) -> Lab:
    """Make all of a recorded lab, and return it as complete."""
    v6 = lab_system.has_ipv6()
    lab_system.ip_batch(lab_files.namespaces(lab))
    mark = lab_record.view_mark()
    lab_system.ip_batch(lab_files.uplink(lab, mark, v6=v6))
    lab_system.ip_batch(lab_files.switch(lab, mark), netns=lab.switch)
    _keygen(lab.key, f"ipexctl-lab-{lab.name}")
    lab.hostfile.write_text(lab_files.hostfile(lab))
    lab.ssh_config.write_text(lab_files.ssh_config(lab))
    lab.inventory.write_text(lab_files.inventory(lab))
    shared = make_shared_home(lab) if lab.shared_home else None
    cpu_profiles.write_profiles(lab)
    of_slurm = lab_slurm.prepare(lab) if lab.slurm else None
    banner = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False, timeout=10).stderr
    openssh = lab_files.openssh_version(banner)
    pool, starts = ThreadPoolExecutor(_PARALLEL_STARTS), _Starts()
    try:
        futures = [pool.submit(starts.call, _start, lab, host, shared, openssh, of_slurm, v6=v6) for host in lab.nodes]
        for future in as_completed(futures):
            future.result()
    finally:
        with _ignore_signals():
            starts.close()
            pool.shutdown(wait=False, cancel_futures=True)
    unmount_shared_home(lab)
    keys = {host.name: (host.dir / "etc/ssh/ssh_host_ed25519_key.pub").read_text() for host in lab.nodes}
    lab.known_hosts.write_text(lab_files.known_hosts(lab, keys))
    if lab.slurm:
        lab_slurm.start(lab)
        for host in lab.hosts[1:]:
            lab = inject(lab, host, find_fault("sshd-dead"))
    ready_lab = replace(lab, ready=True)
    lab_record.save(ready_lab)
    return ready_lab


class _Starts:
    """`close` waits for all starting hosts, because an interrupt in `submit` leaves a thread unknown to the pool."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._active = 0
        self._closed = False

    def call(self, start: Callable[..., None], *args: object, **options: object) -> None:
        """Start a host, unless `close` was called before."""
        with self._changed:
            if self._closed:
                return
            self._active += 1
        try:
            start(*args, is_closed=lambda: self._closed, **options)
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._active)


def _keygen(path: Path, comment: str) -> None:
    lab_system.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])


def _start(
    lab: Lab,
    host: LabHost,
    shared: Path | None,
    openssh: tuple[int, int],
    of_slurm: lab_slurm.HostParts | None,
    *,
    v6: bool,
    is_closed: Callable[[], bool],
) -> None:
    """Start a host and wait until its sshd answers. Raises a UserError with the last lines of its log if it does not
    start."""
    _write_host(lab, host, openssh, of_slurm.files if of_slurm else {}, v6=v6)
    make_image(host)
    environment = {
        "PATH": f"{lab_system.SBIN}:/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C",
        "STATE": str(host.dir),
        "NAME": host.name,
        "LOGIN": host.user,
        "HOME_DIR": host.home,
        "SHARED": str(shared or "") if not host.is_bastion else "",
        "COSTUME": str(cpu_profiles.profile_directory(lab, host.cpu_profile)) if host.cpu_profile else "",
        "SHELF": str(lab_record.LABS.parent),
        "INIT": str(_NODE_SCRIPT.with_name("init.sh")),
        **(of_slurm.environment if of_slurm else {}),
    }
    # setsid --fork: the host is no child of this process, so Ctrl-C does not reach it.
    argv = ["setsid", "--fork", "ip", "netns", "exec", host.netns, "unshare", "--fork", "--pid", "--uts", "--ipc"]
    argv += ["--mount", "/bin/sh", str(_NODE_SCRIPT)]
    log = host.dir / "start.log"
    with log.open("w") as errors:
        first_line = _first_line(argv, environment, errors, timeout=LAB_HOST_START)
    if first_line != b"ready\n":
        raise UserError(f"{host.name} did not start{_last_lines(log)}")
    if not host.behind_bastion:
        _await_banner(host.address, timeout=LAB_HOST_START, is_closed=is_closed)


def _first_line(argv: list[str], environment: dict[str, str], errors: IO[str], *, timeout: float) -> bytes:
    """Start a program that keeps running; return its first line, or what arrived before the timeout."""
    line = b""
    deadline = time.monotonic() + timeout
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd="/"
    ) as starter:
        assert starter.stdout is not None
        while not line.endswith(b"\n"):
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not select.select([starter.stdout], [], [], remaining)[0]:
                break
            chunk = os.read(starter.stdout.fileno(), 100)
            if not chunk:
                break
            line += chunk
    return line


def _write_host(lab: Lab, host: LabHost, openssh: tuple[int, int], more: Mapping[str, str], *, v6: bool) -> None:
    """Write the host's own /etc, its host key, and the commands for its network."""
    etc_directory = host.dir / "etc"
    for directory in (etc_directory / "ssh", host.dir / "disk", host.dir / "root"):
        directory.mkdir(parents=True)
    accounts = lab_files.passwd(Path("/etc/passwd").read_text(), host)
    texts = {
        "passwd": accounts,
        "shadow": lab_files.shadow(accounts),
        "group": lab_files.group(Path("/etc/group").read_text(), host),
        "gshadow": "",
        "hostname": f"{host.name}\n",
        "hosts": lab_files.hosts(lab, host, others=lab.names),
        "resolv.conf": lab_files.RESOLV_CONF,
        "nsswitch.conf": lab_files.NSSWITCH,
        "ssh/sshd_config": lab_files.sshd_config(openssh),
        **more,
    }
    for name, text in texts.items():
        (etc_directory / name).parent.mkdir(exist_ok=True)
        (etc_directory / name).write_text(text)
    _keygen(etc_directory / "ssh/ssh_host_ed25519_key", host.name)
    (host.dir / "net").write_text(lab_files.host_network(host, v6=v6))


def _last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()[-3:]
    return f": {' / '.join(lines)}" if lines else ""


def _await_banner(address: str, *, timeout: float, is_closed: Callable[[], bool]) -> None:
    """Wait until sshd answers. Raises a UserError after the timeout; returns early once the lab is given up."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if is_closed():
            return
        try:
            with socket.create_connection((address, 22), timeout=2) as connection:
                if connection.recv(8).startswith(b"SSH-"):
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise UserError(f"the sshd of {address} did not answer for {timeout:.0f} s")
