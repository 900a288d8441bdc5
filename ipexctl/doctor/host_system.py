"""Judge a host's system, disks, login and batch settings, and what runs there. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from typing import Final

from ipexctl.doctor.finding import GB, MB, UNKNOWN, Finding, HostContext, HostRule, few, size
from ipexctl.facts.facts import Facts, slowness
from ipexctl.facts.system_facts import RunProcess
from ipexctl.hosts.allocation import SCHEDULERS
from ipexctl.launch.other_runs import time_of
from ipexctl.limits import SLOW_SHELL
from ipexctl.node.common.fix import Fix
from ipexctl.text import short_list

_ENV: Final = 10 * GB
_FULL_TMP: Final = 50 * MB
_MOST_PIDS: Final = 16
"""Processes named in a command: the oldest ones, because the others are mostly their children."""
_MOST_RUNS: Final = 3
_NO_HOME: Final = "use another directory with --home DIR, an absolute path that all hosts have"
_ROOM: Final = Fix(
    "`ipexctl ps --prune` removes old runs; while no run is alive and nobody installs, `ipexctl envs "
    f"--prune` removes wheels and environments without a name; or {_NO_HOME}"
)


def complete_probe(host: HostContext) -> Iterator[Finding]:
    """Warn if the host did not answer everything, and say which command there shows what is slow. The lack of awk,
    without which little is known, has its own finding."""
    causes = {
        "home": "a file server that doesn't answer",
        "names": "a name server that doesn't answer",
        "programs": "a program or a PATH that hangs",
    }
    cut = host.facts.cut
    if "kernel" in cut and host.facts.has_finished("programs") and "awk" not in host.facts.environment.tools:
        cut = tuple(part for part in cut if part != "kernel")
        yield Finding(
            "tools.no_awk",
            "warn",
            "No awk: CPU, memory and limits of this host are unknown, and a run uses one core there",
            Fix("as root: `apt-get install -y mawk`; on RHEL or Fedora: `dnf install -y gawk`"),
        )
    if host.facts.complete and not cut:
        return
    lost = few(cut, 3) or "the rest"
    likely = next((causes[part] for part in cut if part in causes), "a slow machine or a lost connection")
    times = {
        "home": "time df ~ /tmp",
        "names": "time getent hosts $(hostname)",
        "programs": "time command -v python3 mpirun; time python3 --version",
    }
    slow = [times[part] for part in cut if part in times] or ["time true", "uptime"]
    yield Finding(
        "probe.incomplete",
        "warn",
        f"The host did not answer everything (missing: {lost}): {likely} would make training hang as well",
        f"run on the host to see whether it is slow: {'; '.join(slow)}",
    )


def login(host: HostContext) -> Iterator[Finding]:
    """Warn of a slow login shell, and say if sshd allows only one session per connection."""
    if host.shell_seconds >= SLOW_SHELL * slowness([host.facts]):
        yield Finding(
            "ssh.slow_shell",
            "warn",
            f"The login shell took {host.shell_seconds:.0f} s to start a command: every step of ipexctl and every "
            "start of ranks on this host waits as long",
            Fix(
                "on the host, measure: time bash -ic exit; unless programs need what ~/.bashrc sets, let commands "
                "over ssh skip it: `sed -i '1i [[ $- == *i* ]] || return' ~/.bashrc`"
            ),
        )
    if host.has_one_session:
        yield Finding(
            "ssh.one_session",
            "info",
            "sshd opens one session per connection (MaxSessions 1): each further command needs a connection of its "
            "own, which takes longer",
            Fix(
                "as root: `sed -i 's/^\\s*MaxSessions\\s.*/MaxSessions 10/I' /etc/ssh/sshd_config "
                "/etc/ssh/sshd_config.d/*.conf; sshd -t && systemctl reload sshd`"
            ),
        )


def linux(host: HostContext) -> Iterator[Finding]:
    """Report a failure on a system other than Linux; warn of Linux inside Windows."""
    system = host.facts.system
    if system.kernel_name is not None and not system.is_linux:
        name = system.distro or {"Darwin": "macOS"}.get(system.kernel_name, system.kernel_name)
        yield Finding(
            "system.not_linux",
            "fail",
            f"This host runs {name[:40]}: IPEX, oneCCL and Intel MPI exist for Linux only, so no rank can run on it",
            "leave the host out: --limit '!NAME'",
        )
    elif "microsoft" in (system.kernel or "").lower():
        yield Finding(
            "system.wsl",
            "warn",
            "This is Linux inside Windows (WSL): other hosts usually can't connect to ranks on this host",
            "networkingMode=mirrored in .wslconfig on the Windows side, or leave the host out: --limit '!NAME'",
        )


def is_installed(facts: Facts) -> bool | None:
    """Return whether some environment has torch and starts; None if none is known and not all of the home could be
    read."""
    if any(env.torch and env.runs for env in facts.software.envs):
        return True
    return False if facts.has_finished("home") else None


def room(host: HostContext) -> Iterator[Finding]:
    """Warn of little space or few inodes at ipexctl's home; report a failure if a run could not even write its logs, or
    almost no file fits."""
    disk = host.facts.home.disk if host.facts.home else None
    if host.facts.home is None or disk is None:
        return
    path = host.facts.home.path[:50]
    installed = is_installed(host.facts) is not False  # then no other environment needs space
    if disk.free is not None and disk.free < GB:
        yield Finding(
            "home.full",
            "fail",
            f"{size(disk.free)} free at {path}: no environment fits, and a run can't write its logs",
            _ROOM,
        )
    elif disk.free is not None and disk.free < (2 * GB if installed else _ENV):
        yield Finding(
            "home.small",
            "warn",
            f"{size(disk.free)} free at {path}: an environment takes 1 to 6 GiB, and its wheels as much while "
            "it is built",
            _ROOM,
        )
    if disk.inodes_free is not None and disk.inodes_free < 100_000:
        yield Finding(
            "home.inodes",
            "fail" if disk.inodes_free < 1000 else "warn",
            f"Only {disk.inodes_free:,} more files fit at {path}: an environment has about 40,000, so install fails "
            "with 'No space left'",
            _ROOM,
        )


def exposed_home(host: HostContext) -> Iterator[Finding]:
    """Report a failure if other accounts could replace ipexctl's home, which is then not used."""
    home = host.facts.home
    if home is not None and home.exposed:
        yield Finding(
            "home.exposed",
            "fail",
            f"{home.path[:50]} could be replaced by other accounts, so ipexctl does not use it: {home.exposed[:90]}",
            f"chmod go-w that directory if it is yours, or {_NO_HOME}",
        )


def writable_home(host: HostContext) -> Iterator[Finding]:
    """Report a failure if ipexctl's home can't be written, or if no program starts from there."""
    home, disk = host.facts.home, host.facts.home.disk if host.facts.home else None
    if home is None or disk is None:
        return
    read_only = disk.mount is not None and "ro" in disk.mount.options
    if read_only or (disk.writable is False and disk.total is not None and host.facts.has_finished("home")):
        # After errors the kernel makes a filesystem read-only, and later writes are lost.
        account, own = host.facts.account, Fix("")
        if account.user and disk.path == account.home:
            own = Fix("as root: `chown {user} {path}`; or ", user=account.user, path=disk.path)
        point = (disk.mount.point if disk.mount else "PATH")[:40]
        remount = Fix(
            "as root, and only if dmesg shows no errors of that disk: `mount -o remount,rw {point}`; or ", point=point
        )
        yield Finding(
            "home.read_only",
            "fail",
            f"{home.path[:50]} is not writable{' (mounted read-only)' if read_only else ''}: no environment, "
            "code or log can be written there",
            (remount if read_only else own) + _NO_HOME,
        )
    if disk.noexec:
        yield Finding(
            "home.noexec",
            "fail",
            f"{home.path[:50]} is on a filesystem mounted noexec: the Python of an environment there can't start",
            f"{_NO_HOME}; if there is none, ask the administrator whether "
            f"{(disk.mount.point if disk.mount else 'its filesystem')[:40]} may be mounted with exec",
        )


def temporary_directory(host: HostContext) -> Iterator[Finding]:
    """Say that the temporary directory has little space or starts no programs. It is a warning if the directory is
    full."""
    tmp = host.facts.tmp
    if tmp is None:
        return
    own = posixpath.join(host.facts.account.home or "~", "tmp")
    fix = Fix(
        "`ipexctl exec -- mkdir -p {path}`, then add -x {variable} to ipexctl run; for programs that you start on the "
        "host: export {variable}",
        path=own,
        variable=f"TMPDIR={own}",
    )
    if tmp.free is not None and tmp.free < GB:
        is_full = tmp.free < _FULL_TMP
        fails = "programs that make temporary files" if is_full else "builds that use it"
        yield Finding(
            "tmp.small",
            "warn" if is_full else "info",
            f"{size(tmp.free)} free in {tmp.path}: {fails} fail; ipexctl uses its home directory instead",
            fix,
        )
    if tmp.noexec:
        yield Finding(
            "tmp.noexec",
            "info",
            f"{tmp.path} is mounted noexec: torch.compile and builds that use it fail; ipexctl uses its home "
            "directory instead",
            fix,
        )


def logind(host: HostContext) -> Iterator[Finding]:
    """Warn if logind ends a detached run, or removes its shared memory, after the last logout. logind spares system
    accounts, and processes outside a session."""
    rules = host.facts.logind
    uid = host.facts.account.uid
    if not rules.present or rules.linger is not False or rules.in_session is False or uid is None:
        return
    fix = "loginctl enable-linger (for your own account, mostly without root)"
    if rules.kill_user_processes and uid != 0:
        yield Finding(
            "logind.kills",
            "warn",
            "logind ends all your processes when your last login ends (KillUserProcesses), including a detached run",
            fix,
        )
    if rules.remove_ipc and uid >= 1000:
        yield Finding(
            "logind.removes_ipc",
            "warn",
            "logind deletes your files in /dev/shm when your last login ends (RemoveIPC), so a detached run loses its "
            "shared memory",
            fix,
        )


def scheduler(host: HostContext) -> Iterator[Finding]:
    """Say that the login is inside a job; warn if a scheduler manages the machine and the login is in no job."""
    batch = host.facts.batch
    if batch.job:
        yield Finding(
            "batch.job",
            "info",
            f"This login is inside job {batch.job[:30]}: cores, memory and time are the job's",
            "nothing to do",
        )
    elif batch.schedulers:
        known = [SCHEDULERS.get(name, (name[:20], "")) for name in batch.schedulers]
        schedulers = " and ".join(name for name, _ in known)
        command = known[0][1].format(hosts=host.others + 1) or "ask for an allocation"
        yield Finding(
            "batch.scheduler",
            "warn",
            f"{schedulers} manages this machine, but this login is in no job: other jobs may take the same cores or "
            "end the run",
            f"{command}, and run ipexctl inside it",
        )


def load(host: HostContext) -> Iterator[Finding]:
    """Warn if other programs compute on the host now. Nothing is said while runs of ipexctl may cause the load."""
    cores = host.facts.cpu.cores or host.facts.cpu.threads
    if host.facts.activity.load is None or not cores or not host.facts.complete:
        return
    if host.facts.activity.runs or host.facts.activity.processes or host.facts.activity.live.runs:
        return
    now = host.facts.activity.load[0]
    if now >= max(2.0, cores / 4):
        yield Finding(
            "activity.load",
            "warn",
            f"Other programs compute on this host now (load {now:.0f} on {cores} cores): every rank waits at each step "
            "for the ranks on this host",
            Fix(
                "see which programs: ps -eo user,pcpu,etime,args --sort=-pcpu | head; if they stay, let waiting "
                "threads of a run sleep earlier: `-x GOMP_SPINCOUNT=60000`"
            ),
        )


def runs(host: HostContext) -> Iterator[Finding]:
    """Say which runs are alive on this host. A run in an unknown state counts if it has a record but no processes
    here."""
    activity = host.facts.activity
    with_processes = {process.run for process in activity.processes}
    known = dict.fromkeys([*activity.runs, *(process.run for process in activity.processes)])
    alive = []
    for run in known:
        life = host.runs.get(run, UNKNOWN).life
        if life == "alive" or (life == "unknown" and run not in with_processes):
            alive.append(run)
    if alive:
        yield Finding(
            "activity.runs",
            "info",
            f"Run {few([run[:30] for run in alive], 2)} is running according to its record: a second run on the "
            "same cores slows both down",
            Fix(
                f"to see it: `ipexctl ps`; wait until it ends or, if it is no longer needed: `ipexctl stop {alive[0]}`"
            ),
        )


def other_accounts(host: HostContext) -> Iterator[Finding]:
    """Warn of live runs that other accounts have on this host."""
    facts = host.facts
    others = [live for live in facts.activity.live.runs if facts.account.uid not in (None, live.uid)]
    if not others:
        return
    texts = []
    for live in others[:_MOST_RUNS]:
        since = f" since {time_of(live.since, facts.clock or live.since)}" if live.since is not None else ""
        cores = f", on cores {short_list(str(live.cores))}" if live.cores else ""
        texts.append(f"{live.run} of {live.account}{since}{cores}")
    more = f", and {len(others) - _MOST_RUNS} more" if len(others) > _MOST_RUNS else ""
    yield Finding(
        "activity.other_accounts",
        "warn",
        f"Another account runs here: {'; '.join(texts)}{more}. A second run on the same cores slows both down",
        Fix("to wait for its end: run --wait S; to refuse: run --exclusive; to leave the host out: --limit '!NAME'"),
    )


def leftovers(host: HostContext) -> Iterator[Finding]:
    """Warn of processes of runs that are not alive. If it is unknown whether a run is alive, no fix kills its
    processes."""
    by_run: dict[str, list[RunProcess]] = {}
    for process in host.facts.activity.processes:
        by_run.setdefault(process.run, []).append(process)
    for run, processes in by_run.items():
        state = host.runs.get(run, UNKNOWN)
        if state.life == "unknown":
            yield Finding(
                "activity.leftovers",
                "warn",
                f"Run {run} has processes on this host, and ipexctl cannot tell if it is alive: {state.reason}",
                Fix(
                    "on the machine that started the run: `ipexctl ps`; or name its node0 among the hosts of this call"
                ),
            )
        elif state.life == "ended":
            pids = [process.pid for process in sorted(processes, key=lambda process: (process.start or 0, process.pid))]
            yield Finding(
                "activity.leftovers",
                "warn",
                f"Run {run} has ended ({state.reason}), but some of its processes remain here: they may occupy "
                "cores, memory and ports",
                Fix(
                    "ranks without a supervisor end within a minute: then run `ipexctl doctor` again. To "
                    "list the processes on this host: ps -o pid,lstart,args -p "
                    f"{','.join(map(str, pids[:_MOST_PIDS]))}; to end them: "
                    f"`{_end_of_run(run, pids[:_MOST_PIDS])}`"
                ),
            )


def _end_of_run(run: str, pids: Sequence[int]) -> str:
    """Return a command that kills these processes, after a check that each still belongs to the run: a pid may be
    reused."""
    of_run = f"'^IPEXCTL_RUN={run}$|/runs/{run}/agent[.]zip$'"
    numbers = " ".join(map(str, pids))
    return f"for p in {numbers}; do grep -qszE {of_run} /proc/$p/environ /proc/$p/cmdline && kill $p; done"


def selinux(host: HostContext) -> Iterator[Finding]:
    """Say that SELinux is enforcing."""
    if host.facts.security.selinux == "enforcing":
        yield Finding(
            "security.selinux",
            "info",
            "SELinux is enforcing: sshd may refuse keys if the home is on NFS or in an unusual directory",
            Fix(
                "if ssh refuses a key: `restorecon -R ~/.ssh`; as root, for an NFS home: `setsebool -P "
                "use_nfs_home_dirs 1`"
            ),
        )


RULES: Final[tuple[HostRule, ...]] = (
    complete_probe, login, linux, room, exposed_home, writable_home, temporary_directory, logind, load,
    selinux, scheduler, runs, other_accounts, leftovers,
)  # fmt: skip
