"""Templates: their values, the sandbox, and limits of time and memory."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from case_table import case_table
from ipexctl.addons.play import template_limits
from ipexctl.addons.play.templates import Scope, Templates
from ipexctl.errors import FileError
from playbook_helpers import fill, templated


@pytest.fixture(scope="module")
def templater() -> Templates:
    return Templates()


def value(templater: Templates, text: str, values: dict[str, Any] | None = None) -> Any:
    found = fill(templater, text, values)
    assert not isinstance(found, FileError), found
    return found


def wrong(templater: Templates, text: str, values: dict[str, Any] | None = None) -> FileError:
    found = fill(templater, text, values)
    assert isinstance(found, FileError), found
    return found


@case_table
def test_templates_evaluate_as_in_ansible(templater: Templates, text: str, expected: Any) -> None:
    values = {"n": 3, "names": ["a", "b"], "deep": {"a": {"b": 1}}, "r": {"failed": True}}
    if expected is None:
        wrong(templater, text, values)
    else:
        assert value(templater, text, values) == expected


def test_output_of_hosts_is_never_evaluated_as_a_template(templater: Templates) -> None:
    assert value(templater, "{{ said }}", {"said": "{{ 7 * 7 }} {% raw %}"}) == "{{ 7 * 7 }} {% raw %}"


def test_variables_may_reference_each_other_and_cycles_are_an_error(templater: Templates) -> None:
    values = {"a": templated("{{ b }}!"), "b": templated("{{ c }}"), "c": 1}
    assert value(templater, "{{ a }}", values) == "1!"
    bad = wrong(templater, "{{ a }}", {"a": templated("{{ b }}"), "b": templated("{{ a }}")})
    assert "refer to each other" in bad.message


def test_variables_that_reference_undefined_variables_are_undefined(templater: Templates) -> None:
    values = {"a": templated("{{ gone }}")}
    used = wrong(templater, "{{ a }}", values)
    assert "'gone' is undefined" in used.message
    assert used.text == "{{ gone }}"
    assert value(templater, "{{ a | default(1) }}", values) == 1
    assert value(templater, "{{ a is defined }}", values) is False


@case_table
def test_templates_cannot_access_python_internals(templater: Templates, text: str) -> None:
    assert isinstance(fill(templater, text, {"names": []}), FileError)


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ ('a' * 30 + 'b') | regex_search('(a+)+$') }}",
    ],
)
def test_endless_templates_are_stopped_and_the_next_template_is_filled(
    templater: Templates, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_limits, "TEMPLATE_RENDERED", 0.5)
    assert wrong(templater, text).message == "t.yml:1:1: this template took longer than 0.5 s"
    assert value(templater, "{{ 1 + 1 }}") == 2


@case_table
def test_huge_templates_are_stopped_and_the_next_template_is_filled(templater: Templates, text: str) -> None:
    allowed = resource.getrlimit(resource.RLIMIT_DATA)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _peak()
    message = wrong(templater, text).message
    assert message.startswith("t.yml:1:")
    assert "longer than" not in message
    assert value(templater, "{{ 1 + 1 }}") == 2
    assert _peak() - before <= template_limits.MEMORY + (16 << 20)
    assert resource.getrlimit(resource.RLIMIT_DATA) == allowed


def _peak() -> int:
    status = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert status is not None
    return int(status[1]) << 10


_IN_C: Final = """\
from ipexctl.addons.play import template_limits
template_limits.TEMPLATE_RENDERED, template_limits.TEMPLATE_INTERRUPTED = 2, 3
from playbook_helpers import fill
from ipexctl.addons.play.templates import Templates
fill(Templates(), "{{ ('a' * 4000000).rfind('a' * 1000000 ~ 'b' ~ 'a' * 1000000) }}")
"""


def test_template_that_c_code_never_leaves_ends_ipexctl_with_its_place() -> None:
    environ = {"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", _IN_C]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("t.yml:1:1: this took longer than 3 s and could not be interrupted")
    assert "Traceback" not in ended.stderr + ended.stdout
    assert "File" not in ended.stderr


def test_values_from_lookup_env_are_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_A_TEST", "s3cr3t-value")
    told = Templates()
    assert value(told, "{{ lookup('env', 'TOKEN_OF_A_TEST') }}") == "s3cr3t-value"
    assert told.secrets == {"s3cr3t-value"}


@pytest.mark.parametrize("text", ["1" * 5000, "a" + ".b" * 3000, "a" + " + 1" * 3000, "(" * 3000 + "a" + ")" * 3000])
def test_template_that_jinja_or_python_can_not_read_is_a_mistake_in_the_file(templater: Templates, text: str) -> None:
    (error,) = templater.check([templated("{{ " + text + " }}")])
    assert error.message.startswith("t.yml:1:1: Jinja: ")


@case_table
def test_conditions_are_evaluated_as_booleans(templater: Templates, text: str, holds: bool) -> None:
    assert Scope(templater, []).holds(templated(text, "expr")) is holds
