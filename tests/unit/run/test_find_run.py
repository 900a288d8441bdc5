"""Which of the runs in the homes of hosts a word means, and who is its node0."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from ipexctl.errors import CallError, IpexctlError, UserError
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.hosts.host import Host
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import HostPlan, Plan, RankPlan, to_json
from ipexctl.node.common.run_options import RunOptions
from ipexctl.node.run.runs import meant_runs
from ipexctl.option_declaration import NO_OPTIONS, CallOptions
from ipexctl.projects.root import ProjectHere
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector, OpenHosts, SessionPool
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.remote.reply import Reply
from ipexctl.run import find_run
from ipexctl.run.find_run import NoSuchRun, OwnRuns, RunInHome, choose_run, find_runs
from record_helpers import run_record

RUN = "train-1120-132512-9f3a"
HOSTS = tuple(
    HostPlan(name, f"10.0.0.{at}", name, (RankPlan(at, 0, name, (), 1),), None) for at, name in enumerate("ab")
)
ASKED = RunOptions(argv=("train.py",))
PLAN = Plan(RUN, "/h", "a", ASKED, hosts=HOSTS, stores={"a": "a", "b": "b"}, python="/env/bin/python")
DEAD = Unreachable("it does not answer")
NODE0, OTHER = RunInHome((RUN,), PLAN, 5.0, True), RunInHome((RUN,), PLAN, 5.0)


def opened_hosts(hosts: Sequence[Host], options: CallOptions = NO_OPTIONS) -> OpenHosts:
    return OpenHosts(tuple(hosts), SessionPool(Connector(ConnectOptions()), Cancel(), forks=1), options=options)


@pytest.mark.parametrize(
    ("word", "names", "meant"),
    [
        ("a-1", ["a-1", "a-11", "ba-1"], ["a-1"]),
        ("a", ["a-1", "ba-2"], ["a-1"]),
        ("-2", ["a-1", "ba-2"], ["ba-2"]),
        ("-", ["a-1", "ba-2"], ["a-1", "ba-2"]),
        ("x", ["a-1"], []),
        ("", ["a-1"], []),
    ],
)
def test_an_id_comes_before_its_beginning_and_that_before_any_part(
    word: str, names: list[str], meant: list[str]
) -> None:
    assert meant_runs(word, names) == meant


NO_C = "there is no run 'c'"
NONE_HERE = "no run was started from the control machine yet"
FINDS: tuple[tuple[str, str, tuple[str, ...], dict[str, tuple[str, ...] | None] | None, str], ...] = (
    # word, its hosts: named or by default, own records, home of each host (None: dead; no hosts at all), the answer
    ("a-1", "default", ("a-1",), {"x": ("b-1",)}, "own a-1"),
    ("a", "default", ("a-1",), {"x": ("a-2",)}, "own a-1"),
    ("1", "default", ("a-1", "b-1"), {"x": ("c-1",)}, "2 runs here have '1' in their id: a-1, b-1"),
    ("last", "default", ("a-1",), {"x": ("b-1",)}, "own a-1"),
    ("b", "default", ("a-1",), {"x": ("b-1",), "y": ()}, "found b-1"),
    ("b", "default", ("a-1",), {"x": None, "y": ("b-1",)}, "found b-1"),
    (
        "b",
        "default",
        ("a-1",),
        {"x": ("b-1",), "y": ("b-2",)},
        "2 runs on these hosts have 'b' in their id: b-1, b-2",
    ),
    ("b-1", "default", ("a-1",), {"x": ("b-1", "b-12"), "y": ("b-2",)}, "found b-1"),
    ("last", "default", (), {"x": ("b-1",)}, "found b-1"),
    (
        "c",
        "default",
        ("a-1",),
        {"x": ("b-1",)},
        "there is no run 'c'; there is no run 'c' in the home of this account on x",
    ),
    ("c", "default", ("a-1",), {"x": None}, f"{NO_C}; x: it does not answer"),
    ("c", "default", ("a-1",), None, NO_C),
    ("last", "default", (), None, NONE_HERE),
    ("a-1", "named", ("a-1",), {"x": ("a-1",)}, "own a-1"),
    ("a-1", "named", ("a-1",), {"x": ("b-1",)}, "own a-1"),
    ("a-1", "named", ("a-1",), {"x": None}, "own a-1"),
    ("a", "named", ("a-1",), {"x": ("a-2",)}, "found a-2"),
    ("a", "named", ("a-1",), {"x": None}, "x: it does not answer"),
    ("last", "named", ("a-1",), {"x": ("b-1",)}, "found b-1"),
    ("last", "named", ("a-1",), {"x": ()}, "there is no run in the home of this account on x"),
)


@pytest.mark.parametrize(("word", "hosts", "own", "homes", "answer"), FINDS)
def test_the_records_answer_first_and_the_hosts_if_they_know_nothing_or_are_named(
    word: str,
    hosts: str,
    own: tuple[str, ...],
    homes: dict[str, tuple[str, ...] | None] | None,
    answer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for run in own:
        RunRegistry().save(run_record(run, Host("x", "10.0.0.0"), "/h", "python3", project=str(tmp_path)))
    known = {name: home_of(word, runs) for name, runs in (homes or {}).items() if runs is not None}
    dead: dict[str, HostError] = {name: DEAD for name, runs in (homes or {}).items() if runs is None}

    def look(word: str, opened: OpenHosts) -> RunRecord:
        node0, plan, at = choose_run(word, known, dead)
        return find_run._record(Host(node0, "10.0.0.0"), plan, at, opened)

    monkeypatch.setattr(find_run, "_find_on_hosts", look)
    monkeypatch.setattr("ipexctl.run.find_run.ProjectHere.find", lambda: ProjectHere(tmp_path, tmp_path))
    opened = opened_hosts([Host("x", "10.0.0.9", user="me")])
    open_hosts = (lambda: None) if homes is None else (lambda: nullcontext(opened))
    try:
        (found,) = find_runs([word], open_hosts, hosts_first=hosts == "named")
        said = f"{'own' if found.is_kept else 'found'} {found.id}"
    except IpexctlError as error:
        said = error.message
    assert said == answer


def home_of(word: str, runs: Sequence[str]) -> RunInHome:
    """As the agent answers."""
    names = tuple(runs[-1:] if word == "last" else meant_runs(word, runs))
    plan = PLAN._replace(id=names[0]) if len(names) == 1 else None
    return RunInHome(names, plan, 5.0, True if plan else None)


def test_an_own_run_is_reached_by_the_hosts_of_the_call_at_its_own_addresses() -> None:
    record = run_record("a-1", Host("n", "10.0.0.1"), "/h", "python3", nodes=(Host("n", "10.0.0.1"), Host("m", "m")))
    own = OwnRuns({"a-1": record})
    claimed = replace(record, node0=Host("n", "10.6.6.6"), is_kept=False, host_keys="off", transport_name="openssh")
    call = [Host("other", "10.0.0.1", user="me"), Host("evil", "10.6.6.6", user="me")]
    found = own.with_own(claimed, opened_hosts(call))
    assert found.node0 == Host("n", "10.0.0.1", user="me")
    assert found.nodes == (found.node0, Host("m", "m"))
    assert (found.is_kept, found.host_keys, found.transport_name) == (True, "off", "openssh")


@pytest.mark.parametrize(
    ("found", "node0"),
    [
        ({"b": OTHER, "a": NODE0}, "a"),
        ({"x": NODE0, "b": OTHER}, "x"),  # another name of node0
        ({"b": NODE0._replace(is_node0=False), "a": NODE0._replace(is_node0=False)}, "a"),  # one home, another boot
        ({"b": NODE0._replace(is_node0=False), "a": OTHER}, "b"),
        ({"a": NODE0, "b": RunInHome(())}, "a"),
    ],
)
def test_node0_is_the_host_of_the_supervisor(found: dict[str, RunInHome], node0: str) -> None:
    for word in (RUN, "9f3a", "last"):
        assert choose_run(word, found, {}) == (node0, PLAN, 5.0)


def test_a_part_must_be_unique_and_a_whole_id_always_is() -> None:
    more = RunInHome((RUN, f"{RUN}0"))
    with pytest.raises(UserError, match=f"2 runs.*{RUN}"):
        choose_run("train", {"a": more}, {})
    assert choose_run(RUN, {"a": NODE0, "b": RunInHome((f"{RUN}0",))}, {})[0] == "a"
    newest = NODE0._replace(names=("new",), plan=PLAN._replace(id="new"), at=9.0)
    assert choose_run("last", {"a": NODE0, "b": newest}, {})[:2] == ("b", newest.plan)


def test_a_run_that_is_not_there_is_told_with_the_hosts_that_did_not_answer() -> None:
    with pytest.raises(NoSuchRun, match="no run 'x' in the home of this account on a") as caught_none:
        choose_run("x", {"a": RunInHome(())}, {}, CallOptions(" -H team -l b --iface eth0"))
    assert caught_none.value.fix == "ipexctl ps -H team shows what runs there"
    with pytest.raises(CallError, match="b: it does not answer") as caught:
        choose_run("x", {"a": RunInHome(())}, {"b": Unreachable("it does not answer")})
    assert caught.value.exit_code == 3
    with pytest.raises(UserError, match="its record on a") as wrong:
        choose_run(RUN, {"b": OTHER}, {})
    assert wrong.value.fix == "add it: --hosts a"


def test_the_record_reaches_only_hosts_of_the_call_and_tells_what_to_type() -> None:
    hosts = [Host("x", "10.0.0.0", user="me"), Host("b", "10.0.0.9", user="me")]
    options = CallOptions(" -H team/hostfile")
    opened = opened_hosts(hosts, options)
    record = find_run._record(hosts[0], PLAN, 5.0, opened.only(hosts[:1]))
    assert (record.node0, record.nodes) == (replace(hosts[0], name="a"), (replace(hosts[0], name="a"),))
    record = find_run._record(hosts[0], PLAN, 5.0, opened)
    assert record.nodes[1:] == (hosts[1],)
    assert (record.rundir, record.python, record.is_kept) == (f"/h/runs/{RUN}", "/env/bin/python", False)
    text = Fix(f"`ipexctl why {RUN}`, or `ipexctl fetch {RUN}:out .` and `ipexctl doctor`")
    assert record.call_text(text) == (
        f"ipexctl why {RUN} -H team/hostfile, or ipexctl fetch {RUN}:out -H team/hostfile . and ipexctl doctor"
    )


@pytest.mark.parametrize(
    "plan",
    [
        {"id": "../../etc"},
        PLAN._replace(node0="../x"),
        PLAN._replace(id="../../etc"),
        PLAN._replace(hosts=(HOSTS[0]._replace(name="a/../../b"),)),
    ],
)
def test_a_record_with_names_that_lead_elsewhere_fails_its_host(plan: object) -> None:
    document = to_json(plan) if isinstance(plan, Plan) else plan
    with pytest.raises(HostError):
        find_run._read(Reply({"names": [RUN], "plan": document, "at": 1.0, "is_node0": True}))
