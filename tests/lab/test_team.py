"""Several people on the same hosts: whose run it is, reading a colleague's run, and what other accounts see of it."""

from __future__ import annotations

import json
import re
import shlex
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agent_helpers import wait_until
from ipexctl.addons.lab.lab_plan import LabSpec
from lab_run_helpers import WAIT_SCRIPT, Cluster

MPI_LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Person(Cluster):
    """A user of the control machine, with an own state directory."""

    name: str = ""

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "USER": self.name, "LOGNAME": self.name}

    @property
    def kept(self) -> list[str]:
        return sorted(str(path) for path in self.state.glob("ipexctl/runs/*-[0-9]*"))

    def seen(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.good("ps", "-H", self.lab.hostfile, "--json"))
        return document


@pytest.fixture
def people(cluster: Cluster) -> tuple[Person, Person]:
    cluster.write("waits.py", WAIT_SCRIPT)
    cluster.write("short.py", "print('done')\n")
    parts = (cluster.lab, cluster.project)
    ann, ben = (Person(*parts, cluster.state / name, name=name) for name in ("ann", "ben"))
    for person in (ann, ben):
        person.state.mkdir(parents=True)
    return ann, ben


def begun(person: Person, *options: object) -> str:
    run = person.run("--detach", "--ppn", "1", *options, "waits.py").out.strip()
    person.wait_until(run, "running", 60)
    return run


def ways_to_hosts(person: Person, place: Path) -> list[tuple[Person, tuple[object, ...], dict[str, str]]]:
    """Each way to name the hosts and to log in to them, as options and environment."""
    hostfile, beside = person.lab.hostfile, place / "beside"
    lab, configs = hostfile.parent, [place / name for name in ("login", "all")]
    beside.mkdir()
    plain = beside / "hostfile"
    plain.write_text(re.sub(r" (identity|known_hosts)=\S+", "", hostfile.read_text()))
    login = f"identity = '{lab}/key'\nknown-hosts = '{lab}/known_hosts'\n"
    for config, text in zip(configs, (login, f"hostfile = '{plain}'\n{login}"), strict=True):
        (config / "ipexctl").mkdir(parents=True)
        (config / "ipexctl/config.toml").write_text(text)
    of_login, of_all = ({"XDG_CONFIG_HOME": str(config)} for config in configs)
    return [
        (person, (), {"IPEXCTL_HOSTFILE": str(hostfile)}),
        (replace(person, project=beside), (), of_login),
        (person, ("-H", lab / "inventory.ini"), {}),
        (person, ("-H", plain), of_login),
        (person, (), of_all),
    ]


def test_a_colleague_sees_whose_run_it_is_reads_it_and_stops_it_only_by_force(
    people: tuple[Person, Person], tmp_path: Path
) -> None:
    ann, ben = people
    run = begun(ann, "--tag", "lr 3e-4")
    on = ("-H", ann.lab.hostfile)
    (alive,) = ben.seen()["runs"]
    assert (alive["id"], alive["by"]["user"], alive["tag"]) == (run, "ann", "lr 3e-4")
    refused = ben.run("--exclusive", "short.py", rc=3)
    assert "ann@" in refused.err
    assert "lr 3e-4" in refused.err

    waiting = ben.begin("--wait", "200", "--tag", "next", "short.py")
    wait_until(lambda: ann.seen()["waiting"], 60)
    (call,) = ann.seen()["waiting"]
    assert (call["by"]["user"], call["script"], call["tag"]) == ("ben", "short.py", "next")

    part = run.rpartition("-")[2]
    assert sorted(ben.good("logs", part, *on).splitlines()) == ["[0] here 0", "[1] here 1"]
    why = json.loads(ben.good("why", part, *on, "--json"))
    assert (why["run"]["id"], why["run"]["state"], why["run"]["by"]["user"]) == (run, "running", "ann")
    assert all(str(ann.lab.hostfile) in command for command in why["next"])
    assert ben.call("wait", run, *on, "--timeout", "1").rc == 124
    page = tmp_path / "page.html"
    ben.good("report", run, *on, "-o", page)
    assert "ann@" in page.read_text()
    ben.good("fetch", run, tmp_path / "out", *on)
    assert json.loads((tmp_path / "out" / run / "record" / "status.json").read_text())["state"] == "running"
    ben.good("fetch", f"{part}:waits.py", tmp_path / "one", *on)
    assert (tmp_path / "one").read_text() == WAIT_SCRIPT

    attached = ben.begin_call("attach", run, *on)
    attached.wait_for("here 1")
    attached.process.send_signal(signal.SIGINT)
    assert attached.end() == 130
    assert ann.status(run)["state"] == "running"

    reading = (
        ("logs", part),
        ("why", "last"),
        ("wait", run, "--timeout", "1"),
        ("fetch", f"{part}:waits.py", tmp_path / "two"),
        ("report", part, "-o", tmp_path / "two.html"),
    )
    for (person, options, env), (command, *words) in zip(ways_to_hosts(ben, tmp_path), reading, strict=True):
        read = person.call(command, *words, *options, env=env)
        assert (read.rc, "ann@" in read.err) == (124 if command == "wait" else 0, True), read.err
        typed = person.call("stop", str(words[0]).partition(":")[0], *options, env=env)
        assert (typed.rc, "ann@" in typed.err) == (2, True), typed.err
        line = typed.err.splitlines()[-1].strip()
        assert line == shlex.join(["ipexctl", "stop", run, *map(str, options), "--force"])
    assert not ben.kept
    person.good(*shlex.split(line)[1:], env=env)
    assert ann.status(run)["state"] == "stopped"
    assert waiting.end(100) == 0, waiting.said()
    assert ben.good("logs", run, *on)
    assert ben.call("logs", "nosuch-1120", *on).rc == 2


def test_a_colleague_resumes_a_run_with_the_words_of_its_call(people: tuple[Person, Person]) -> None:
    ann, ben = people
    run = begun(ann)
    alive = ben.run("--resume", run, "waits.py", rc=1)
    assert f"run {run} is alive" in alive.err
    ann.good("stop", run)
    wordless = ben.run("--resume", run[-4:], rc=2)
    assert "ann@" in wordless.err
    assert f"ipexctl run --resume {run} -H {ann.lab.hostfile} --ppn 1 waits.py" in wordless.err
    relative = ben.run("--resume", run, "--checkpoint", "ck", "short.py", rc=2)
    assert "in another copy of the project" in relative.err
    assert "ipexctl fetch" not in relative.err  # the run has left no checkpoint
    again = ben.run("--resume", run, "--ppn", "1", "short.py")
    assert sorted(again.out.splitlines()) == ["[0] done", "[1] done"]
    assert "no run 'nosuch'" in ben.run("--resume", "nosuch", rc=2).err


def test_an_account_of_the_hosts_reads_nothing_of_another_one(people: tuple[Person, Person], tmp_path: Path) -> None:
    ann, ben = people
    run = begun(ann, "--tag", 'lr "3e-4"')
    on = ("-H", ann.lab.hostfile, "--user", "ben")
    for index in range(2):
        said = ann.as_root(
            index,
            "useradd -m -p '*' ben && mkdir -m 700 ~ben/.ssh && cp ~ipex/.ssh/authorized_keys ~ben/.ssh/ && "
            "chown -R ben ~ben && chmod 755 ~ipex && echo made",
        )
        assert said.endswith("made\n"), said
    shown = ben.call("ps", *on, "--json")
    assert shown.rc == 0, shown.err
    (alive,) = json.loads(shown.out)["runs"]
    assert (alive["id"], alive["account"], alive["by"]) == (run, "ipex", None)
    assert (alive["script"], alive["tag"]) == ("waits.py", 'lr "3e-4"')
    for home in ((), ("--home", "/home/ipex/.ipexctl")):
        for words in (("logs", run), ("why", run), ("wait", run), ("report", run, "-o", tmp_path / "page.html")):
            read = ben.call(*words, *on, *home)
            assert read.rc in (1, 2), read.err
            assert not read.out
            assert "here 0" not in read.err
    for path in ("plan.json", "ranks/0000.out", "status.json", "."):
        read = ben.call("exec", *on, "-l", "node1", "--", "ls", f"/home/ipex/.ipexctl/runs/{run}/{path}")
        assert read.rc == 1, read.out
    # A run that another account plants in the own home is no run.
    ann.as_root(
        0,
        "su ben -c 'mkdir -p ~/.ipexctl/runs && chmod 700 ~/.ipexctl && touch ~/.ipexctl/.ipexctl-home' && "
        f"cp -r ~ipex/.ipexctl/runs/{run} ~ben/.ipexctl/runs/ && chmod -R a+rX ~ben/.ipexctl/runs",
    )
    planted = ben.call("logs", run, *on)
    assert (planted.rc, planted.out) == (2, "")
    ann.good("stop", run)


def test_a_process_that_holds_the_lock_of_a_host_is_named_and_passed_over(people: tuple[Person, Person]) -> None:
    ann, ben = people
    assert ann.as_root(0, "setsid flock /proc sleep 90 >/dev/null 2>&1 </dev/null & echo kept") == "kept\n"
    (held,) = ann.seen()["holders"]
    assert (held["host"], held["account"], held["name"]) == ("node1", "root", "flock")
    refused = ann.run("--exclusive", "short.py", rc=3)
    assert f"pid {held['pid']} of root" in refused.err
    began = time.monotonic()
    calls = [person.begin("--wait", "100", "--ppn", "1", "short.py") for person in (ann, ben)]
    for call in calls:
        assert call.end(100) == 0, call.said()
    assert time.monotonic() - began < 80
    assert held["pid"] == ann.seen()["holders"][0]["pid"]
