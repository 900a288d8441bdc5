"""Parse what the probe prints about a host's system, memory, disks, limits and policies. Nothing here touches a host.
None means unknown. Values are what this account gets: the cgroup's memory limit if it is lower, and the limits of a
command over ssh.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from ipexctl.facts.live_runs import RUN_ID, RunsOnHost, parse_live_runs
from ipexctl.facts.probe import Answers, decimal, kilobytes, limit, natural
from ipexctl.hosts.allocation import job_name
from ipexctl.node.common.json_records import JsonError, parse_json
from ipexctl.text import is_variable_name

NETWORK_FILESYSTEMS: Final = frozenset(
    "nfs nfs4 cifs smb3 smbfs lustre gpfs ceph beegfs fhgfs afs 9p virtiofs glusterfs orangefs pvfs2 panfs wekafs "  # noqa: SIM905
    "gfs2 ocfs2 fuse.glusterfs fuse.sshfs fuse.ceph fuse.ceph-fuse fuse.juicefs fuse.s3fs fuse.rclone fuse.moosefs "
    "fuse.mfs fuse.lizardfs fuse.beegfs fuse.quobyte fuse.vmhgfs-fuse fuse.gcsfuse fuse.daos daos efs dvs vboxsf "
    "fuse.cvmfs2 prl_fs acfs".split()
)
_NAMED_BY_GUEST: Final = frozenset({"9p", "virtiofs", "vboxsf"})


class System(NamedTuple):
    kernel_name: str | None = None
    kernel: str | None = None
    arch: str | None = None
    distro: str | None = None
    distro_id: str | None = None
    distro_version: str | None = None
    libc: Literal["glibc", "musl"] | None = None
    libc_version: str | None = None
    boot: str | None = None
    """Changes with a reboot; the same in all containers of a machine."""

    @property
    def is_linux(self) -> bool:
        """True if the kernel says that it is Linux."""
        return self.kernel_name == "Linux"


class Memory(NamedTuple):
    total: int | None = None
    available: int | None = None
    limit: int | None = None
    """The cgroup's limit; None if there is none or it is unknown."""
    limit_left: int | None = None
    """What the cgroup's limits leave, less what is used and cannot be reclaimed; None as for `limit`."""
    high: int | None = None
    """Above this size, the kernel slows the cgroup's processes down (memory.high); None without such a limit."""
    swap: int | None = None
    hugepages_total: int | None = None
    hugepages_free: int | None = None
    hugepage_size: int | None = None
    thp: str | None = None
    """Transparent huge pages: always, madvise or never."""
    shm_size: int | None = None
    shm_free: int | None = None

    @property
    def usable(self) -> int | None:
        """The memory that this account may use: the cgroup's limit if it is below the machine's total."""
        if self.total is None or self.limit is None:
            return self.total
        return min(self.total, self.limit)

    @property
    def free(self) -> int | None:
        """The memory that ranks can still allocate, in the machine and in the cgroup; None if unknown."""
        left = self.limit if self.limit_left is None else self.limit_left
        return min((size for size in (self.available, left) if size is not None), default=None)


class Limit(NamedTuple):
    """`math.inf` means unlimited, which is "unlimited" in JSON."""

    soft: float | None = None
    hard: float | None = None


class Limits(NamedTuple):
    memlock: Limit = Limit()
    nofile: Limit = Limit()
    nproc: Limit = Limit()
    pids_left: int | None = None
    """Processes and threads that the cgroup still allows (pids.max); None without such a limit."""


class Mount(NamedTuple):
    point: str
    type: str
    source: str
    root: str = "/"
    device: str | None = None
    """The kernel's number for the filesystem: `8:1`."""
    options: tuple[str, ...] = ()
    is_network: bool = False


class Disk(NamedTuple):
    path: str
    total: int | None = None
    free: int | None = None
    inodes: int | None = None
    """None if the filesystem doesn't count inodes."""
    inodes_free: int | None = None
    writable: bool | None = None
    noexec: bool | None = None
    mount: Mount | None = None


class HomeDirectory(NamedTuple):
    path: str
    """Absolute path, with symbolic links."""
    exists: bool = False
    real: str | None = None
    disk: Disk | None = None
    store: str | None = None
    """Hosts with the same token share this home; see `store_token`."""
    exposed: str = ""
    """Directory above the home that another account could change; then nothing in the home was read."""
    has_hub: bool = False
    """True if the home's hub cache has a repository."""


class Account(NamedTuple):
    user: str | None = None
    uid: int | None = None
    home: str | None = None
    shell: str | None = None


class Logind(NamedTuple):
    present: bool = False
    in_session: bool | None = None
    kill_user_processes: bool | None = None
    remove_ipc: bool | None = None
    linger: bool | None = None


class Security(NamedTuple):
    selinux: Literal["enforcing", "permissive"] | None = None
    firewall: tuple[str, ...] = ()
    """Firewalls visible without root: `ufw`, `firewalld`, `nftables`, `iptables`."""
    ptrace_scope: int | None = None


class Batch(NamedTuple):
    schedulers: tuple[str, ...] = ()
    """Keys of `SCHEDULERS`."""
    job: str | None = None


class RunSupervisor(NamedTuple):
    """Every host of a shared home reads the record, but only node0 (`machine`) can tell whether the process exists."""

    run: str
    host: str | None = None
    machine: str | None = None
    boot: str | None = None
    """node0's boot id; missing in records of older versions."""
    is_here: bool | None = None
    """Whether the process is on this host, by pid and start time; None if unknown."""


class RunProcess(NamedTuple):
    pid: int
    start: int | None
    """Kernel ticks; together with the pid, this identifies the process."""
    run: str


class Activity(NamedTuple):
    load: tuple[float, float, float] | None = None
    runs: tuple[str, ...] = ()
    supervisors: tuple[RunSupervisor, ...] = ()
    ended: tuple[str, ...] = ()
    """Newest ended runs in this home, according to their records."""
    pids: tuple[int, ...] = ()
    """Processes of this account with a path in the `--home` directory in their arguments."""
    processes: tuple[RunProcess, ...] = ()
    """Processes of this account that belong to a run, running or ended."""
    live: RunsOnHost = RunsOnHost()
    """Runs of all accounts with a supervisor or rank wrapper on this host now."""


class Environment(NamedTuple):
    variables: Mapping[str, str] = {}
    tools: Mapping[str, str] = {}
    modules: str | None = None


def parse_system(answers: Answers) -> System:
    """Return kernel, distribution and C library."""
    name, _, release, arch, *_ = [*answers.words("uname"), None, None, None, None]
    release_file = {
        key: value.strip("\"'") for key, _, value in (line.partition("=") for line in answers.all("os_release"))
    }
    libc, libc_version = _libc(answers.first("libc") or "")
    return System(
        kernel_name=name,
        kernel=release,
        arch=arch,
        distro=release_file.get("PRETTY_NAME"),
        distro_id=release_file.get("ID"),
        distro_version=release_file.get("VERSION_ID"),
        libc=libc,
        libc_version=libc_version,
        boot=answers.first("boot_id"),
    )


def _libc(text: str) -> tuple[Literal["glibc", "musl"] | None, str | None]:
    """Return the kind and the version of the C library from text such as `ldd (GNU libc) 2.28`; (None, None) if it is
    neither glibc nor musl."""
    version = re.search(r"\d+\.\d+(\.\d+)?", text.rpartition(")")[2] or text)
    if "musl" in text:
        after = re.search(r"Version (\d+\.\d+(?:\.\d+)?)", text)
        return "musl", after[1] if after else None
    if version and re.search(r"glibc|GLIBC|GNU libc|GNU C Library", text):
        # Debian's ldd: `ldd (Debian GLIBC 2.36-9) 2.36`.
        return "glibc", version[0]
    return None, None


def parse_memory(answers: Answers, mounts: Sequence[Mount]) -> Memory:
    """Return the memory, with the lowest limit of the account's control groups."""
    limit = _lowest(answers, "cgroup.memory.max", "cgroup.memory.limit_in_bytes")
    meminfo = answers.named("meminfo")
    thp = re.search(r"\[(\w+)\]", answers.first("thp") or "")
    shm = parse_disk(answers, "/dev/shm", mounts)  # noqa: S108  # a name, no temporary file
    return Memory(
        total=kilobytes(meminfo.get("MemTotal")),
        available=kilobytes(meminfo.get("MemAvailable")),
        limit=limit,
        limit_left=_lowest(answers, "cgroup.memory.left") if limit is not None else None,
        high=_lowest(answers, "cgroup.memory.high"),
        swap=kilobytes(meminfo.get("SwapTotal")),
        hugepages_total=natural(meminfo.get("HugePages_Total")),
        hugepages_free=natural(meminfo.get("HugePages_Free")),
        hugepage_size=kilobytes(meminfo.get("Hugepagesize")),
        thp=thp[1] if thp else None,
        shm_size=shm.total if shm else None,
        shm_free=shm.free if shm else None,
    )


def _lowest(answers: Answers, *keys: str) -> int | None:
    """Return the lowest number of all levels of the cgroup; `max` is no number."""
    numbers = (natural(text) for key in keys for text in answers.all(key))
    return min((number for number in numbers if number is not None and number < _NO_LIMIT), default=None)


_NO_LIMIT: Final = 1 << 62
"""cgroup v1 reports the largest possible page count if there is no limit."""


def parse_limits(answers: Answers) -> Limits:
    """Return the limits of the account's processes."""
    limits: dict[str, Limit] = {}
    for line in answers.all("limit"):
        match = re.match(r"(Max [a-z ]+?) {2,}(\S+) +(\S+)", line)
        if match:
            limits.setdefault(match[1], Limit(limit(match[2]), limit(match[3])))
    names = ("Max locked memory", "Max open files", "Max processes")
    memlock, nofile, nproc = (limits.get(name, Limit()) for name in names)
    return Limits(memlock, nofile, nproc, _lowest(answers, "cgroup.pids.left"))


def parse_disk(answers: Answers, path: str, mounts: Sequence[Mount]) -> Disk | None:
    """Return the disk space at a path; None if nothing is known of it."""
    mount = mount_of(path, mounts)
    writable = path in answers.all("writable")
    total = free = inodes = inodes_free = None
    for line in answers.all("room"):
        *sizes, measured = [*line.split(" ", 5), ""][:6]
        match [natural(word) for word in sizes]:
            case [int(block), int(blocks), int(available), int(nodes), int(left)] if measured == path:
                total, free = block * blocks, block * available
                inodes, inodes_free = (nodes, left) if nodes else (None, None)
    if total is None and mount is None and not writable:
        return None
    return Disk(
        path=path,
        total=total,
        free=free,
        inodes=inodes,
        inodes_free=inodes_free,
        writable=writable,
        noexec="noexec" in mount.options if mount else None,
        mount=mount,
    )


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the nearest mount point above the path; if it was mounted several times, the last mount."""
    best: Mount | None = None
    for mount in mounts:
        if _is_below(path, mount.point) and len(mount.point) >= len(best.point if best else ""):
            best = mount
    return best


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(f"{point.rstrip('/')}/")


def parse_mounts(answers: Answers) -> tuple[Mount, ...]:
    """Return the mounted file systems."""
    return tuple(mount for row in answers.all("mount") if (mount := parse_mount(row)))


def parse_mount(row: str) -> Mount | None:
    """Parse `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`."""
    head, dash, tail = row.partition(" - ")
    left, right = head.split(), tail.split()
    if not dash or len(left) < 6 or len(right) < 2:
        return None
    return Mount(
        point=_unescape(left[4]),
        type=right[0],
        source=_unescape(right[1]),
        root=_unescape(left[3]),
        device=left[2],
        options=tuple(dict.fromkeys([*left[5].split(","), *(right[2].split(",") if len(right) > 2 else ())])),
        is_network=is_network(right[0]),
    )


def _unescape(text: str) -> str:
    """Undo mountinfo's escapes, which write spaces and backslashes in octal."""
    if "\\" not in text:
        return text
    return re.sub(r"\\([0-3][0-7]{2})", lambda match: chr(int(match[1], 8)), text)


def parse_home(answers: Answers, mounts: Sequence[Mount]) -> HomeDirectory | None:
    """Return ipexctl's home on the host; None if the probe did not get so far."""
    path = answers.first("home.path")
    if path is None:
        return None
    real, base = answers.first("home.real"), answers.first("home.base")
    return HomeDirectory(
        path=path,
        exists="home.exists" in answers,
        real=real,
        disk=parse_disk(answers, base, mounts) if base else None,
        store=_store(answers, real, mounts) if real else None,
        exposed=answers.first("home.exposed") or "",
        has_hub="home.hub" in answers,
    )


def _store(answers: Answers, real: str, mounts: Sequence[Mount]) -> str | None:
    """Return the token of the home's store; it describes the home's parent, or the home itself if that is a link or a
    mount point."""
    anchor = real
    mount = mount_of(real, mounts)
    if "home.link" not in answers and not (mount and mount.point == real):
        anchor = real.rpartition("/")[0] or "/"
    inode = natural((answers.first("home.inode") or "").partition(" ")[0])
    return store_token(anchor, mount, answers.first("boot_id"), inode)


def is_network(kind: str) -> bool:
    """True for a file system that several machines may share."""
    return kind in NETWORK_FILESYSTEMS or kind.startswith("nfs")


def store_token(path: str, mount: Mount | None, boot: str | None, inode: int | None = None) -> str | None:
    """Return a token that is equal for hosts that share one home; None if it can't be known. It describes the home's
    parent, which exists before the first install, or the home itself if that is a symlink or mount:

    - Network filesystem: the server's short name and the directory, `nfs1:/export/home`, because domain and address
      differ between clients; plus the inode if the guest chooses the name (9p, virtiofs).
    - Disk: boot id, filesystem number and directory. Cloned machines differ only in the boot id. Containers on one
      machine have the same boot id, and do share a directory that is mounted into them.
    """
    if mount is None:
        return None
    below = path[len(mount.point.rstrip("/")) :].rstrip("/")
    within = f"{mount.root.rstrip('/')}{below}"
    if not mount.is_network:
        return f"{boot}:{mount.device}:{within or '/'}" if boot else None
    # Hosts may mount the same server as nfs or nfs4.
    kind = "nfs" if mount.type.startswith("nfs") else mount.type
    token = f"{kind}:{_export(mount)}{within}"
    if mount.type not in _NAMED_BY_GUEST:
        return token
    return f"{token}#{inode}" if inode is not None else None


def _export(mount: Mount) -> str:
    """Return `nfs1:/export` for `nfs1.cluster:/export/`."""
    server, colon, path = mount.source.rpartition(":/")
    if not colon:
        return mount.source.rstrip("/")
    path = f"/{path}".rstrip("/")
    if mount.type in ("lustre", "ceph"):
        # The source is a list of servers in any order.
        return path
    numeric = "[" in server or server.replace(".", "").isdigit()
    return f"{server if numeric else server.split('.')[0].lower()}:{path}"


def parse_tmp(answers: Answers, mounts: Sequence[Mount]) -> Disk | None:
    """Return the disk space for temporary files; None if it is unknown."""
    path = answers.first("tmp")
    return parse_disk(answers, path, mounts) if path else None


def parse_account(answers: Answers) -> Account:
    """Return the account of the login."""
    return Account(
        user=answers.first("user"),
        uid=natural(next(iter(answers.named("status").get("Uid", "").split()), None)),
        home=answers.first("login_home"),
        shell=answers.first("shell"),
    )


def parse_logind(answers: Answers) -> Logind:
    """Return what logind does to the processes of an account that logs out."""
    if "present" not in answers.all("logind"):
        return Logind()
    values: dict[str, bool] = {}
    # A setting overrides a commented default; among several, the last one counts.
    for comment_mark in ("#", ""):
        for line in answers.all("logind.conf"):
            match = re.match(r"\s*(#?)\s*(\w+)\s*=\s*(\w+)", line)
            if match and match[1] == comment_mark:
                values[match[2]] = match[3].lower() in ("yes", "true", "1", "on", "y", "t")
    session = answers.first("session")
    return Logind(
        present=True,
        in_session=None if session is None else session != "none",
        kill_user_processes=values.get("KillUserProcesses"),
        remove_ipc=values.get("RemoveIPC"),
        linger="linger" in answers.all("logind"),
    )


def parse_security(answers: Answers) -> Security:
    """Return which of the system's policies restrict programs and connections."""
    modes: dict[str | None, Literal["enforcing", "permissive"]] = {"1": "enforcing", "0": "permissive"}
    return Security(
        selinux=modes.get(answers.first("selinux")),
        firewall=tuple(dict.fromkeys([*(["ufw"] if "firewall.ufw" in answers else []), *answers.all("firewall")])),
        ptrace_scope=natural(answers.first("ptrace_scope")),
    )


def parse_environment(answers: Answers) -> Environment:
    """Return variables of the login, and which tools it finds."""
    pairs = (line.partition("=") for line in answers.all("variable"))
    tools = (line.partition(" ") for line in answers.all("tool"))
    return Environment(
        variables={name: value for name, equals, value in pairs if equals and is_variable_name(name)},
        tools={name: path for name, _, path in tools if path.startswith("/")},
        modules=answers.first("modules"),
    )


_SUBMITS: Final = {"qsub": "pbs", "bsub": "lsf"}


def parse_batch(answers: Answers, environment: Environment) -> Batch:
    """Return the batch schedulers of the host, and the job in which this login runs."""
    schedulers = [*answers.all("scheduler"), *(_SUBMITS[name] for name in environment.tools if name in _SUBMITS)]
    variables = environment.variables
    return Batch(tuple(dict.fromkeys(schedulers)), job_name(variables) or variables.get("PBS_JOBID"))


def parse_activity(answers: Answers) -> Activity:
    """Return the load, and which programs of ipexctl live on the host."""
    numbers = [decimal(word) for word in answers.words("load")[:3]]
    supervisors = (_supervisor(line) for line in answers.all("run.supervisor"))
    processes: dict[int, RunProcess] = {}
    for line in answers.all("process"):
        if (process := _process(line)) is not None:
            processes.setdefault(process.pid, process)
    match numbers:
        case [float(one), float(five), float(fifteen)]:
            load: tuple[float, float, float] | None = (one, five, fifteen)
        case _:
            load = None
    runs = _run_ids(answers.all("run"))
    return Activity(
        load=load,
        runs=runs,
        supervisors=tuple(supervisor for supervisor in supervisors if supervisor is not None),
        # The record of a running run may list ranks that exited.
        ended=tuple(run for run in _run_ids(answers.all("run.ended")) if run not in runs),
        pids=tuple(pid for text in answers.all("pid") if (pid := natural(text)) is not None),
        processes=tuple(processes.values()),
        live=parse_live_runs(answers),
    )


def _run_ids(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if RUN_ID.fullmatch(line))


def _supervisor(line: str) -> RunSupervisor | None:
    """Parse `RUN START {…}`: the record's supervisor, and the start time of the process with its pid on this host."""
    run, _, rest = line.partition(" ")
    start, _, text = rest.partition(" ")
    try:
        record = parse_json(text)
    except JsonError:
        return None
    if not RUN_ID.fullmatch(run) or not isinstance(record, dict):
        return None
    names = {name: value for name in ("host", "machine", "boot") if isinstance(value := record.get(name), str)}
    is_here: bool | None = None
    if isinstance(record.get("pid"), int) and isinstance(record.get("start"), int):
        start_ticks = natural(start)
        is_here = False if start == "-" else None if start_ticks is None else start_ticks == record["start"]
    return RunSupervisor(run, names.get("host"), names.get("machine"), names.get("boot"), is_here)


def _process(line: str) -> RunProcess | None:
    """Parse `PID START RUN`."""
    match line.split():
        case [pid, start, run] if (number := natural(pid)) and start != "-" and RUN_ID.fullmatch(run):
            return RunProcess(number, natural(start), run)
    return None
