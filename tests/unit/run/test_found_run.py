"""Which of the runs in the homes of hosts a word means, and who is its node0."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipexctl.errors import CallError, UserError
from ipexctl.hosts.host import Host
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.plan import HostPlan, Plan, RankPlan, to_json
from ipexctl.option_declaration import CallOptions
from ipexctl.remote.connector import ConnectOptions
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.remote.reply import Reply
from ipexctl.run import found_run
from ipexctl.run.found_run import RunInHome, choose_run

RUN = "train-1120-132512-9f3a"
HOSTS = tuple(
    HostPlan(name, f"10.0.0.{at}", name, (RankPlan(at, 0, name, (), 1),), None) for at, name in enumerate("ab")
)
ASKED = Asked(argv=("train.py",))
PLAN = Plan(RUN, "/h", "a", ASKED, hosts=HOSTS, stores={"a": "a", "b": "b"}, python="/env/bin/python")
NODE0, OTHER = RunInHome((RUN,), PLAN, 5.0, True), RunInHome((RUN,), PLAN, 5.0)


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
    with pytest.raises(UserError, match="no run 'x' in the home of this account on a"):
        choose_run("x", {"a": RunInHome(())}, {})
    with pytest.raises(CallError, match="b: it does not answer") as caught:
        choose_run("x", {"a": RunInHome(())}, {"b": Unreachable("it does not answer")})
    assert caught.value.exit_code == 3
    with pytest.raises(UserError, match="its record on a") as wrong:
        choose_run(RUN, {"b": OTHER}, {})
    assert wrong.value.fix == "add it: --hosts a"


def test_the_record_reaches_only_hosts_of_the_call_and_tells_what_to_type() -> None:
    hosts = [Host("x", "10.0.0.0", user="me"), Host("b", "10.0.0.9", user="me")]
    options = CallOptions(" -H team/hostfile")
    record = found_run._record(hosts[0], PLAN, 5.0, hosts[:1], ConnectOptions(), options)
    assert (record.node0, record.nodes) == (replace(hosts[0], name="a"), (replace(hosts[0], name="a"),))
    record = found_run._record(hosts[0], PLAN, 5.0, hosts, ConnectOptions(), options)
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
        found_run._read(Reply({"names": [RUN], "plan": document, "at": 1.0, "is_node0": True}))
