"""Keep a lab's record lab.json, its hosts, files, locks and condition, and choose which labs `down` removes.

lab.json is written before anything is made and removed last. Without a name, `down` removes remains only if their maker
is known to be gone (by pid and start time), and a complete lab only if there is no other.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Final, Literal, TypeVar

from ipexctl.errors import UserError
from ipexctl.hosts.host import did_you_mean
from ipexctl.limits import LAB_LOCK
from ipexctl.node.common.files import write_atomically
from ipexctl.node.common.fix import Fix, join_fixes
from ipexctl.node.common.json_records import as_object, check_type, decode, parse_json
from ipexctl.node.common.processes import ProcessIdentity

Named = TypeVar("Named")
Condition = Literal["up", "busy", "cut-short", "abandoned", "unreadable"]
"""busy: `up` or `down` is working on it; cut-short: that process exited early; abandoned: temporary, and its maker has
exited; unreadable: this version can't read the record.
"""


@dataclass(frozen=True, slots=True)
class FoundLab:
    """A lab as it is found on this machine, in any condition."""

    name: str
    lab: Lab | None
    """Its record; None if there is none that can be read."""
    maker_is_gone: bool = False
    """True if it is known: the record names a process of this machine, which has exited."""

    @property
    def condition(self) -> Condition:
        """Return what the record says of the lab. An incomplete lab whose record names no maker counts as cut short,
        not as busy."""
        if self.lab is None:
            return "unreadable"
        if not self.lab.ready:
            return "cut-short" if self.maker_is_gone or self.lab.maker is None else "busy"
        return "abandoned" if self.lab.temporary and self.maker_is_gone else "up"

    @property
    def is_remains(self) -> bool:
        """True if nobody needs what is left: the maker of the lab has exited, and the lab is incomplete or was
        temporary."""
        return self.maker_is_gone and self.condition in ("cut-short", "abandoned")

    @property
    def holder(self) -> int | None:
        """Return the pid that is making or removing the lab, or that will remove it; None if there is none, or if it
        has exited."""
        if self.lab is None or self.lab.maker is None or self.maker_is_gone:
            return None
        return self.lab.maker.pid if self.lab.temporary or not self.lab.ready else None


def labs_to_remove(found: Sequence[FoundLab], name: str | None, *, remove_all: bool) -> tuple[str, ...]:
    """Return the names of the labs that `down` removes. Raises a UserError if the name is unknown, or if, without a
    name, several labs could be meant or a process still works on the only one."""
    names = sorted(lab.name for lab in found)
    if name is not None:
        if remove_all:
            raise UserError("a lab's name and --all can't be combined", fix=Fix(f"`ipexctl lab down {name}`"))
        if name not in names:
            listed = ", ".join(names) or "none"
            raise UserError(
                f"there is no lab {name!r} on this machine (its labs: {listed})", fix=Fix("`ipexctl lab list`")
            )
        return (name,)
    others = sorted((lab for lab in found if not lab.is_remains), key=lambda lab: lab.name)
    if remove_all or not others:
        return tuple(names)
    commands = join_fixes(Fix(f"`ipexctl lab down {lab.name}`") for lab in others)
    if len(others) > 1:
        listed = ", ".join(lab.name for lab in others)
        raise UserError(f"there are {len(others)} labs on this machine: {listed}", fix="choose one: " + commands)
    if others[0].holder is not None:
        raise UserError(
            f"the lab {others[0].name} belongs to process {others[0].holder}, which still runs",
            fix="wait until it exits, or name the lab: " + commands,
        )
    return tuple(names)


LABS: Final = Path("/var/lib/ipexctl/labs")
SWITCH: Final = "switch"
"""Network namespace with a lab's bridges; no host may have this name."""
NETNS_PREFIX: Final = "ipx-"
LINK_PREFIX: Final = "ipx"
RECORD: Final = "lab.json"
_FORMAT: Final = 1


def view_mark() -> str:
    """Return a text that identifies the directory of records; empty if there is none.

    A container, or another mount namespace, sees the links of this machine's other labs without their records: only
    links with this mark, and the namespaces behind them, may be remains of ours.
    """
    try:
        status = LABS.stat()
    except OSError:
        return ""
    return f"ipexctl-lab-{status.st_dev:x}.{status.st_ino:x}"


def netns_name(lab: str, node: str) -> str:
    """Return the name of a node's network namespace, by which `ip netns pids` finds a host's processes even without
    lab.json."""
    return f"{NETNS_PREFIX}{lab}-{node}"


@dataclass(frozen=True, slots=True)
class LabHost:
    """A host of a lab."""

    lab: str
    """Name of the lab."""
    name: str
    address: str
    """Address as seen from the control machine; through the bastion if there is one."""
    internal: str | None
    """Address in the second network; None if the lab has none."""
    user: str
    home: str
    cpu_profile: str | None = None
    """Name of the profile that it imitates; None for the machine's own CPU."""
    is_bastion: bool = False
    behind_bastion: bool = False
    faults: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """Name of an active fault → its arguments."""

    @property
    def netns(self) -> str:
        """Return the name of the host's network namespace."""
        return netns_name(self.lab, self.name)

    @property
    def dir(self) -> Path:
        """Return the directory of the host's files on this machine."""
        return LABS / self.lab / self.name

    @property
    def peer_address(self) -> str:
        """Return the address that the lab's other hosts use."""
        return self.internal or self.address


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab, as lab.json records it."""

    name: str
    block: int
    """Third number of its IPv4 addresses; the next number belongs to it, too."""
    hosts: tuple[LabHost, ...]
    """Hosts in hostfile order, without the bastion."""
    bastion: LabHost | None = None
    shared_home: bool = False
    names: bool = True
    """True if the hosts can resolve each other's names."""
    slurm: bool = False
    """The first host is Slurm's controller and login host, the others are compute nodes."""
    ready: bool = False
    """False until the lab is complete, and again once it is removed."""
    maker: ProcessIdentity | None = None
    """Process that makes or removes the lab, or did. None in older records."""
    temporary: bool = False
    """The lab counts as remains once its maker has exited."""

    @property
    def dir(self) -> Path:
        """Return the directory of the lab's files."""
        return LABS / self.name

    @property
    def hostfile(self) -> Path:
        """Return the path of the hostfile for ipexctl."""
        return self.dir / "hostfile"

    @property
    def key(self) -> Path:
        """Return the path of the private key that logs in to all hosts."""
        return self.dir / "key"

    @property
    def known_hosts(self) -> Path:
        """Return the path of the file with the hosts' public keys."""
        return self.dir / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """Return the path of the configuration for `ssh -F`."""
        return self.dir / "ssh_config"

    @property
    def inventory(self) -> Path:
        """Return the path of the inventory for Ansible."""
        return self.dir / "inventory.ini"

    @property
    def nodes(self) -> tuple[LabHost, ...]:
        """Return all hosts, the bastion first if there is one."""
        return (self.bastion, *self.hosts) if self.bastion else self.hosts

    @property
    def uplink(self) -> str:
        """Return the name of the network link between this machine and the lab."""
        return f"{LINK_PREFIX}{self.block}"

    @property
    def switch(self) -> str:
        """Return the name of the namespace with the lab's bridges."""
        return netns_name(self.name, SWITCH)

    def host(self, name: str) -> LabHost | None:
        """Return the host of this name, also the bastion; None if there is none."""
        return next((host for host in self.nodes if host.name == name), None)

    def with_host(self, changed: LabHost) -> Lab:
        """Return the lab with this host in place of the one with its name."""
        if self.bastion and self.bastion.name == changed.name:
            return replace(self, bastion=changed)
        return replace(self, hosts=tuple(changed if h.name == changed.name else h for h in self.hosts))


def to_json(lab: Lab) -> str:
    """Return the text of lab.json."""
    return json.dumps({"format": _FORMAT, **asdict(lab, dict_factory=_on_disk)}, indent=1) + "\n"


def _on_disk(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = {"costume" if name == "cpu_profile" else name: value for name, value in pairs}
    maker = fields.get("maker")
    return {**fields, "maker": maker._asdict()} if isinstance(maker, ProcessIdentity) else fields


def _decode_host(value: object, field: str) -> LabHost:
    data = check_type(dict, value, field)
    return decode(LabHost, {**data, "cpu_profile": data.get("costume")}, field)


FIELD_DECODERS: Final = {"LabHost": _decode_host}


def from_json(text: str) -> Lab:
    """Read the text of a lab.json. Raises a ValueError if it is not one of this version."""
    data = as_object(parse_json(text))
    if data.get("format") != _FORMAT:
        raise ValueError("not a lab.json of this version")
    return decode(Lab, data, RECORD)


def save(lab: Lab) -> None:
    """Write the lab's record. Its directory must exist."""
    write_atomically(lab.dir / RECORD, to_json(lab).encode(), durable=False)


def load(name: str) -> Lab | None:
    """Return the lab of this name as recorded; None if there is no record, or if this version or account can't read
    it."""
    try:
        return from_json((LABS / name / RECORD).read_text())
    except (OSError, ValueError):
        return None


def require_readable() -> None:
    """Refuse if there are labs that this account may not read, because root owns them."""
    if LABS.exists() and not (_is_readable(LABS) and all(_is_readable(LABS / name) for name in directories())):
        raise UserError("the labs on this machine belong to root", fix="run it as root, or with sudo")


def _is_readable(directory: Path) -> bool:
    return not directory.exists() or os.access(directory, os.R_OK | os.X_OK)


def load_all() -> tuple[Lab, ...]:
    """Return all labs with a record that can be read. Raises a UserError if this account may not read them."""
    require_readable()
    labs = (load(name) for name in directories())
    return tuple(lab for lab in labs if lab)


def find(name: str) -> FoundLab:
    """Find a lab in any condition, even without a record."""
    lab = load(name)
    return FoundLab(name, lab, maker_is_gone=lab is not None and lab.maker is not None and lab.maker.is_gone)


def directories() -> tuple[str, ...]:
    """Return the names of all directories of labs, also of damaged ones; empty if there are none."""
    try:
        return tuple(sorted(path.name for path in LABS.iterdir() if path.is_dir()))
    except FileNotFoundError:
        return ()


_MACHINE_LOCK: Final = Path("/run/ipexctl-lab.lock")


@contextmanager
def machine_lock() -> Iterator[None]:
    """Hold the machine's lock, under which a lab's name and block are chosen and recorded."""
    with _MACHINE_LOCK.open("w") as file:
        _acquire(file, "another lab is still being planned")
        yield


@contextmanager
def lab_lock(name: str) -> Iterator[None]:
    """Hold the lock of a lab, under which the lab is made, changed or removed. A lab without a directory needs no
    lock."""
    path = LABS / name / "lock"
    try:
        file = path.open("w")
    except FileNotFoundError:
        yield
        return
    with file:
        _acquire(file, f"another process is working on the lab {name!r}")
        yield


def _acquire(file: IO[str], message: str) -> None:
    """Lock an open file. Raises a UserError with this message if another process keeps it locked for too long."""
    deadline = time.monotonic() + LAB_LOCK
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise UserError(message, fix="try again later") from None
            time.sleep(0.05)


def find_named(kind: str, name: str, known: Mapping[str, Named]) -> Named:
    """Return the entry of this name. Raises a UserError that lists the names if there is none. `kind`: what the entries
    are called in it."""
    if name not in known:
        hint = did_you_mean(name, known)
        raise UserError(f"there is no {kind} {name!r}{f'; {hint}' if hint else ''}", fix=f"one of: {', '.join(known)}")
    return known[name]
