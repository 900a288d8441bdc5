"""Parsing probes, whole, cut and damaged: CPUs, the address of the connection, stores, runs that are alive."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from case_table import case_table
from fakes import FakeSession
from ipexctl.addons.lab.cpu_profiles import CPU_PROFILES, CpuProfile, cpus
from ipexctl.facts import cpu as cpu_facts
from ipexctl.facts.cpu import Cpu, CpuList, parse_cpulist, tier_of
from ipexctl.facts.facts import Facts, addresses_among, parse, to_json
from ipexctl.facts.gather import gather_facts
from ipexctl.facts.live_runs import (
    BusyProgram,
    HostSnapshot,
    RunOnHost,
    RunsOnHost,
    WaitingCall,
    parse_live_runs,
    read_host_snapshot,
)
from ipexctl.facts.network_facts import Address, Network, Nic
from ipexctl.facts.probe import read_answers
from ipexctl.facts.system_facts import System, parse_mount, store_token
from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector, OpenHosts, SessionPool
from recorded_probes import MACHINES, NAMES, RECORDED, TIERS, recorded

if TYPE_CHECKING:
    from collections.abc import Callable

SECTIONS = to_json(Facts()).keys()


def document(text: str) -> dict[str, Any]:
    """The facts as a user reads them: JSON without NaN."""
    found: dict[str, Any] = json.loads(json.dumps(to_json(parse(text)), allow_nan=False))
    return found


@pytest.mark.parametrize("cpu_profile", CPU_PROFILES, ids=lambda cpu_profile: cpu_profile.name)
def test_every_cpu_profile_is_recognized(cpu_profile: CpuProfile) -> None:
    facts = parse(recorded(f"lab-{cpu_profile.name}"))
    cpu = facts.cpu
    assert (cpu.vendor, cpu.model_name, cpu.arch) == (cpu_profile.vendor, cpu_profile.model_name, cpu_profile.arch)
    assert cpu.sockets == cpu_profile.sockets
    assert cpu.cores == cpu_profile.sockets * cpu_profile.cores
    assert cpu.threads == cpu_profile.cpus
    assert cpu.numa_nodes == cpu_profile.nodes
    for node in cpu.numa:
        assert list(node.cpus) == [one.number for one in cpus(cpu_profile) if one.node == node.number]
    assert {len(core) for core in cpu.siblings} == {cpu_profile.threads}
    assert cpu.tier == TIERS[cpu_profile.name]
    assert facts.complete
    assert facts.cut == ()


@pytest.mark.parametrize("cpu_profile", CPU_PROFILES, ids=lambda cpu_profile: cpu_profile.name)
def test_affinity_of_the_whole_real_machine_does_not_limit_a_cpu_profile(cpu_profile: CpuProfile) -> None:
    text = recorded(f"lab-{cpu_profile.name}")
    cpu = parse(text).cpu
    assert cpu.allowed == cpu.cores
    held_back = text.replace("Cpus_allowed:\t3", "Cpus_allowed:\t1")
    held_back = held_back.replace("status Cpus_allowed_list:\t0-1", "status Cpus_allowed_list:\t0")
    assert parse(held_back).cpu.allowed == 1


def test_amx_fp16_is_inferred_from_the_cpu_model() -> None:
    rapids = parse(recorded("lab-graniterapids")).cpu.isa
    emerald = parse(recorded("lab-emerald-rapids")).cpu.isa
    assert (rapids["amx_fp16"], emerald["amx_fp16"]) == (True, False)


def differences(expected: Any, found: Any, at: str = "facts") -> list[str]:
    """The places where `found` differs from `expected`; additional keys of `found` are ignored."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return [line for key in expected for line in differences(expected[key], found.get(key), f"{at}.{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for index, (a, b) in pairs for line in differences(a, b, f"{at}[{index}]")]
    return [] if expected == found else [f"{at}: expected {expected!r}, found {found!r}"]


@pytest.mark.parametrize("name", MACHINES)
def test_recorded_machines_give_the_expected_facts(name: str) -> None:
    expected = json.loads((RECORDED / f"{name}.json").read_text())
    assert differences(expected, to_json(parse(recorded(name)))) == []


@pytest.mark.parametrize(
    ("lines", "offline"),
    [
        ("cpu.offline 2,5\ncpu.present 0-7", "2,5"),
        ("cpu.offline 2,8-15\ncpu.present 0-7", "2"),
        ("cpu.offline 8-15\ncpu.present 0-7\ncpu.smt notsupported", ""),
        ("cpu.offline 4-7\ncpu.present 0-7\ncpu.smt on", "4-7"),
        ("cpu.offline 4-7\ncpu.present 0-7\ncpu.smt off", ""),
        ("cpu.offline 4-7\ncpu.present 0-7\ncpu.smt forceoff", ""),
        ("cpu.offline 4-7", ""),
    ],
)
def test_numbers_of_processors_that_are_not_there_are_not_switched_off(lines: str, offline: str) -> None:
    """A virtual machine keeps numbers for more; without hyper-threading, half of the numbers have no use."""
    assert str(parse(f"{lines}\n").cpu.offline or "") == offline


def test_documented_cpu_fields_exist() -> None:
    cpu = to_json(Facts())["cpu"]
    promised = "vendor model_name sockets cores threads allowed numa_nodes isa tier"
    assert set(promised.split()) <= set(cpu)
    isa = "avx2 avx512f avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16 amx_fp16"
    assert list(cpu["isa"]) == isa.split()


def test_fib_trie_address_without_an_interface_is_left_out() -> None:
    """The variables of ranks need the name of an interface; an empty one would be wrong."""
    table = "== proc.fib_trie\n|-- 10.0.0.7\n   /32 host LOCAL\n|-- 127.0.0.1\n   /32 host LOCAL\n==\n"
    nics = parse(f"nic eth0 type=1\n{table}").network.nics
    assert [(nic.name, [item.address for item in nic.addresses]) for nic in nics] == [
        ("eth0", []),
        ("lo", ["127.0.0.1"]),
    ]


def test_empty_probe_gives_empty_facts() -> None:
    facts = parse("")
    assert facts.cpu.tier is None
    assert facts.cpu.allowed is None
    assert not facts.complete
    assert facts.cut == ("kernel", "network", "names", "home", "programs")
    json.dumps(to_json(facts), allow_nan=False)


@pytest.mark.parametrize("line", ["resolved   ", "resolved \t", "resolved x", "resolved 1 -", "rdma   ", "rdma |"])
def test_lines_about_the_network_without_their_words_are_accepted(line: str) -> None:
    assert parse(f"uname Linux n1\n{line}\n").network.canonical is None


def test_malformed_lines_about_runs_are_ignored() -> None:
    activity = parse(
        "run a b\nrun ../../x\nrun $(id)\nrun fine\n"
        "run.ended fine\nrun.ended $(id)\nrun.ended over\n"
        'run.supervisor fine 7 {"pid": 1, "start": 7, "host": 5}\n'
        'run.supervisor fine ? {"pid": 1, "start": 7}\nrun.supervisor fine - {"machine": "m", "start": 7}\n'
        "run.supervisor fine - []\nrun.supervisor fine - {\n"
        'run.supervisor $(id) - {"start": 7}\nrun.supervisor fine\n'
        "process 12 - fine\nprocess 13 99 $(id)\nprocess 14 99 a b\nprocess x 99 fine\nprocess 0 9 fine\n"
        "process 15 ? fine\nprocess 16 99 fine\nprocess 16 99 over\n"
    ).activity
    assert activity.runs == ("fine",)
    assert activity.ended == ("over",)
    assert [(each.run, each.host, each.is_here) for each in activity.supervisors] == [
        ("fine", None, True), ("fine", None, None), ("fine", None, None),
    ]  # fmt: skip
    assert [(each.pid, each.start, each.run) for each in activity.processes] == [
        (15, None, "fine"), (16, 99, "fine"),
    ]  # fmt: skip


PIECES = st.sampled_from(NAMES)


@settings(deadline=None)
@given(PIECES, st.data())
def test_truncated_probe_gives_no_wrong_cpu_facts(name: str, data: st.DataObject) -> None:
    whole = recorded(name)
    facts = parse(whole[: data.draw(st.integers(0, len(whole)))])
    true = parse(whole)
    json.dumps(to_json(facts), allow_nan=False)
    for field in ("cores", "sockets", "model_name", "vendor"):
        assert getattr(facts.cpu, field) in (None, getattr(true.cpu, field))
    assert facts.network.nics == true.network.nics or len(facts.network.nics) <= len(true.network.nics)


@settings(deadline=None)
@given(PIECES, st.data())
def test_missing_repeated_or_reordered_lines_are_accepted(name: str, data: st.DataObject) -> None:
    lines = recorded(name).splitlines(keepends=True)
    chosen = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=2 * len(lines)))
    assert document("".join(lines[index] for index in chosen)).keys() == SECTIONS
    gone = set(data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=8)))
    facts = parse("".join(line for index, line in enumerate(lines) if index not in gone))
    assert facts.cpu.cores in (None, parse(recorded(name)).cpu.cores)


@settings(deadline=None)
@given(PIECES, st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6)), max_size=30))
def test_damaged_bytes_are_accepted(name: str, mangled: list[tuple[float, bytes]]) -> None:
    raw = bytearray(recorded(name).encode())
    for place, replacement in mangled:
        at = int(place * len(raw))
        raw[at : at + len(replacement)] = replacement
    assert document(raw.decode("utf-8", "replace")).keys() == SECTIONS


@settings(deadline=None)
@given(st.text(max_size=400))
def test_any_text_is_accepted(text: str) -> None:
    assert document(text).keys() == SECTIONS


RECORDED_KEYS = {line.split(" ", 1)[0] for name in NAMES for line in recorded(name).splitlines() if " " in line}
KEYS = sorted(RECORDED_KEYS | {"run.supervisor", "run.ended", "process"})


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KEYS), st.text(alphabet="0123456789abcx-,:./|=()%# @\\\t", max_size=40))))
def test_any_value_of_a_known_key_is_accepted(lines: list[tuple[str, str]]) -> None:
    assert document("".join(f"{key} {value}\n" for key, value in lines)).keys() == SECTIONS


# Shared homes, recognised from the kernel's description of the file system


LOCAL = "29 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"
NFS = "71 60 0:43 / /home rw shared:31 - nfs4 nfs1.hpc.example.edu:/export/home rw,vers=4.1,addr={address}"


def token(row: str, path: str, boot: str = "boot-1", inode: int | None = None) -> str | None:
    mount = parse_mount(row)
    assert mount is not None
    return store_token(path, mount, boot, inode)


def test_nfs_store_does_not_depend_on_the_server_address() -> None:
    one = token(NFS.format(address="10.1.0.5"), "/home/me", "boot-1")
    other = token(NFS.format(address="10.1.0.6"), "/home/me", "boot-2")
    assert one == other == "nfs:nfs1:/export/home/me"


@pytest.mark.parametrize(
    "row",
    [
        "71 60 0:44 / /home/me rw - nfs4 nfs1.hpc.example.edu:/export/home/me rw",
        "71 60 0:44 / /home rw - nfs nfs1:/export/home/ rw,vers=3",
        "71 60 0:44 /home /home rw - nfs4 nfs1:/export rw",
    ],
)
def test_nfs_store_does_not_depend_on_automounter_protocol_or_bind_mount(row: str) -> None:
    assert token(row, "/home/me", "boot-2") == token(NFS, "/home/me")


@pytest.mark.parametrize(
    ("row", "path"),
    [
        (NFS.replace("nfs1", "nfs2"), "/home/me"),
        (NFS.replace("/export/home", "/export/nodes/7"), "/home/me"),
        (NFS, "/home/you"),
        (LOCAL, "/home/me"),
    ],
)
def test_another_server_export_or_directory_is_another_store(row: str, path: str) -> None:
    assert token(row, path) != token(NFS, "/home/me")


def test_local_disks_of_cloned_machines_are_different_stores() -> None:
    assert token(LOCAL, "/home/me", "boot-1") != token(LOCAL, "/home/me", "boot-2")


def test_containers_that_mount_the_same_directory_share_a_store() -> None:
    one = "812 601 8:1 /srv/shared /home/me rw - ext4 /dev/sda1 rw"
    other = "813 602 8:1 /srv/shared /data rw - ext4 /dev/sda1 rw"
    assert token(one, "/home/me") == token(other, "/data") == token(LOCAL, "/srv/shared")
    assert token("814 603 0:57 / / rw - overlay overlay rw", "/home/me") != token(one, "/home/me")


def test_virtiofs_stores_are_distinguished_by_inode() -> None:
    row = "40 1 0:30 / /home rw - virtiofs home rw"
    assert token(row, "/home/me", inode=10) == token(row, "/home/me", "boot-2", inode=10)
    assert token(row, "/home/me", inode=10) != token(row, "/home/me", inode=11)
    assert token(row, "/home/me") is None


def test_lustre_store_does_not_depend_on_the_order_of_servers() -> None:
    one = "72 60 0:44 / /scratch rw - lustre 10.2.0.1@o2ib:10.2.0.2@o2ib:/scratch rw"
    other = "72 60 0:45 / /scratch rw - lustre 10.2.0.2@o2ib:10.2.0.1@o2ib:/scratch rw"
    assert token(one, "/scratch/me") == token(other, "/scratch/me", "boot-2") == "lustre:/scratch/me"


def test_mountinfo_paths_with_spaces_are_parsed() -> None:
    mount = parse_mount(r"36 35 98:0 / /mnt/my\040disk rw - cifs //filer/my\040share rw")
    assert mount is not None
    assert (mount.point, mount.source) == ("/mnt/my disk", "//filer/my share")


_AVX512 = "avx2 fma avx512f avx512bw avx512dq avx512vl".split()  # noqa: SIM905


@pytest.mark.parametrize(
    ("flags", "tier"),
    [
        ([], None),
        (["sse4_2", "avx"], "unsupported"),
        (["avx2"], "unsupported"),
        (["avx2", "fma"], "avx2"),
        (["avx2", "fma", "avx512f", "avx512cd", "avx512er", "avx512pf"], "avx2"),
        (_AVX512, "avx512"),
        ([*_AVX512, "avx512_bf16"], "avx512_bf16"),
        ([*_AVX512, "amx_tile", "amx_bf16"], "avx512"),
        ([*_AVX512, "avx512_bf16", "amx_tile", "amx_int8"], "avx512_bf16"),
        ([*_AVX512, "avx512_bf16", "amx_tile", "amx_bf16"], "amx"),
    ],
)
def test_tier_is_the_strongest_with_all_its_flags(flags: list[str], tier: str | None) -> None:
    assert tier_of("x86_64", flags) == tier


def test_other_architectures_are_unsupported() -> None:
    assert tier_of("aarch64", ["sve", "bf16"]) == "unsupported"
    assert tier_of("aarch64", []) == "unsupported"
    assert tier_of("i686", ["avx2", "fma"]) == "unsupported"


@given(st.sampled_from(CPU_PROFILES), st.data())
def test_removing_flags_never_raises_the_tier(cpu_profile: object, data: st.DataObject) -> None:
    flags = getattr(cpu_profile, "flags").split()  # noqa: B009  # any CPU profile
    fewer = data.draw(st.sets(st.sampled_from(flags)))
    more, less = tier_of("x86_64", flags), tier_of("x86_64", fewer or {"fpu"})
    assert more is not None
    assert less is not None
    assert cpu_facts.TIERS.index(less) <= cpu_facts.TIERS.index(more)


def _cpu(affinity: str | None = None, quota: float | None = None) -> Cpu:
    """Two cores of two threads a socket, two sockets."""
    siblings = tuple(CpuList((core, core + 4)) for core in range(4))
    mask = parse_cpulist(affinity) if affinity else None
    return Cpu(cores=4, threads=8, online=parse_cpulist("0-7"), siblings=siblings, affinity=mask, quota=quota)


@case_table
def test_allowed_cores_are_limited_by_affinity_and_quota(
    affinity: str | None, quota: float | None, allowed: int
) -> None:
    assert _cpu(affinity, quota).allowed == allowed


def test_allowed_threads_of_each_core() -> None:
    assert [str(core) for core in _cpu("1,2,6").allowed_cores] == ["1", "2,6"]


@case_table
def test_invalid_cpu_lists_are_none(text: str) -> None:
    assert parse_cpulist(text) is None


@given(st.sets(st.integers(0, 511), min_size=1))
def test_cpu_list_is_parsed_back_from_its_text(numbers: set[int]) -> None:
    assert parse_cpulist(str(CpuList.of(numbers))) == CpuList.of(numbers)
    assert str(CpuList.of((5, 0, 1, 7, 8))) == "0-1,5,7-8"


NAMED = [Host("a", "a"), Host("b", "b")]


def two_networks(number: int, reached: str | None) -> Facts:
    nics = [Nic(f"eth{at}", "ethernet", addresses=(Address(f"10.{at}.0.{number}", 24),)) for at in (1, 9)]
    return Facts(network=Network(nics=tuple(nics), reached=reached))


def test_hosts_given_by_name_use_the_network_of_the_ssh_connection() -> None:
    facts = {"a": two_networks(1, "10.9.0.1"), "b": two_networks(2, "10.9.0.2")}
    assert addresses_among(NAMED, facts, None) == {"a": "10.9.0.1", "b": "10.9.0.2"}
    unknown = {"a": two_networks(1, None), "b": two_networks(2, None)}
    assert addresses_among(NAMED, unknown, None) == {"a": "10.1.0.1", "b": "10.1.0.2"}
    by_address = [Host("a", "10.9.0.1"), Host("b", "10.9.0.2")]
    assert addresses_among(by_address, unknown, None) == {"a": "10.9.0.1", "b": "10.9.0.2"}


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("node1", None),
        ("$(id)", None),
    ],
)
def test_invalid_reached_addresses_are_ignored(line: str, reached: str | None) -> None:
    facts = parse(f"reached {line}\n")
    assert facts.network.reached == reached
    assert "reached" not in to_json(facts)["network"]


class _SshSession(FakeSession):
    is_login = True


@pytest.mark.parametrize(("session", "reached"), [(_SshSession, "10.0.0.1"), (FakeSession, None)])
def test_reached_address_of_local_sessions_is_ignored(
    session: Callable[..., FakeSession], reached: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SessionPool, "session", lambda _, host: session(host, stdout=b"reached 10.0.0.1\n"))
    with Connector(ConnectOptions()) as connector, SessionPool(connector, Cancel(), forks=1) as pool:
        (answer,) = gather_facts(OpenHosts((Host("a", "a"),), pool))
    assert answer.facts is not None
    assert answer.facts.network.reached == reached


LOOK = """\
run.boot 1000000
run.program 70 supervisor train-1 1001 500
run.account 1001 alice
run.program 71 rank train-1 1001 600
run.program 72 rank train-1 1001 620
run.program 80 lock other-2 1002 90000
run.program 81 lock other-2 1002 90010
run.cores 71 0-3
run.cores 72 4
run.cores 72 4-7
machine 5c-2 pid:[41]
looked yes
"""


def look(text: str) -> RunsOnHost:
    found = read_host_snapshot(text)
    assert found is not None
    return found.runs


def test_programs_of_a_run_are_one_run_with_the_cores_of_its_ranks() -> None:
    lock, run = look(LOOK).runs
    assert run == RunOnHost("train-1", 1001, "alice", 1000005.0, CpuList.of(range(8)))
    assert lock == RunOnHost("other-2", 1002, "uid 1002", 1000900.0, CpuList(), is_starting=True)
    assert (run.account, lock.account) == ("alice", "uid 1002")


def test_a_run_whose_lock_is_still_there_is_running() -> None:
    text = LOOK.replace("looked", "run.program 90 lock train-1 1001 400\nlooked")
    assert look(text).runs[1] == look(LOOK).runs[1]


def test_the_same_id_of_two_accounts_is_two_runs() -> None:
    text = LOOK.replace("looked", "run.program 90 rank train-1 1003 400\nlooked")
    assert [(live.run, live.uid) for live in look(text).runs] == [
        ("other-2", 1002), ("train-1", 1001), ("train-1", 1003),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "run.program 70 rank ../x 1001 500",
        "run.program 70 rank $(id) 1001 500",
        "run.program 70 rank x me 500",
        "run.program 70 other x 1001 500",
        "run.program 70 rank",
    ],
)
def test_lines_that_no_probe_prints_count_for_nothing(line: str) -> None:
    assert look(f"{line}\nlooked yes\n").runs == ()


def test_names_of_accounts_are_matched() -> None:
    text = LOOK.replace("1001 alice", "1001 \x1b[31mroot")
    assert [live.account for live in look(text).runs] == ["uid 1002", "uid 1001"]


def test_the_look_of_ps_has_ranks_scripts_limits_and_programs() -> None:
    text = LOOK.replace(
        "looked",
        """run.program 70 supervisor train-1 1001 500 3600
run.rank 71
run.rank 71
run.rank 72
run.script 72 python3.11 train.py
run.busy 90 1003 7000 150 python3 x\x1b[1m y.py
run.busy 91 1001 7000 20 agent
run.busy 92 1001 7000
run.busy 93 me 7000 20 x
clock 1000900
uid 1003
looked""",
    )
    found = read_host_snapshot(text)
    assert found is not None
    run = found.runs.runs[1]
    assert (run.ranks, run.script, run.until) == (3, "train.py", 1000005.0 + 3600)
    assert (found.uid, found.clock) == (1003, 1000900.0)
    assert found.programs == (
        BusyProgram("python3 x\x1b[1m y.py", 1003, "uid 1003", 1000070.0, 1.5),
        BusyProgram("agent", 1001, "alice", 1000070.0, 0.2),
    )


@pytest.mark.parametrize(
    ("words", "script"),
    [("./a.out", "a.out"), ("python3 agent.zip", ""), ("python3", "python3"), ("sh a b.sh", "a b.sh")],
)
def test_the_script_of_a_run_is_that_of_its_interpreter(words: str, script: str) -> None:
    found = read_host_snapshot(LOOK.replace("looked", f"run.script 71 {words.removeprefix('./')}\nlooked"))
    assert found is not None
    assert found.runs.runs[1].script == script


def test_the_queue_of_a_host_has_the_order_in_which_its_places_began() -> None:
    text = LOOK.replace(
        "looked",
        """run.program 95 wait third 1001 900 600
run.program 96 wait first 1002 700 60
run.program 90 wait fourth 1001 901 600
run.program 94 wait second 1001 900 99999999999
run.program 97 wait ../x 1001 600 60
run.program 98 wait first 1002 950 60
looked""",
    )
    waiting = look(text).waiting
    assert [call.run for call in waiting] == ["first", "second", "third", "fourth"]
    assert waiting[0] == WaitingCall("first", 1002, "uid 1002", 1000007.0, 1000067.0)
    assert waiting[2].account == "alice"
    assert look(text).runs == look(LOOK).runs


def test_an_answer_without_its_end_is_none() -> None:
    assert read_host_snapshot(LOOK.replace("looked yes\n", "")) is None
    assert read_host_snapshot(LOOK) == HostSnapshot(look(LOOK), "5c-2 pid:[41]")
    assert look("looked yes\n") == RunsOnHost()
    assert look("run.hidden yes\nlooked yes\n") == RunsOnHost((), hides_others=True)
    assert parse_live_runs(read_answers("")) == RunsOnHost()


def test_a_new_bridge_makes_no_other_machine_but_a_container_is_known_by_its_virtual_card() -> None:
    card, bridge = (Nic(name, "ethernet", physical=name == "eth0", mac=f"02:{name}") for name in ("eth0", "tap0"))
    host = Facts(cpu=Cpu(model_name="Xeon"), system=System(boot="b1"), network=Network(nics=(card,)))
    bridged, container = (host._replace(network=Network(nics=nics)) for nics in ((card, bridge), (bridge,)))
    assert bridged.hardware == host.hardware != ""
    assert bridged.machine == host.machine == "b1/02:eth0"
    assert container.hardware not in ("", host.hardware)
    assert container.machine == "b1/02:tap0"


def test_a_cgroup_has_what_its_tightest_level_leaves() -> None:
    lines = ["meminfo MemTotal: 8388608 kB", "meminfo MemAvailable: 4194304 kB", "cgroup.memory.max 1073741824"]
    lines += [f"cgroup.memory.left {left}" for left in (700_000_000, 200_000_000)]
    lines += ["cgroup.memory.high max", "cgroup.memory.high 900000000", "cgroup.pids.left 52", "cgroup.pids.left 14"]
    facts = parse("".join(f"{line}\n" for line in lines))
    assert (facts.memory.limit, facts.memory.limit_left, facts.memory.free) == (1 << 30, 200_000_000, 200_000_000)
    assert (facts.memory.high, facts.limits.pids_left) == (900_000_000, 14)
    older = parse("".join(f"{line}\n" for line in lines[:3]))
    assert older.memory.free == 1 << 30
    assert older.limits.pids_left is None
