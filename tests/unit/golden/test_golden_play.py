"""The texts of playbooks: errors with their position, and messages during a play."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_file import Case, golden_diff, rows_of, without

import test_play_read as reading
import test_play_refusals as refusals
import test_play_templates as templates
from ipexctl.errors import UserError
from ipexctl.extras.play.modules.host_script import Completed
from ipexctl.extras.play.modules.tune import LINK_FIX
from ipexctl.extras.play.templater import Templater
from ipexctl.remote.progress import Notice
from playbook_helpers import book, play_of, run_playbook


def mistakes(tmp_path: Path) -> list[Case]:
    tasks = [task for task, *_ in rows_of(reading.test_errors_have_the_position_of_the_mistake)]
    for test in (
        refusals.test_unsupported_ansible_options_are_refused_with_an_alternative,
        refusals.test_unsupported_modules_and_keywords_are_refused_with_an_alternative,
    ):
        tasks += [f"- {task}" for task, _ in rows_of(test)]
    tasks += [task for task, *_ in rows_of(refusals.test_lookup_that_is_not_supported_is_refused_when_read)]
    with (tmp_path / "model.bin").open("wb") as file:
        file.truncate((256 << 20) + 1)
    tasks.append("- copy: {src: model.bin, dest: /x}")
    for line, _ in rows_of(refusals.test_creates_and_chdir_in_a_command_line_are_refused_also_with_templates):
        tasks.append(f"- command: {line}")
    texts = [(task, play_of(f"{task}\n")) for task in tasks]
    texts += [(text[:80], text) for text in rows_of(reading.test_invalid_files_are_errors_with_their_name)]
    (tmp_path / "other.yml").write_text("- import_playbook: site.yml\n")
    texts.append(("playbooks import each other", "- import_playbook: other.yml\n"))
    cases = []
    for name, text in texts:
        (tmp_path / "site.yml").write_text(text)
        with pytest.raises(UserError) as caught:
            book(tmp_path, text)
        cases.append(Case(repr(name), without(caught.value.message, tmp_path), without(caught.value.fix, tmp_path)))
    return cases


def of_templates() -> list[Case]:
    cases = []
    with Templater() as templater:
        for text, *_ in rows_of(templates.test_undefined_names_are_named_with_a_suggestion):
            error = templates.wrong(templater, text, {"tier": "amx", "cpu": {"tier": "amx"}})
            cases.append(Case(f"template {text}", error.message, error.fix))
    return cases


def while_playing(tmp_path: Path) -> list[Case]:
    node2 = "when: inventory_hostname == 'node2'"
    texts = {
        "any_errors_fatal": play_of(f"- {{fail: , {node2}}}\n", "  any_errors_fatal: true\n"),
        "until": play_of("- {name: poll, debug: , register: r, until: r is failed, retries: 2, delay: 0}\n"),
        "fewer hosts": play_of(f"- {{name: broken, fail: , {node2}}}\n- run: {{cmd: hostname}}\n"),
        "options that differ": play_of("""- run: {cmd: x, ppn: "{{ 2 if inventory_hostname == 'node3' else 1 }}"}\n"""),
        "a text among numbers": play_of("- vars: {n: '3'}\n  assert: {that: 5.0 >= n}\n"),
    }
    cases = []
    for name, text in texts.items():
        report, events = run_playbook(tmp_path, text)
        cases += [Case(name, event.text) for event in events if isinstance(event, Notice)]
        for task in report.tasks:
            cases += [Case(name, each.reason, each.fix) for each in task.hosts.values() if each.reason]
    return cases


def of_refused_links() -> list[Case]:
    cases = []
    for target in ("/etc/cron.d", "../x\n\x1b[2J"):
        completed = Completed(95, b"", f"\x1elink\x1ealice\x1e/tmp/app/conf\x1e{target}".encode())
        for name, result in (("copy", completed.failure()), ("tune", completed.failure(link_fix=LINK_FIX))):
            cases.append(Case(f"{name} below a link to {target!r}", result.reason, result.fix))
    return cases


def test_play(tmp_path: Path) -> None:
    assert not (
        diff := golden_diff(
            "play", [*mistakes(tmp_path), *of_templates(), *while_playing(tmp_path), *of_refused_links()]
        )
    ), diff
