"""The probe script, run on this machine by every installed shell."""

from __future__ import annotations

import getpass
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.facts import live_runs
from ipexctl.facts.facts import parse, to_json
from ipexctl.facts.gather import gather_facts, skew
from ipexctl.facts.live_runs import BusyProgram, CallDetails, HostSnapshot, RunsOnHost, read_host_snapshot
from ipexctl.facts.probe import live_runs_command, lock_command, probe_command, probe_script, wait_command
from ipexctl.hosts.host import Host
from ipexctl.limits import LOCK_VALID, PROBE_REST
from ipexctl.node.common.plan import Plan, RunBy, plan_text
from ipexctl.node.common.processes import own_identity
from ipexctl.node.common.run_options import RunOptions
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.command import MAX_LINE, login_line
from ipexctl.remote.connector import ConnectOptions, Connector, OpenHosts, SessionPool
from ipexctl.remote.local import LocalSession

SHELLS = [
    pytest.param(shell.split(), marks=pytest.mark.needs(shell.split()[0]), id=shell)
    for shell in ("dash", "bash", "bash --posix", "busybox ash", "ksh", "ksh93", "mksh", "yash")
]
NOBODY = 65534
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def probe(
    shell: list[str], home: Path, *, script: str = "", path: str | None = None, peers: str = "", **variables: str
) -> str:
    environment = {"PATH": path or os.environ["PATH"], "HOME": str(home), "LOGNAME": "me", "SHELL": "/bin/sh"}
    argv = [*shell, "-c", script or probe_script(), "probe", "", peers]
    done = subprocess.run(argv, env={**environment, **variables}, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


@linux
@pytest.mark.parametrize("shell", SHELLS)
def test_every_posix_shell_gives_the_same_facts(shell: list[str], tmp_path: Path) -> None:
    ours = parse(probe(shell, tmp_path, peers="localhost nosuch.invalid"))
    assert ours.complete
    reference = to_json(parse(probe(["sh"], tmp_path, peers="localhost nosuch.invalid")))
    for name in ("system", "cpu", "limits", "account", "security"):
        assert to_json(ours)[name] == reference[name]
    assert ours.network.peers.get("localhost")
    assert ours.cpu.cores


@pytest.mark.core
@linux
def test_probe_agrees_with_python(tmp_path: Path) -> None:
    facts = parse(probe(["sh"], tmp_path))
    assert facts.system.kernel == os.uname().release
    assert facts.system.arch == os.uname().machine
    assert f"{facts.system.libc} {facts.system.libc_version}" == os.confstr("CS_GNU_LIBC_VERSION")
    assert facts.network.hostname == os.uname().nodename
    assert facts.cpu.affinity is None or set(facts.cpu.affinity) <= os.sched_getaffinity(0)
    assert facts.memory.total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert facts.account.uid == os.getuid()
    assert facts.home is not None
    assert facts.home.path == f"{tmp_path}/.ipexctl"
    assert facts.home.disk is not None
    assert facts.home.disk.total == shutil.disk_usage(tmp_path).total
    assert facts.clock is not None
    assert abs(facts.clock - time.time()) < 60


@linux
def test_libc_version_is_found_without_ldd(tmp_path: Path) -> None:
    script = probe_script().replace("/usr/bin/ldd", "/nowhere")
    system = parse(probe(["sh"], tmp_path, script=script)).system
    assert f"{system.libc} {system.libc_version}" == os.confstr("CS_GNU_LIBC_VERSION")


@linux
def test_probe_completes_without_any_program_in_path(tmp_path: Path) -> None:
    script = (
        probe_script().replace("PATH=/usr/local/bin:/usr/bin:/bin", "PATH=/nowhere", 1).replace(":/usr/sbin:/sbin", "")
    )
    facts = parse(probe([shutil.which("sh") or "sh"], tmp_path, script=script, path="/nowhere", peers="a b"))
    assert facts.complete
    assert facts.home is not None


@linux
def test_environments_runs_and_processes_are_found(tmp_path: Path) -> None:
    home = tmp_path / ".ipexctl"
    site = home / "envs/ipex-2.8-ab12/lib/python3.11/site-packages"
    for package in ("torch-2.8.0+cpu", "intel_extension_for_pytorch-2.8.0", "impi_rt-2021.15.0", "oneccl-2021.15.2"):
        (site / f"{package}.dist-info").mkdir(parents=True)
    (site / "torch").mkdir()
    (home / "envs/ipex-2.8-ab12/bin").mkdir()
    (home / "envs/ipex-2.8-ab12/bin/python").symlink_to(sys.executable)
    (home / "envs/ipex-2.8-ab12/env.json").write_text('{\n "why": "it\'s 100% \\\\n"\n}')
    (home / "envs/half").mkdir()
    (home / "envs/default").symlink_to("ipex-2.8-ab12")
    for run, state in (("one", "running"), ("two", "ok")):
        (home / f"runs/{run}").mkdir(parents=True)
        (home / f"runs/{run}/status.json").write_text(f'{{"id": "{run}", "state": "{state}"}}')
    running = subprocess.Popen(["sleep", "60"], executable=shutil.which("sleep"))
    ours = subprocess.Popen([f"{home}/runs/one/supervise", "60"], executable=shutil.which("sleep"))
    try:
        facts = parse(probe(["sh"], tmp_path))
    finally:
        for process in (running, ours):
            process.kill()
            process.wait()
    whole, half = sorted(facts.software.envs, key=lambda env: env.name, reverse=True)
    assert (whole.torch, whole.ipex, whole.mpi, whole.oneccl) == ("2.8.0+cpu", "2.8.0", "2021.15.0", "2021.15.2")
    assert (whole.python, whole.runs, whole.oneccl_bindings) == ("3.11", True, None)
    assert whole.record == '{\n "why": "it\'s 100% \\\\n"\n}'
    assert (whole.names, half.names) == (("default",), ())
    assert (whole.lost, half.lost) == (("intel_extension_for_pytorch",), ())
    assert (half.runs, half.python, half.torch) == (False, None, None)
    assert facts.activity.runs == ("one",)
    assert facts.activity.pids == (ours.pid,)


def started(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@linux
@pytest.mark.parametrize("shell", SHELLS)
def test_processes_of_runs_are_found_by_environment_or_path(shell: list[str], tmp_path: Path) -> None:
    home = tmp_path / "c++[1]*" / ".ipexctl"

    def record(run: str, state: str, pid: int = 0, start: int = 0) -> None:
        supervisor = {"pid": pid, "start": start, "host": "n1", "machine": "m1", "boot": "b1"}
        status = {"id": run, "state": state, "supervisor": supervisor, "ranks": [{"state": "ok"}]}
        (home / "runs" / run).mkdir(parents=True, exist_ok=True)
        (home / "runs" / run / "status.json").write_text(json.dumps(status))

    record("alive", "running")
    script = home / "runs/alive/agent.zip"
    script.write_text("import time; time.sleep(60)")
    (home / "runs/alive/log").touch()
    sleep = shutil.which("sleep") or "sleep"
    wrapper = subprocess.Popen([sys.executable, "-I", script, "run.rank", script.with_name("job.json")])
    rank = subprocess.Popen([sleep, "60"], env={"A": "1", "IPEXCTL_RUN": "over", "B": "2"})
    reader = subprocess.Popen(["tail", "-f", home / "runs/alive/log"])
    try:
        record("alive", "running", wrapper.pid, started(wrapper.pid))
        record("other-start", "starting", wrapper.pid, started(wrapper.pid) + 1)
        record("dead", "running", 2**22 + 1, 5)
        record("over", "failed")
        activity = parse(probe(shell, home.parent)).activity
        # Other tests on this machine have runs of their own.
        ours = {process.pid for process in (wrapper, rank, reader)}
        spawned = [process for process in activity.processes if process.pid in ours]
        starts = {process.pid: process.start for process in spawned}
        assert starts == {process.pid: started(process.pid) for process in (wrapper, rank)}
    finally:
        for process in (wrapper, rank, reader):
            process.kill()
            process.wait()
    assert activity.runs == ("alive", "dead", "other-start")
    supervisors = {each.run: each for each in activity.supervisors}
    assert {run: each.is_here for run, each in supervisors.items()} == {
        "alive": True, "dead": False, "other-start": False,
    }  # fmt: skip
    dead = supervisors["dead"]
    assert (dead.host, dead.machine, dead.boot) == ("n1", "m1", "b1")
    assert activity.ended == ("over",)
    runs = {process.pid: process.run for process in spawned}
    assert runs == {wrapper.pid: "alive", rank.pid: "over"}
    assert sorted(activity.pids) == sorted([wrapper.pid, reader.pid])


@linux
def test_interpreters_and_mpis_are_listed_once(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").symlink_to(sys.executable)
    (tools / "python3.12").write_text("#!/bin/sh\nexit 3\n")
    (tools / "mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.2'\n")
    for file in ("python3.12", "mpirun"):
        (tools / file).chmod(0o755)
    also = tmp_path / "also"
    also.symlink_to(tools)
    facts = parse(probe(["sh"], tmp_path, path=f"{tools}:{also}:/usr/bin:/bin"))
    first, second = facts.software.pythons[:2]
    version = ".".join(map(str, sys.version_info[:3]))
    assert (first.path, first.version, first.venv) == (f"{tools}/python3", version, True)
    assert (second.path, second.version) == (f"{tools}/python3.12", None)
    assert not any(str(also) in python.path for python in facts.software.pythons)
    mpi = facts.software.mpis[0]
    assert (mpi.flavor, mpi.version, mpi.on_path) == ("openmpi", "4.1.2", True)


@linux
@pytest.mark.parametrize(
    ("slurm_conf", "schedulers"),
    [(None, ()), ("ClusterName=a\n", ()), ("ClusterName=a\nnodename=n[1-4]\n", ("slurm",))],
)
def test_slurm_is_detected_if_slurm_conf_has_nodes(
    tmp_path: Path, slurm_conf: str | None, schedulers: tuple[str, ...]
) -> None:
    if Path("/run/slurmd.pid").exists() or Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("Slurm manages this machine")
    for directory in ("bin", "etc"):
        (tmp_path / "slurm" / directory).mkdir(parents=True)
    (tmp_path / "slurm/bin/srun").symlink_to("/bin/true")
    if slurm_conf is not None:
        (tmp_path / "slurm/etc/slurm.conf").write_text(slurm_conf)
    facts = parse(probe(["sh"], tmp_path, path=f"{tmp_path}/slurm/bin:/usr/bin:/bin"))
    assert facts.environment.tools["srun"] == f"{tmp_path}/slurm/bin/srun"
    assert facts.batch.schedulers == schedulers


@linux
@pytest.mark.needs("pgrep")
def test_hanging_programs_are_killed_and_other_facts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("python3", "mpirun"):
        (tools / name).write_text("#!/bin/sh\nsleep 6633\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    started = time.monotonic()
    host = Host("localhost", "localhost")
    monkeypatch.setattr("ipexctl.facts.gather.PROBE_REST", 2.0)
    monkeypatch.setattr(SessionPool, "session", lambda _, host: LocalSession(host))
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=1) as pool:
        (answer,) = gather_facts(OpenHosts((host,), pool))
    slowness = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # the probe waits longer on a busy machine
    assert 2.0 <= time.monotonic() - started < 6.0 * slowness
    assert PROBE_REST >= 5.0
    assert (answer.status, answer.reason) == ("ok", "")
    facts = answer.facts
    assert facts is not None
    assert facts.cut == ("programs",)
    assert not facts.complete
    assert facts.cpu.cores
    assert facts.home is not None
    assert subprocess.run(["pgrep", "-f", "sleep 6633"], capture_output=True).stdout == b""


@linux
@pytest.mark.needs("ip")
def test_addresses_come_from_the_kernel_without_the_ip_command(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for directory in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"):
        for file in Path(directory).glob("*"):
            if file.name != "ip" and not (programs / file.name).is_symlink():
                (programs / file.name).symlink_to(file)
    everything = "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:$PATH"
    assert everything in probe_script()
    script = probe_script().replace(everything, f"PATH={programs}")
    without = probe(["sh"], tmp_path, script=script, path=str(programs))

    def subnets(text: str) -> set[tuple[str, str, int]]:
        found = ((nic.name, *item) for nic in parse(text).network.nics for item in nic.addresses)
        return {(name, address, prefix) for name, address, prefix, _ in found if "." in address and prefix < 32}

    assert "== ip.addr" not in without
    assert subnets(without) == subnets(probe(["sh"], tmp_path))
    assert parse(without).complete


@linux
@pytest.mark.parametrize(
    ("connection", "reached"), [("10.0.0.9 5000 10.0.0.1 22", "10.0.0.1"), ("::1 5000 fe80::1%eth0 22", "fe80::1")]
)
def test_reached_address_comes_from_ssh_connection(connection: str, reached: str, tmp_path: Path) -> None:
    assert parse(probe(["sh"], tmp_path, SSH_CONNECTION=connection)).network.reached == reached


def test_probe_writes_no_files(tmp_path: Path) -> None:
    probe(["sh"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_fits_in_one_argument_with_hundreds_of_peers() -> None:
    peers = [f"a-rather-long-host-name-{index}.cluster.example.org" for index in range(500)]
    assert len(login_line(probe_command(peers), "x" * 32)) < MAX_LINE


def test_invalid_peer_names_are_not_passed_to_the_shell() -> None:
    peers = ["node1", "10.0.0.1", "fe80::2", "$(id)", "a b", "-x", "*", "`id`", "node-2.lan", "'"]
    script = probe_command(peers, "/scratch/it's mine").script
    assert script.startswith("""set -- '/scratch/it'"'"'s mine' 'node1 node-2.lan'\n""")


@pytest.mark.parametrize(("clock", "expected"), [(100.5, 0.0), (190.5, 90.0), (10.5, -90.0)])
def test_clock_skew_is_relative_to_the_middle_of_the_round_trip(clock: float, expected: float) -> None:
    found = skew(clock, 100.0, 101.0)
    assert (found.seconds, found.uncertainty) == (expected, 0.5)


@linux
@pytest.mark.parametrize("shell", SHELLS)
def test_live_runs_are_found_with_the_cores_of_their_ranks(shell: list[str], tmp_path: Path) -> None:
    run = f"live-{os.getpid()}-{abs(hash(' '.join(shell))) % 10_000}"
    agent = tmp_path / "a home" / "runs" / run / "agent.zip"
    agent.parent.mkdir(parents=True)
    by, tag = RunBy("ann", "laptop"), 'a "b" \\n, é'
    plan = Plan(run, "/h", "node1", RunOptions(tag=tag), by=by)
    agent.with_name("plan.json").write_text(plan_text(plan))
    core = min(os.sched_getaffinity(0))
    # The wrapper itself is bound to no core, and has a child with its own words, as the guard of a rank is.
    agent.write_text(
        "import os, subprocess, time\n"
        f"subprocess.Popen(['sleep', '60'], preexec_fn=lambda: os.sched_setaffinity(0, {{{core}}}))\n"
        "os.fork()\ntime.sleep(60)\n"
    )
    words = ["-IS", str(agent), "run.rank", str(agent.with_name("job.json"))]
    wrapper = subprocess.Popen([sys.executable, *words], start_new_session=True)
    mpirun = subprocess.Popen(["sh", "-c", "sleep 60; true", "-n", "1", sys.executable, *words], start_new_session=True)
    try:
        for _ in range(100):
            found = [live for live in parse(probe(shell, tmp_path)).activity.live.runs if live.run == run]
            if found and found[0].cores.cpus == (core,):
                break
            time.sleep(0.05)
    finally:
        for process in (wrapper, mpirun):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    (live,) = found
    assert (live.uid, live.account, live.is_starting) == (os.getuid(), getpass.getuser(), False)
    assert live.cores.cpus == (core,)
    assert live.call == CallDetails(by, tag=tag)
    assert live.since is not None
    assert abs(live.since - time.time()) < 60
    assert not [live for live in parse(probe(shell, tmp_path)).activity.live.runs if live.run == run]


@linux
@pytest.mark.parametrize("shell", SHELLS)
def test_a_host_has_one_lock_which_others_see_and_which_ends_with_its_call_or_its_run(
    shell: list[str], tmp_path: Path
) -> None:
    run = f"lock-{os.getpid()}"
    # Not the lock of this machine, which other tests may want.
    script = lock_command(run).script.replace("/proc", str(tmp_path), 1).replace("/bin/sh", " ".join(shell))

    def start(script: str = script) -> subprocess.Popen[str]:
        return subprocess.Popen([*shell, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seen() -> list[bool]:
        done = subprocess.run([*shell, "-c", live_runs_command().script], capture_output=True, text=True, timeout=60)
        snapshot = read_host_snapshot(done.stdout)
        assert snapshot is not None
        assert snapshot.machine.endswith(os.readlink("/proc/self/ns/pid"))
        return [live.is_starting for live in snapshot.runs.runs if live.run == run]

    def is_free() -> bool:
        with start() as other:
            return (other.communicate(timeout=10)[0], other.returncode) != ("", 1)

    with start() as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert seen() == [True]
        assert not is_free()
        holder.communicate(timeout=10)  # the end of stdin, as of a killed call
    assert seen() == []
    with start(script.replace(f" {LOCK_VALID:g}", " 1")) as holder:
        assert holder.wait(10) == 0  # though its stdin is open: the connection was cut without a sign
    with start(script.replace(f" {LOCK_VALID:g}", " 3")) as holder:
        assert holder.stdin is not None
        for _ in range(4):
            holder.stdin.write("still here\n" * 2)
            holder.stdin.flush()
            time.sleep(1)
        assert seen() == [True]
        holder.communicate(timeout=10)

    (tmp_path / "job.json").touch()
    with start() as holder:
        holder.communicate(f"{tmp_path}\n", timeout=10)
    assert seen() == [True]
    assert not is_free()
    (tmp_path / "job.json").unlink()  # a short run may be over before anybody has seen its programs
    wait_until(lambda: not seen(), 5)
    assert is_free()


@linux
@pytest.mark.parametrize("shell", SHELLS)
def test_a_place_in_the_queue_begins_once_no_other_call_enters_and_ends_with_its_call(
    shell: list[str], tmp_path: Path
) -> None:
    runs = [f"wait-{os.getpid()}-{name}" for name in "ab"]

    def enter(run: str) -> subprocess.Popen[str]:
        # Not the lock of this machine, which other tests may want.
        script = (
            wait_command(run, 99.5).script.replace("/proc/sys", str(tmp_path), 1).replace("/bin/sh", " ".join(shell))
        )
        return subprocess.Popen([*shell, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def waiting() -> list[str]:
        done = subprocess.run([*shell, "-c", live_runs_command().script], capture_output=True, text=True, timeout=60)
        snapshot = read_host_snapshot(done.stdout)
        assert snapshot is not None
        assert snapshot.uid == os.getuid()
        calls = [call for call in snapshot.runs.waiting if call.run in runs]
        assert all(call.until is not None and 99 < call.until - (call.since or 0) < 101 for call in calls)
        return [call.run for call in calls]

    def write(call: subprocess.Popen[str], line: str) -> None:
        assert call.stdin is not None
        call.stdin.write(line)
        call.stdin.flush()

    with enter(runs[1]) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "entered\n"
        with enter(runs[0]) as second:
            assert second.stdout is not None
            assert not select.select([second.stdout], [], [], 0.3)[0]
            assert waiting() == []
            write(first, "all entered\n")
            assert [first.stdout.readline(), second.stdout.readline()] == ["placed\n", "entered\n"]
            write(second, "all entered\n")
            assert second.stdout.readline() == "placed\n"
            assert waiting() == runs[::-1]
            first.kill()  # its stdin is open, as that of a call that was cut off: a minute is left
            write(second, "still here\n")
            assert waiting() == runs[::-1]
            first.communicate(timeout=10)
            wait_until(lambda: waiting() == [runs[0]], 10)
            second.communicate(timeout=10)
            wait_until(lambda: waiting() == [], 10)


@linux
@pytest.mark.parametrize("shell", SHELLS)
def test_what_a_call_says_about_itself_is_seen_by_its_own_account(shell: list[str], tmp_path: Path) -> None:
    run, tag = f"told-{os.getpid()}", 'a "b" \\n, é'
    said = json.dumps({"user": "ann", "host": "laptop", "script": "train.py", "tag": tag}).encode() + b"\n"
    expected = CallDetails(RunBy("ann", "laptop"), "train.py", tag)

    def seen() -> RunsOnHost:
        done = subprocess.run([*shell, "-c", live_runs_command().script], capture_output=True, text=True, timeout=60)
        snapshot = read_host_snapshot(done.stdout)
        assert snapshot is not None
        return snapshot.runs

    def calls() -> list[CallDetails]:
        found = seen()
        runs = [each.call for each in found.runs if each.run == run]
        return runs + [each.call for each in found.waiting if each.run == run]

    commands = [lock_command(run, passes=True), wait_command(run, 60)]
    scripts = [command.script.replace("/proc/sys", str(tmp_path), 1) for command in commands]
    for script in [script.replace("/bin/sh", " ".join(shell)) for script in scripts]:
        with subprocess.Popen([*shell, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as call:
            assert call.stdin is not None
            assert call.stdout is not None
            call.stdin.write(said)
            call.stdin.flush()
            assert call.stdout.readline() in (b"held\n", b"entered\n")
            wait_until(lambda: expected in calls(), 10)
            assert [each.is_starting for each in seen().runs if each.run == run] in ([False], [])
            call.communicate(timeout=10)


def look(shell: list[str], script: str) -> HostSnapshot | None:
    done = subprocess.run([*shell, "-c", script], capture_output=True, text=True, timeout=60)
    return read_host_snapshot(done.stdout)


@linux
@pytest.mark.parametrize("shell", SHELLS)
def test_no_words_of_a_stranger_hide_a_run_and_a_failed_look_says_so(shell: list[str], tmp_path: Path) -> None:
    run = f"mine-{os.getpid()}-{abs(hash(' '.join(shell))) % 10_000}"
    agent = tmp_path / "runs" / run / "agent.zip"
    agent.parent.mkdir(parents=True)
    agent.write_text("import time; time.sleep(60)")
    strange = f"strange-{os.getpid()}"
    many = ["ipexctl-host-lock", strange] * 8000
    long = ["ipexctl-host-lock", "x" * 130_000, "ipexctl-host-wait", f"{strange}-2", "5"]
    processes = [subprocess.Popen([sys.executable, "-IS", str(agent), "run.rank"])]
    processes += [subprocess.Popen(["sh", "-c", "sleep 60; true", *words], user=NOBODY) for words in (many, long)]
    script = live_runs_command(with_programs=True).script
    try:
        wait_until(
            lambda: (found := look(shell, script)) is not None and run in [each.run for each in found.runs.runs], 10
        )
        found = look(shell, script)
        unseen = look(shell, script.replace("| awk", "| awk-that-is-missing"))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert found is not None
    assert [each.account for each in found.runs.runs if each.run == strange] == ["nobody"]
    assert [each.account for each in found.runs.waiting if each.run == f"{strange}-2"] == ["nobody"]
    assert unseen is None


@linux
@pytest.mark.parametrize("part", ["function find_programs", "function sample"])
def test_an_awk_that_fails_as_a_process_ends_is_started_again(part: str, tmp_path: Path) -> None:
    """mawk exits with 2 if read(2) fails, as for the file of a process that has just ended."""
    run, failed = f"race-{os.getpid()}-{len(part)}", shlex.quote(str(tmp_path / "failed"))
    agent = tmp_path / "runs" / run / "agent.zip"
    agent.parent.mkdir(parents=True)
    agent.write_text("import time; time.sleep(60)")
    once = f"case $1 in *{shlex.quote(part)}*) [ -e {failed} ] || {{ : >{failed}; return 2; }} ;; esac"
    script = f'awk() {{ {once}; command awk "$@"; }}\n' + live_runs_command(with_programs=True).script
    process = subprocess.Popen([sys.executable, "-IS", str(agent), "run.rank"])
    try:
        found = look(["sh"], script)
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "failed").exists()
    assert found is not None
    assert run in [each.run for each in found.runs.runs]


@linux
@pytest.mark.skipif(os.getuid() != 0, reason="the lock of this machine is not ours")
@pytest.mark.parametrize(
    "command",
    ["exec -a ipexctl-host-lock flock /proc sleep 60", "flock /proc sh -c 'sleep 60; true' ipexctl-host-lock strange"],
)
def test_whoever_holds_the_lock_is_named(command: str) -> None:
    """Either as the holder or as a start of a run, also a stranger that has the words of one."""
    become = f"setpriv --reuid {NOBODY} bash -c {shlex.quote(command)} & sleep 1; "
    found = look(["unshare", "-pf", "--mount-proc", "bash"], become + live_runs_command().script)
    assert found is not None
    named = [each.account for each in found.runs.runs] + [each.account for each in (found.runs.holder,) if each]
    assert named == ["nobody"]


@linux
def test_the_process_that_holds_the_lock_of_a_host_is_found(tmp_path: Path) -> None:
    mounts, locks = tmp_path / "mountinfo", tmp_path / "locks"
    mounts.write_text("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n24 20 0:300 / /proc rw,nosuid - proc proc rw\n")
    pid = os.getpid()
    locks.write_text(
        f"1: FLOCK  ADVISORY  WRITE {pid} 00:12c:1 0 EOF\n"
        f"2: FLOCK  ADVISORY  WRITE {pid} 00:12c:2 0 EOF\n"
        f"3: POSIX  ADVISORY  WRITE {pid} 00:12c:1 0 EOF\n"
        f"1: -> FLOCK  ADVISORY  WRITE {pid} 00:12c:1 0 EOF\n"
        "4: FLOCK  ADVISORY  WRITE 99999999 00:12c:1 0 EOF\n"
    )
    programs = Path(live_runs.__file__).with_name("probe")
    argv = ["awk", "-f", f"{programs}/locks.awk", "-f", f"{programs}/processes.awk", str(mounts), str(locks)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    words = line.split(None, 3)
    assert words[:3] == [str(pid), str(os.getuid()), str(own_identity().start)]


@linux
@pytest.mark.parametrize("shell", SHELLS)
def test_programs_that_use_cores_are_named_with_their_script_alone(shell: list[str], tmp_path: Path) -> None:
    burn = "while :; do :; done"
    evil = tmp_path / "e\x1b[1m\nrun.busy 1 0 1 99 x.sh"
    evil.write_text(burn)
    commands = [["/bin/sh", "-e", str(evil), "--password", "secret"], ["/bin/sh", "-c", burn, "secret"]]
    processes = [subprocess.Popen(command) for command in commands]
    script = live_runs_command(with_programs=True).script
    expected = {"sh e[1m?run.busy 1 0 1 99 x.sh", "sh"}
    found: dict[str, BusyProgram] = {}

    def are_named() -> bool:
        """False as long as other tests leave them too little of the cores."""
        done = subprocess.run([*shell, "-c", script], capture_output=True, text=True, timeout=60)
        assert "secret" not in done.stdout
        snapshot = read_host_snapshot(done.stdout)
        assert snapshot is not None
        found.update((program.name, program) for program in snapshot.programs if program.uid == os.getuid())
        return expected <= set(found)

    try:
        wait_until(are_named, 60)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    program = found["sh e[1m?run.busy 1 0 1 99 x.sh"]
    assert program.account == getpass.getuser()
    assert 0.1 <= program.cores <= 1.2
    assert program.since is not None
    assert abs(program.since - time.time()) < 120
