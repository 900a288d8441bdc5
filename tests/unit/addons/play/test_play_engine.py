"""The engine of plays: any_errors_fatal, rescue, limits, delegation, run tasks, --check, no_log, retries, view."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ipexctl.addons.play.modules import runner
from ipexctl.addons.play.modules.run_task import _TaskRun
from ipexctl.addons.play.playbook import parts_of
from ipexctl.addons.play.result import Call, PlayReport, TaskResult, failure
from ipexctl.addons.play.variables import PlayContext
from ipexctl.hosts.host import Host
from ipexctl.node.common.frames import Chunk
from ipexctl.run.start.start_request import StartFailure
from message_data import missing
from playbook_helpers import HOSTS, Recorder, book, play_of, play_view, run_playbook

FATAL = "  any_errors_fatal: true\n"
NODE2 = "when: inventory_hostname == 'node2'"


def seen(report: PlayReport, name: str) -> dict[str, str]:
    return {host: result.status for task in report.tasks if task.name == name for host, result in task.hosts.items()}


def recap(report: PlayReport, host: str) -> tuple[int, int, int]:
    counts = report.recap[host]
    return counts.ok, counts.failed, counts.rescued


def test_any_errors_fatal_moves_all_hosts_to_rescue_and_the_play_continues(tmp_path: Path) -> None:
    text = f"""\
- block:
    - fail:
      {NODE2}
    - {{name: second, debug: }}
  rescue:
    - {{name: rescue, debug: }}
  always:
    - {{name: always, debug: }}
- {{name: after, debug: }}
"""
    report, events = run_playbook(tmp_path, play_of(text, FATAL))
    assert seen(report, "second") == {}
    for name in ("rescue", "always", "after"):
        assert seen(report, name) == dict.fromkeys(("node1", "node2", "node3"), "ok")
    assert [recap(report, host.name) for host in HOSTS] == [(3, 0, 0), (3, 0, 1), (3, 0, 0)]
    assert report.exit_code == 0
    assert not events.notices


def test_any_errors_fatal_with_a_failed_rescue_ends_all_plays(tmp_path: Path) -> None:
    text = f"""\
- block:
    - fail:
      {NODE2}
  rescue:
    - fail:
      {NODE2}
  always:
    - {{name: always, debug: }}
- {{name: after, debug: }}
"""
    report, events = run_playbook(tmp_path, play_of(text, FATAL) + play_of("- {name: next, debug: }\n"))
    assert len(seen(report, "always")) == 3
    assert seen(report, "after") == seen(report, "next") == {}
    assert [recap(report, host.name) for host in HOSTS] == [(1, 0, 0), (1, 1, 1), (1, 0, 0)]
    assert report.exit_code == 1
    (told,) = events.notices
    assert missing(told, "any_errors_fatal") == []


def test_rescue_after_a_run_once_failure_keeps_the_counts_correct(tmp_path: Path) -> None:
    text = "- block: [{fail: , run_once: true}]\n  rescue: [{name: help, debug: }]\n"
    report, _ = run_playbook(tmp_path, play_of(text))
    assert len(seen(report, "help")) == 3
    assert [recap(report, host.name) for host in HOSTS] == [(1, 0, 1), (1, 0, 0), (1, 0, 0)]


HANDLERS = f"""\
  handlers:
    - {{name: first, fail: , {NODE2}}}
    - {{name: second, debug: }}
"""


@pytest.mark.parametrize("flush", [False, True])
def test_host_whose_handler_fails_leaves_the_play_and_counts_as_failed(tmp_path: Path, flush: bool) -> None:
    text = "- {name: begin, debug: , changed_when: true, notify: [first, second]}\n"
    text += "- meta: flush_handlers\n- {name: after, debug: }\n" if flush else ""
    report, _ = run_playbook(tmp_path, play_of(text, HANDLERS) + play_of("- {name: next play, debug: }\n"))
    assert seen(report, "first")["node2"] == "failed"
    for name in ("second", "next play", *(("after",) if flush else ())):
        assert seen(report, name) == {"node1": "ok", "node3": "ok"}, name
    assert [recap(report, host)[1] for host in ("node1", "node2", "node3")] == [0, 1, 0]


def test_rescue_runs_on_failed_hosts_only_with_ansible_failed_variables(tmp_path: Path) -> None:
    text = f"""\
- block:
    - {{name: breaks, fail: {{msg: no}}, {NODE2}}}
    - {{name: second, debug: }}
  rescue:
    - {{name: help, debug: {{msg: "{{{{ ansible_failed_task.name }}}} {{{{ ansible_failed_result.msg }}}}"}}}}
"""
    report, _ = run_playbook(tmp_path, play_of(text))
    assert seen(report, "second") == {"node1": "ok", "node3": "ok"}
    assert seen(report, "help") == {"node2": "ok"}
    assert report.tasks[-1].hosts["node2"].data["msg"] == "breaks no"


def test_registered_results_and_facts_are_usable_in_later_tasks(tmp_path: Path) -> None:
    text = """\
- {debug: , register: said, changed_when: inventory_hostname == 'node1'}
- assert: {that: (said is changed) == (inventory_hostname == 'node1')}
- set_fact: {count: "{{ 40 + 2 }}"}
- debug: {msg: "{{ item }} {{ count }} {{ n }}"}
  loop: [a, b]
  loop_control: {index_var: n}
  register: turns
  when: item != 'a' or inventory_hostname == node0
- assert: {that: "turns.results | selectattr('skipped', 'undefined') | map(attribute='msg') | last == 'b 42 1'"}
- {debug: , register: tries, until: tries is failed, retries: 2, delay: 0, ignore_errors: true}
- assert: {that: tries.attempts == 3}
- {debug: {msg: "{{ inventory_hostname }}"}, run_once: true, register: who}
- assert: {that: who.msg == 'node1'}
"""
    report, _ = run_playbook(tmp_path, play_of(text))
    assert report.exit_code == 0, report


@pytest.mark.parametrize("printed", ["X=1", "X=1; touch marker #"])
def test_task_fails_if_its_environment_is_not_a_mapping_of_names(tmp_path: Path, printed: str) -> None:
    text = f"""\
- {{debug: {{msg: "{printed}"}}, register: printed}}
- {{name: text, debug: , environment: "{{{{ printed.msg }}}}", ignore_errors: true}}
- {{name: mapping, debug: , environment: "{{{{ {{hostvars['node1'].printed.msg: 'it is set'}} }}}}"}}
"""
    report, _ = run_playbook(tmp_path, play_of(text))
    assert set(seen(report, "text").values()) == set(seen(report, "mapping").values()) == {"failed"}


def test_serial_runs_in_batches_and_stops_after_a_failed_batch(tmp_path: Path) -> None:
    text = f"""\
- {{name: turn, debug: , changed_when: true, notify: told}}
- meta: flush_handlers
- {{fail: , {NODE2}}}
- {{name: after, debug: {{msg: "{{{{ ansible_play_batch | join }}}}"}}}}
"""
    head = "  serial: 1\n  handlers: [{name: told, debug: }]\n"
    report, events = run_playbook(tmp_path, play_of(text, head))
    assert events.plays == [(("node1",), "1 of 3, serial"), (("node2",), "2 of 3, serial")]
    assert [task.name for task in report.tasks] == ["turn", "told", "fail", "after", "turn", "told", "fail"]
    assert recap(report, "node3") == (0, 0, 0)


def test_variables_of_include_vars_may_reference_each_other(tmp_path: Path) -> None:
    (tmp_path / "more.yml").write_text("a: one\nb: '{{ a }} and two'\n")
    report, _ = run_playbook(
        tmp_path, play_of("- include_vars: more.yml\n- debug: {msg: \"{{ hostvars['node2'].b }}\"}\n")
    )
    assert report.tasks[1].hosts["node3"].data["msg"] == "one and two"


def test_delegate_to_runs_a_task_on_that_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayContext, "session", lambda _, host: nullcontext(host))
    where = lambda context, call, session: TaskResult("ok", message=session.name)  # noqa: E731
    monkeypatch.setattr("ipexctl.addons.play.task_runner.runner", lambda name: where)
    names = ("node0", "10.0.0.2", "\"{{ 'local' ~ 'host' }}\"")
    text = play_of("".join(f"- {{exec: x, ignore_errors: true, delegate_to: {name}}}\n" for name in names))
    for local, last in ((False, ""), (True, "localhost")):
        report, _ = run_playbook(tmp_path, text, local=local)
        results = [task.hosts["node3"] for task in report.tasks]
        assert [result.message for result in results] == ["node1", "node2", last]
        assert ("--local" in results[2].fix) is not local


def test_limit_keeps_groups_and_hostvars_of_all_hosts(tmp_path: Path) -> None:
    text = """\
- assert:
    that:
      - groups.all == ['node1', 'node2', 'node3']
      - groups.xeon == ['node1', 'node2']
      - hostvars.node1.group_names == ['xeon']
      - ansible_play_hosts == ['node3']
      - node0 == 'node3'
"""
    report, _ = run_playbook(tmp_path, play_of(text) + "- {hosts: node0, tasks: [{debug: }]}\n", limited=HOSTS[2:])
    assert report.recap.keys() == {"node3"}
    assert recap(report, "node3") == (2, 0, 0)


def test_control_machine_tasks_may_be_delegated_to_localhost(tmp_path: Path) -> None:
    report, _ = run_playbook(tmp_path, play_of("- {debug: , delegate_to: localhost, run_once: true}\n"))
    assert recap(report, "node1") == (1, 0, 0)


def test_errors_of_an_assertion_precede_errors_of_its_fail_msg(tmp_path: Path) -> None:
    report, _ = run_playbook(tmp_path, play_of("- assert:\n    that: nosuch > 1\n    fail_msg: '{{ nosuch }}'\n"))
    assert report.tasks[0].hosts["node1"].line.strip() == "that: nosuch > 1"


class _FakeRunModule:
    """A stand-in for the module run that records the hosts of each call."""

    def __init__(self) -> None:
        self.ran: list[list[str]] = []

    def __call__(self, context: Any, call: Call, hosts: Sequence[Host]) -> TaskResult:
        self.ran.append([host.name for host in hosts])
        return TaskResult("changed")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> _FakeRunModule:
    job = _FakeRunModule()
    monkeypatch.setattr("ipexctl.addons.play.task_runner.runner", lambda name: job if name == "run" else runner(name))
    return job


def test_run_task_fails_after_hosts_have_failed(tmp_path: Path, job: _FakeRunModule) -> None:
    text = f"- {{name: broken, fail: , {NODE2}}}\n- {{name: train, run: {{cmd: hostname}}}}\n"
    report, _ = run_playbook(tmp_path, play_of(text))
    assert job.ran == []
    said = report.tasks[-1].hosts["node1"]
    assert missing(said.reason, "node2 broken") == []
    assert "node[1,3]" in said.fix
    assert "fewer: true" in said.fix
    assert seen(report, "train") == {"node1": "failed", "node3": "failed"}
    # In a play of its own after that one, too.
    report, _ = run_playbook(tmp_path, play_of(text.splitlines()[0]) + play_of("- run: {cmd: hostname}"))
    assert (job.ran, report.exit_code) == ([], 1)


def test_run_task_with_fewer_uses_the_remaining_hosts(tmp_path: Path, job: _FakeRunModule) -> None:
    text = f"- {{fail: , {NODE2}}}\n- run: {{cmd: hostname, fewer: true}}\n"
    run_playbook(tmp_path, play_of(text))
    assert job.ran == [["node1", "node3"]]


def test_run_task_is_not_refused_for_rescued_hosts_or_hosts_skipped_by_when(
    tmp_path: Path, job: _FakeRunModule
) -> None:
    text = f"""\
- block: [{{fail: , {NODE2}}}]
  rescue: [{{debug: }}]
- run: {{cmd: hostname}}
- run: {{cmd: hostname}}
  when: inventory_hostname != 'node1'
"""
    report, _ = run_playbook(tmp_path, play_of(text))
    assert job.ran == [["node1", "node2", "node3"], ["node2", "node3"]]
    assert report.exit_code == 0


def test_conditions_on_results_are_ignored_for_tasks_skipped_by_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = TaskResult("skipped", data={"stdout": ""}, not_run=True)
    monkeypatch.setattr("ipexctl.addons.play.task_runner.runner", lambda name: lambda *_: skipped)
    text = """\
- run: {cmd: hostname}
  register: said
  changed_when: said.stdout.split()[3] == 'x'
  failed_when: (said.stdout | int) < 100
  until: said.stdout == 'ready'
"""
    report, _ = run_playbook(tmp_path, play_of(text), check=True)
    assert {result.status for result in report.tasks[0].hosts.values()} == {"skipped"}


def test_check_reports_a_run_with_a_missing_creates_file_as_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ipexctl.addons.play.modules.run_task._find_created", lambda *_: "")
    monkeypatch.setattr("ipexctl.run.start.pipeline.plan_run", lambda *_, **__: StartFailure("nothing is installed"))
    text = """\
- run: {cmd: hostname, creates: out.pt}
  register: guarded
- debug: {msg: train}
  when: guarded is changed
- run: {cmd: hostname}
  register: plain
- debug: {msg: train}
  when: plain is changed
"""
    report, _ = run_playbook(tmp_path, play_of(text), check=True)
    assert [task.hosts["node1"].status for task in report.tasks] == ["changed", "ok", "skipped", "skipped"]


def test_conditions_on_results_that_check_skipped_fail_with_a_mention_of_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlayContext, "session", lambda *_: nullcontext())
    text = """\
- command: cat version
  register: found
- command: cat {{ item }}
  loop: [a, b]
  register: looped
- set_fact: {mode: x}
  register: known
- debug:
  when: found.stdout == 'new'
- debug:
  when: looped.results[0].stdout == 'new'
- debug:
  when: found.rc == 0
- debug:
  when: known is changed
"""
    report, _ = run_playbook(tmp_path, play_of(text), check=True)
    results = [task.hosts["node2"] for task in report.tasks]
    assert [result.status for result in results] == [*["skipped"] * 2, "ok", *["skipped"] * 2, "ok", "skipped"]
    assert missing(results[3].reason, "--check found") == []
    assert missing(results[4].reason, "--check looped") == []
    assert "--check" not in results[6].reason


def test_no_log_values_are_absent_from_events_and_report(tmp_path: Path) -> None:
    text = play_of("""\
- name: set {{ word }}
  set_fact: {pin: 19283746, quoted: "it's hidden"}
  no_log: true
- name: use {{ item }}
  debug: {msg: "{{ item }}"}
  loop: [of-the-loop]
  no_log: true
  register: used
- debug: {msg: "{{ pin }}, {{ [pin] }} {{ quoted | quote }} {{ quoted | upper }} {{ used.results[0].item }} {{ word }}"}
- debug: {var: pin}""")
    report, events = run_playbook(tmp_path, text, extra=[{"word": "of-minus-e"}])
    shown = repr(events.calls) + repr(report)
    for value in ("19283746", "s hidden", "S HIDDEN", "of-the-loop"):
        assert value not in shown
    assert [task.name for task in report.tasks][:2] == ["set {{ word }}", "use {{ item }}"]


def test_retries_without_until_repeat_failed_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [failure("no"), failure("no"), TaskResult("changed"), failure("no")]
    monkeypatch.setattr("ipexctl.addons.play.task_runner.runner", lambda name: lambda *_: results.pop(0))
    report, _ = run_playbook(tmp_path, play_of("- run: {cmd: hostname}\n  retries: 4\n  delay: 0\n"))
    assert ({result.status for result in report.tasks[0].hosts.values()}, len(results)) == ({"changed"}, 1)


@pytest.mark.parametrize(("data", "status"), [({}, "ok"), ({"changed": True}, "changed")])
def test_failed_when_false_keeps_the_changed_value_of_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any], status: str
) -> None:
    monkeypatch.setattr("ipexctl.addons.play.task_runner.runner", lambda name: lambda *_: failure("no", **data))
    report, _ = run_playbook(tmp_path, play_of("- run: {cmd: hostname}\n  failed_when: false\n"))
    assert {result.status for result in report.tasks[0].hosts.values()} == {status}


def test_with_items_flattens_lists(tmp_path: Path) -> None:
    text = "- debug: {msg: '{{ item }}'}\n  with_items: ['{{ more }}', c]\n"
    report, _ = run_playbook(tmp_path, play_of(text, "  vars: {more: [a, b]}\n"))
    assert [entry["msg"] for entry in report.tasks[0].hosts["node1"].data["results"]] == ["a", "b", "c"]


def view_output(capsys: pytest.CaptureFixture[str], events: Recorder) -> tuple[str, str]:
    events.repeat(play_view())
    shown = capsys.readouterr()
    return shown.out, shown.err


def test_handlers_are_shown_as_handler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = play_of("- {name: tell, debug: , changed_when: true, notify: restart}\n")
    _, events = run_playbook(tmp_path, text + "  handlers: [{name: restart, debug: }]\n")
    assert events.handlers == [False, True]
    out, _ = view_output(capsys, events)
    assert "TASK [tell]" in out
    assert "HANDLER [restart]" in out


def test_remaining_retries_are_shown(tmp_path: Path) -> None:
    text = play_of("- {name: poll, debug: , register: r, until: r is failed, retries: 2, delay: 0}\n")
    _, events = run_playbook(tmp_path, text)
    told = zip(events.notices, (2, 1), strict=True)
    assert [missing(text, f"node[1-3] poll until {left}") for text, left in told] == [[], []]


def test_equal_failures_of_loop_items_are_folded_over_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, events = run_playbook(tmp_path, play_of("- {fail: {msg: no}, loop: [a, b], ignore_errors: true}\n"))
    _, err = view_output(capsys, events)
    assert [line for line in err.splitlines() if line.endswith(": no")] == [
        "node[1-3]: failed (a): no",
        "node[1-3]: failed (b): no",
    ]


def test_parts_of_names_the_part_of_the_block_of_each_task(tmp_path: Path) -> None:
    text = "- block: [{name: a, debug: }]\n  rescue: [{name: b, debug: }]\n  always: [{name: c, debug: }]\n"
    (play,) = book(tmp_path, play_of(text)).plays
    assert [(task.called, part) for task, part in parts_of(play.steps)] == [("a", ""), ("b", "rescue"), ("c", "always")]


def test_only_the_last_state_of_a_progress_bar_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    events = Recorder()
    events.on_output(3, "stdout", "1%\r50%\r100%\nend\n")
    events.on_output(3, "stderr", "5%\r6%")
    out, err = view_output(capsys, events)
    assert (out.strip().splitlines(), err) == (["[3] 100%", "[3] end"], "[3] 6%\n")


def test_task_header_is_written_before_stderr_of_ranks() -> None:
    code = """
from ipexctl.addons.play.result import TaskReport
from playbook_helpers import play_view
view = play_view()
view.on_task(TaskReport("train", "p", "run", "p.yml:3"), is_handler=False)
view.on_output(0, "stderr", "Traceback\\n")
view.on_output(0, "stdout", "step 1\\n")
"""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    argv, pipe = [sys.executable, "-c", code], subprocess.PIPE
    done = subprocess.run(argv, stdout=pipe, stderr=subprocess.STDOUT, text=True, check=True, env=environ)
    assert done.stdout.split("\n") == ["", "TASK [train]", "[0] Traceback", "[0] step 1", ""]


def test_secrets_from_the_environment_are_masked_in_rank_output(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [Chunk(0, "stdout", data) for data in (b"token=s3cr3t-", b"value\n", b"s3cr3t-value")]

    def follower(_record: Any, _session: Any, watch: Callable[[Any], None], *_: Any, **__: Any) -> Any:
        return SimpleNamespace(follow=lambda: [*map(watch, chunks), SimpleNamespace(status=None, exit_code=0)][-1])

    events = Recorder()
    pool = SimpleNamespace(connector=SimpleNamespace(open=None))
    context: Any = SimpleNamespace(secrets={"s3cr3t-value"}, watcher=events, cancel=None, pool=pool)
    monkeypatch.setattr("ipexctl.addons.play.modules.run_task.Follower", follower)
    inherited = SimpleNamespace(no_log=False)
    call: Any = SimpleNamespace(task=SimpleNamespace(inherited=inherited), args={"reconnect": 300.0})
    run = _TaskRun(context, call)
    started = SimpleNamespace(record=SimpleNamespace(id="r"), launch=SimpleNamespace())
    assert run.follow(cast("Any", started)) == 0
    assert [given[2] for _, given, _ in events.calls] == ["token=********\n", "********"]
    assert "s3cr3t-value" in run.output["stdout"]  # for register: the shown result is masked at the end of the task
