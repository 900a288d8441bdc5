"""Rules over a host's system, disks and house rules: where we live, and who ends or crowds out a job. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.doctor.finding import Finding
from ipexctl.doctor.host_context import GB, few, quoted_output, size
from ipexctl.doctor.run_states import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ipexctl.doctor.host_context import HostContext, Rule, RuleInContext
    from ipexctl.facts.facts import Facts
    from ipexctl.facts.system import Disk, RunProcess

IDS: Final[Mapping[str, str]] = {
    "probe.incomplete": "not all questions to the host were answered",
    "system.not_linux": "the host runs no Linux",
    "system.wsl": "the host is a Windows machine's Linux",
    "home.full": "no room where everything of ours lives",
    "home.small": "little room where everything of ours lives",
    "home.inodes": "few more files fit where everything of ours lives",
    "home.read_only": "nothing can be written where everything of ours lives",
    "home.noexec": "no program can be started where everything of ours lives",
    "tmp.small": "the place for temporary files, /tmp, is almost full",
    "tmp.noexec": "no program can be started from /tmp",
    "logind.kills": "the job dies when the last login ends",
    "logind.removes_ipc": "shared memory is emptied when the last login ends",
    "batch.scheduler": "a scheduler owns this machine, and we are in no job of it",
    "batch.job": "we are inside a job of the scheduler",
    "activity.load": "others compute here now",
    "activity.runs": "a run goes on here",
    "activity.leftovers": "processes of a run that has ended, or may have ended, are left",
    "security.selinux": "SELinux is enforcing",
}

_ENV: Final = 10 * GB
_MOST_PIDS: Final = 16
"""How many processes a command names: those that began first, as the others are mostly theirs."""
_NO_HOME: Final = "another place with --home DIR, one absolute path for all hosts"
_ROOM: Final = (
    "make room: ipexctl ps --prune takes old runs away; while ipexctl ps shows no live run, ipexctl envs --prune takes "
    f"wheels and environments without a name (ipexctl envs lists them); or {_NO_HOME}"
)


def complete(facts: Facts) -> Iterator[Finding]:
    """Each part's silence has its own likely cause."""
    causes = {
        "home": "a file server that doesn't answer",
        "names": "a name server that doesn't answer",
        "programs": "a program or a PATH that hangs",
    }
    if facts.complete and not facts.cut:
        return
    lost = few(facts.cut, 3) or "the rest"
    likely = next((causes[part] for part in facts.cut if part in causes), "a slow machine or a lost connection")
    yield Finding(
        "probe.incomplete",
        "warn",
        f"The host did not answer everything ({lost} is missing): {likely} would make training hang just so",
        "try again with a larger --timeout; on the host: time df ~ /tmp; time getent hosts $(hostname)",
    )


def linux(facts: Facts) -> Iterator[Finding]:
    system = facts.system
    if system.kernel_name is not None and not system.is_linux:
        what = system.distro or {"Darwin": "macOS"}.get(system.kernel_name, system.kernel_name)
        yield Finding(
            "system.not_linux",
            "fail",
            f"This host runs {what[:40]}: IPEX, oneCCL and Intel MPI exist for Linux only, so no rank can run here",
            "leave the host out: --limit '!NAME'",
        )
    elif "microsoft" in (system.kernel or "").lower():
        yield Finding(
            "system.wsl",
            "warn",
            "This is Linux inside Windows (WSL): other hosts usually can't connect to ranks here",
            "networkingMode=mirrored in .wslconfig on the Windows side, or leave the host out: --limit '!NAME'",
        )


def room(facts: Facts) -> Iterator[Finding]:
    disk = facts.home.disk if facts.home else None
    if facts.home is None or disk is None:
        return
    where = facts.home.path[:50]
    # Once there is an environment, room for another is no need; where we don't know, there may be one.
    installed = any(env.torch and env.runs for env in facts.software.envs) or not quoted_output(facts, "home")
    if disk.free is not None and disk.free < GB:
        yield Finding(
            "home.full",
            "fail",
            f"{size(disk.free)} free at {where}: no environment fits, and a run can't write its logs",
            _ROOM,
        )
    elif disk.free is not None and disk.free < (2 * GB if installed else _ENV):
        yield Finding(
            "home.small",
            "warn",
            f"{size(disk.free)} free at {where}: an environment takes 1 to 6 GB and its wheels as much again while "
            "it is made",
            _ROOM,
        )
    if disk.inodes_free is not None and disk.inodes_free < 100_000:
        yield Finding(
            "home.inodes",
            "fail" if disk.inodes_free < 1000 else "warn",
            f"Only {disk.inodes_free:,} more files fit at {where}: an environment has about 40,000, so install ends "
            "with 'No space left'",
            _ROOM,
        )


def writing(facts: Facts) -> Iterator[Finding]:
    home, disk = facts.home, facts.home.disk if facts.home else None
    if home is None or disk is None:
        return
    read_only = disk.mount is not None and "ro" in disk.mount.options
    if read_only or (disk.writable is False and disk.total is not None and quoted_output(facts, "home")):
        yield Finding(
            "home.read_only",
            "fail",
            f"{home.path[:50]} can't be written{' (mounted read-only)' if read_only else ''}: no environment, no "
            "code and no log can be put there",
            f"{_remount(disk) if read_only else ''}{_NO_HOME}",
        )
    if disk.noexec:
        yield Finding(
            "home.noexec",
            "fail",
            f"{home.path[:50]} is on a filesystem mounted noexec: an environment's Python there doesn't start",
            f"{_NO_HOME}, or as root: mount -o remount,exec {(disk.mount.point if disk.mount else 'PATH')[:40]}",
        )


def _remount(disk: Disk) -> str:
    """The kernel itself makes a filesystem read-only after errors, and writing to that one loses data."""
    point = (disk.mount.point if disk.mount else "PATH")[:40]
    return f"as root, and only where dmesg shows no errors of that disk: mount -o remount,rw {point}; or "


def temporary(facts: Facts) -> Iterator[Finding]:
    tmp = facts.tmp
    if tmp is None:
        return
    if tmp.free is not None and tmp.free < GB:
        yield Finding(
            "tmp.small",
            "info",
            f"{size(tmp.free)} free in {tmp.path}: installs and compilers that use it would fail; ours use our own "
            "directory",
            "for your own programs: export TMPDIR=$HOME/tmp",
        )
    if tmp.noexec:
        yield Finding(
            "tmp.noexec",
            "info",
            f"{tmp.path} is mounted noexec: torch.compile and builds that use it would fail; ours use our own "
            "directory",
            "for your own programs: export TMPDIR=$HOME/tmp",
        )


def logind(facts: Facts) -> Iterator[Finding]:
    """The accounts of the system itself are spared; so is who is in no session."""
    rules = facts.logind
    uid = facts.account.uid
    if not rules.present or rules.linger is not False or rules.in_session is False or uid is None:
        return
    fix = "loginctl enable-linger (for your own account, mostly without root)"
    if rules.kill_user_processes and uid != 0:
        yield Finding(
            "logind.kills",
            "warn",
            "logind ends all your processes when your last login ends (KillUserProcesses): a detached run dies with it",
            fix,
        )
    if rules.remove_ipc and uid >= 1000:
        yield Finding(
            "logind.removes_ipc",
            "warn",
            "logind empties /dev/shm of your files when your last login ends (RemoveIPC): a detached run loses its "
            "shared memory",
            fix,
        )


def scheduler(facts: Facts) -> Iterator[Finding]:
    batch = facts.batch
    if batch.job:
        yield Finding(
            "batch.job",
            "info",
            f"We are inside job {batch.job[:30]}: cores, memory and time are what the scheduler granted",
            "nothing to do",
        )
    elif batch.schedulers:
        names = {"slurm": "Slurm", "pbs": "PBS", "lsf": "LSF", "sge": "Grid Engine"}
        said = " and ".join(names.get(name, name[:20]) for name in batch.schedulers)
        yield Finding(
            "batch.scheduler",
            "warn",
            f"{said} manages this machine and we are in no job of it: others' jobs may take the same cores, or ours "
            "be ended",
            {"slurm": "salloc -N HOSTS --exclusive", "pbs": "qsub -I -l select=HOSTS"}.get(
                batch.schedulers[0], "ask for an allocation"
            ) + ", and call ipexctl inside it",
        )  # fmt: skip


def load(facts: Facts) -> Iterator[Finding]:
    cores = facts.cpu.cores or facts.cpu.threads
    if facts.activity.load is None or not cores or not facts.complete:
        return
    if facts.activity.runs or facts.activity.processes:
        return
    now = facts.activity.load[0]
    if now >= max(2.0, cores / 4):
        yield Finding(
            "activity.load",
            "warn",
            f"Others compute here now (load {now:.0f} on {cores} cores): every rank waits at each step for the ranks "
            "here",
            "see who: ps -eo user,pcpu,etime,args --sort=-pcpu | head",
        )


def runs(facts: Facts, context: HostContext) -> Iterator[Finding]:
    """Those that are alive, and those whose record says so and nothing speaks against it."""
    activity = facts.activity
    with_processes = {process.run for process in activity.processes}
    known = dict.fromkeys([*activity.runs, *(process.run for process in activity.processes)])
    going = []
    for run in known:
        life = context.runs.get(run, UNKNOWN).life
        if life == "alive" or (life == "unknown" and run not in with_processes):
            going.append(run)
    if going:
        yield Finding(
            "activity.runs",
            "info",
            f"Run {few([run[:30] for run in going], 2)} goes on by its record: a second one on the same "
            "cores slows both",
            "ipexctl ps shows it; wait for its end, or where it is no longer wanted: ipexctl stop RUN",
        )


def leftovers(facts: Facts, context: HostContext) -> Iterator[Finding]:
    """Of no run that is alive; where that can't be told, nothing is advised that ends a process."""
    by_run: dict[str, list[RunProcess]] = {}
    for process in facts.activity.processes:
        by_run.setdefault(process.run, []).append(process)
    for run, processes in by_run.items():
        state = context.runs.get(run, UNKNOWN)
        if state.life == "unknown":
            yield Finding(
                "activity.leftovers",
                "warn",
                f"Run {run} has processes here, and whether it is alive can't be told: {state.reason}",
                "ipexctl ps, on the machine that started the run, says how it is; so does ipexctl doctor with its "
                "node0 among the hosts",
            )
        elif state.life == "ended":
            pids = [process.pid for process in sorted(processes, key=lambda each: (each.start or 0, each.pid))]
            yield Finding(
                "activity.leftovers",
                "warn",
                f"Run {run} has ended ({state.reason}), but processes of it are left here: they may hold cores, "
                "memory and ports",
                "ranks without a supervisor end within a minute: ask again then. What is left, on this host: "
                f"ps -o pid,lstart,args -p {','.join(map(str, pids[:_MOST_PIDS]))}; and to end it: "
                f"{_end_of_run(run, pids[:_MOST_PIDS])}",
            )


def _end_of_run(run: str, pids: Sequence[int]) -> str:
    """A command for these processes that leaves alone what has got such a number since: each must still be that run's,
    by its environment or as its rank wrapper."""
    theirs = f"'^IPEXCTL_RUN={run}$|/runs/{run}/(agent[.]zip|(rank|supervise)[.]py)$'"
    numbers = " ".join(map(str, pids))
    return f"for p in {numbers}; do grep -qszE {theirs} /proc/$p/environ /proc/$p/cmdline && kill $p; done"


def selinux(facts: Facts) -> Iterator[Finding]:
    if facts.security.selinux == "enforcing":
        yield Finding(
            "security.selinux",
            "info",
            "SELinux is enforcing: seldom in the way, but keys in a home of unusual place or on NFS may be refused "
            "by sshd",
            "if ssh refuses a key: restorecon -R ~/.ssh; as root, for an NFS home: setsebool -P use_nfs_home_dirs 1",
        )


RULES: Final[tuple[Rule, ...]] = (
    complete, linux, room, writing, temporary, logind, scheduler, load, selinux,
)  # fmt: skip
IN_CONTEXT: Final[tuple[RuleInContext, ...]] = (runs, leftovers)
