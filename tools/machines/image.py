"""Builds an image: a root by debootstrap, an initrd that sets up the network, and torch by `ipexctl install`.

Nothing is emulated here but arm64, which gets no torch: debootstrap and the install run in a chroot, the install
through an sshd of its own in the machines' network. The initrd has the few modules that a machine needs, its address
and its name, so the root needs no kernel package and no network service.
"""

from __future__ import annotations

import contextlib
import lzma
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .network import INSTALL_ADDRESS, NETWORK_NAMESPACE, NUMBERS, address_of, network
from .programs import run

ACCOUNT: Final = "ml"
_PACKAGES: Final = "openssh-server,python3,tar,numactl,iproute2,util-linux,procps,kmod,busybox-static"
_NATIVE_PACKAGES: Final = "systemd,systemd-sysv,dbus,libpam-systemd,python3-venv,iputils-ping,ca-certificates"
"""Not on arm64, whose packages are set up in emulation."""
_MODULES: Final = ("virtio_pci", "virtio_blk", "ext4", "virtio_net", "virtio_rng")
_SIZE: Final = "16G"
"""Of the filesystem, which is sparse. PyTorch with CUDA takes 8, and an index may have no other."""
_INIT: Final = """\
#!/bin/busybox sh
export PATH=/bin
for name in mkdir mount insmod ip hostname sleep cat switch_root; do busybox ln -s busybox /bin/$name; done
mkdir -p /proc /dev /root
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in {modules}; do insmod /$module.ko; done
for word in $(cat /proc/cmdline); do
  case $word in machine.*) eval "${{word#machine.}}" ;; esac
done
ip link set lo up
for i in 1 2 3 4 5 6 7 8 9; do [ -e /proc/sys/net/ipv4/conf/eth0 ] && break; sleep 1; done
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
ip link set eth0 up
[ -z "$ipv4" ] || ip addr add "$ipv4/24" dev eth0
[ -z "$ipv4" ] || ip route add default via "${{ipv4%.*}}.1"
ip -6 addr add "$ipv6/64" dev eth0
until mount -t ext4 /dev/vda /root; do sleep 1; done
hostname "$name"
echo "$name" >/root/etc/hostname
echo "127.0.0.1 localhost $name" >/root/etc/hosts
cat /proc/sys/kernel/random/uuid | busybox tr -d - >/root/etc/machine-id
exec switch_root /root "$program"
"""
_SSHD_ALONE: Final = """\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts; mount -t tmpfs shm /dev/shm; mount -t tmpfs run /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/sshd; /usr/sbin/sshd -o UsePAM=no
while :; do sleep 3600 & wait $!; done
"""


def build(directory: Path, image: str, torch: str) -> None:
    """Make `directory` with an image. `torch`: the version to install for all machines; empty for none."""
    directory.mkdir(parents=True)
    root = directory / "root"
    suite, _, arch = image.partition("-")
    packages = _PACKAGES if arch else f"{_PACKAGES},{_NATIVE_PACKAGES}"
    options = ("--variant=minbase", f"--arch={arch or 'amd64'}", f"--include={packages}")
    try:
        with _running_arm(directory) if arch else contextlib.nullcontext():
            run("debootstrap", *options, suite, root, timeout=3600)
            _settle(root, directory)
            if not arch:
                _mask_units(root)
            _add_kernel(root, directory, arch or "amd64")
        if torch and not arch:
            _install(root, directory, torch)
        _pack(root, directory)
    except BaseException:
        _unmount_below(directory)
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(root)


def _unmount_below(directory: Path) -> None:
    """What a debootstrap that was killed leaves mounted must not be removed."""
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in reversed(places):
        if place.startswith(f"{directory}/"):
            run("umount", "-l", place)


@contextlib.contextmanager
def _running_arm(directory: Path) -> Iterator[None]:
    """The kernel starts programs of arm64 in QEMU, in any chroot, unless it did so before."""
    place = directory / "binfmt"
    place.mkdir()
    run("mount", "-t", "binfmt_misc", "binfmt_misc", place)
    entry = place / "qemu-aarch64"
    is_new = not entry.exists()
    try:
        if is_new:
            (place / "register").write_text(Path("/usr/lib/binfmt.d/qemu-aarch64.conf").read_text())
        yield
    finally:
        if is_new and entry.exists():
            entry.write_text("-1")
        run("umount", place)
        place.rmdir()


def _pack(root: Path, directory: Path) -> None:
    for name in ("var/cache/apt/archives", "var/lib/apt/lists"):
        shutil.rmtree(root / name, ignore_errors=True)
    run("truncate", "-s", _SIZE, directory / "root.part")
    run("mke2fs", "-q", "-F", "-t", "ext4", "-d", root, directory / "root.part", timeout=900)
    (directory / "root.part").rename(directory / "root.img")  # last: with it, the image is complete


def _settle(root: Path, directory: Path) -> None:
    run("chroot", root, "useradd", "-m", "-s", "/bin/bash", ACCOUNT)
    run("chroot", root, "usermod", "-p", "*", ACCOUNT)  # a locked account may not log in with a key either
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / "key")
    for home, owner in (("root", "root"), (f"home/{ACCOUNT}", ACCOUNT)):
        (root / home / ".ssh").mkdir(mode=0o700, exist_ok=True)
        shutil.copy(directory / "key.pub", root / home / ".ssh/authorized_keys")
        run("chroot", root, "chown", "-R", f"{owner}:{owner}", f"/{home}/.ssh")
    host_key = " ".join((root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])
    addresses = [INSTALL_ADDRESS, *(each for number in NUMBERS for each in address_of(number))]
    (directory / "known_hosts").write_text("".join(f"{address} {host_key}\n" for address in addresses))
    (root / "etc/ssh/sshd_config.d/machines.conf").write_text("UseDNS no\nPermitRootLogin prohibit-password\n")
    (root / "etc/fstab").write_text("/dev/vda / ext4 rw,noatime 0 1\n")
    program = root / "usr/local/sbin/sshd-alone"
    program.write_text(_SSHD_ALONE)
    program.chmod(0o755)


def _mask_units(root: Path) -> None:
    timers = "apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer"
    gettys = ("getty@tty1.service", "serial-getty@ttyS0.service")  # a boot waits 90 s for the second one's device
    run("chroot", root, "systemctl", "mask", *timers.split(), *gettys, "systemd-timesyncd.service")


def _add_kernel(root: Path, directory: Path, arch: str) -> None:
    """Take kernel and modules from Debian's package, which is not installed: it would bring an initrd of its own."""
    work = root / "tmp/kernel"
    work.mkdir()
    shown = run("chroot", root, "apt-cache", "depends", f"linux-image-cloud-{arch}")
    package = next(line.split()[-1] for line in shown.splitlines() if "Depends: linux-image-" in line)
    run("chroot", root, "sh", "-c", f"cd /tmp/kernel && apt-get -qq download {package} && dpkg -x *.deb .", timeout=600)
    release = package.removeprefix("linux-image-")
    shutil.copy(work / f"boot/vmlinuz-{release}", directory / "kernel")
    if not (work / "lib").exists():
        (work / "lib").symlink_to("usr/lib")
    run("chroot", root, "depmod", "-b", "/tmp/kernel", release)
    tree = work / "initrd"
    (tree / "bin").mkdir(parents=True)
    shutil.copy(root / "bin/busybox", tree / "bin/busybox")
    names: dict[str, None] = {}
    for module in _MODULES:
        needed = run("chroot", root, "modprobe", "-d", "/tmp/kernel", "-S", release, "--show-depends", module)
        for path in (root / line.split()[1].lstrip("/") for line in needed.splitlines() if line.startswith("insmod")):
            name = path.name.partition(".ko")[0]
            packed = path.read_bytes()
            (tree / f"{name}.ko").write_bytes(lzma.decompress(packed) if path.suffix == ".xz" else packed)
            names[name] = None
    (tree / "init").write_text(_INIT.format(modules=" ".join(names)))
    (tree / "init").chmod(0o755)
    run(
        "chroot", root, "sh", "-c", "cd /tmp/kernel/initrd && find . | busybox cpio -o -H newc >/tmp/kernel/initrd.cpio"
    )
    shutil.move(work / "initrd.cpio", directory / "initrd")
    shutil.rmtree(work)


def _install(root: Path, directory: Path, torch: str) -> None:
    """Install an environment natively: emulated, it would take half an hour."""
    with network(), _sshd_in(root):
        words = ("--user", ACCOUNT, "--identity", directory / "key", "--known-hosts", directory / "known_hosts")
        where = ("--hosts", INSTALL_ADDRESS, *words)
        what = ("--stack", "torch", "--torch", torch)
        run(sys.executable, "-m", "ipexctl", "install", *where, *what, timeout=1800, cwd=directory)


@contextlib.contextmanager
def _sshd_in(root: Path) -> Iterator[None]:
    """An sshd that sees `root` alone, at INSTALL_ADDRESS. Its mounts are gone with it."""
    mounts = (
        "mount -t proc proc {0}/proc; mount -t sysfs sys {0}/sys; mount --rbind /dev {0}/dev; mkdir -p {0}/run/sshd; "
    )
    script = (
        mounts.format(root) + f"mount -t tmpfs shm {root}/dev/shm; exec chroot {root} /usr/sbin/sshd -D -e -o UsePAM=no"
    )
    run("ip", "-n", NETWORK_NAMESPACE, "addr", "replace", f"{INSTALL_ADDRESS}/24", "dev", "br0")
    argv = ["ip", "netns", "exec", NETWORK_NAMESPACE, "unshare", "--mount", "sh", "-c", script]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)
        run("ip", "-n", NETWORK_NAMESPACE, "addr", "del", f"{INSTALL_ADDRESS}/24", "dev", "br0")
