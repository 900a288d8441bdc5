"""Templates: their values, the sandbox, and limits of time and memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from case_table import case_table
from ipexctl.errors import FileError
from ipexctl.extras.play import templater as templater_module
from ipexctl.extras.play.templater import _PROGRAM, FillResult, Job, Templater
from ipexctl.limits import TEMPLATE_RENDERED, TEMPLATE_REPLY
from playbook_helpers import fill, templated


@pytest.fixture(scope="module")
def templater() -> Iterator[Templater]:
    with Templater() as told:
        told.host("", ["@weak", "@strong"])
        yield told


def value(templater: Templater, text: str, values: dict[str, Any] | None = None) -> Any:
    found = fill(templater, text, values)
    assert isinstance(found, FillResult), found
    return found.values["it"]


def wrong(templater: Templater, text: str, values: dict[str, Any] | None = None) -> FileError:
    found = fill(templater, text, values)
    assert isinstance(found, FileError), found
    return found


@case_table
def test_templates_evaluate_as_in_ansible(templater: Templater, text: str, expected: Any) -> None:
    values = {"n": 3, "names": ["a", "b"], "deep": {"a": {"b": 1}}, "r": {"failed": True}}
    if expected is None:
        wrong(templater, text, values)
    else:
        assert value(templater, text, values) == expected


def test_output_of_hosts_is_never_evaluated_as_a_template(templater: Templater) -> None:
    assert value(templater, "{{ said }}", {"said": "{{ 7 * 7 }} {% raw %}"}) == "{{ 7 * 7 }} {% raw %}"


def test_variables_may_reference_each_other_and_cycles_are_an_error() -> None:
    with Templater() as told:
        told.layer("play", {"a": templated("{{ b }}!"), "b": templated("{{ c }}"), "c": 1}, templated=True)
        told.host("h", ["play", "@weak", "@strong"])
        (good,) = told.fill([Job("h", {"it": templated("{{ a }}")})])
        assert isinstance(good, FillResult)
        assert good.values["it"] == "1!"
        told.layer("play", {"a": templated("{{ b }}"), "b": templated("{{ a }}")}, templated=True)
        (bad,) = told.fill([Job("h", {"it": templated("{{ a }}")})])
        assert isinstance(bad, FileError)
        assert "refer to each other" in bad.message


def test_variables_that_reference_undefined_variables_are_undefined() -> None:
    with Templater() as told:
        told.layer("play", {"a": templated("{{ gone }}")}, templated=True)
        told.host("h", ["play", "@weak", "@strong"])
        used, given, asked = told.fill(
            [Job("h", {"it": templated(text)}) for text in ("{{ a }}", "{{ a | default(1) }}", "{{ a is defined }}")]
        )
        assert isinstance(used, FileError)
        assert "'gone' is undefined" in used.message
        assert used.text == "{{ gone }}"
        assert isinstance(given, FillResult)
        assert isinstance(asked, FillResult)
        assert (given.values["it"], asked.values["it"]) == (1, False)


@case_table
def test_templates_cannot_access_python_internals(templater: Templater, text: str) -> None:
    assert not isinstance(fill(templater, text, {"names": []}), FillResult)


@pytest.fixture(scope="module")
def impatient() -> Iterator[Templater]:
    """Its process gives each template half a second."""
    begin = "from ipexctl.extras.play.renderer"
    changed = f"import ipexctl.limits as limits; limits.TEMPLATE_RENDERED = 0.5; {begin}"
    with pytest.MonkeyPatch.context() as patch, Templater() as told:
        assert begin in _PROGRAM
        patch.setattr(templater_module, "_PROGRAM", _PROGRAM.replace(begin, changed))
        told.host("", ["@weak", "@strong"])
        told.start()
        yield told


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ ('a' * 30 + 'b') | regex_search('(a+)+$') }}",
    ],
)
def test_endless_templates_are_stopped_and_the_next_template_is_filled(impatient: Templater, text: str) -> None:
    process = impatient._process
    assert wrong(impatient, text).message == "t.yml:1:1: this template took longer than 0.5 s"
    assert value(impatient, "{{ 1 + 1 }}") == 2
    assert impatient._process is process, "none is started anew"
    assert TEMPLATE_RENDERED < TEMPLATE_REPLY < 20


@case_table
def test_huge_templates_are_stopped_and_the_next_template_is_filled(templater: Templater, text: str) -> None:
    message = wrong(templater, text).message
    assert message.startswith("t.yml:1:")
    assert "longer than" not in message
    assert value(templater, "{{ 1 + 1 }}") == 2


def test_restarted_template_process_receives_all_variables_again() -> None:
    with Templater() as told:
        told.layer("play", {"a": 1}, templated=True)
        told.host("h", ["play", "@weak", "@strong"])
        job = Job("h", {"it": templated("{{ a }}")})
        (before,) = told.fill([job])
        assert told._process is not None
        told._process.kill()
        told._process.wait()
        first, second = told.fill([job, job])
        assert isinstance(before, FillResult)
        assert isinstance(first, FileError)
        assert isinstance(second, FillResult)
        assert second.values["it"] == 1


def test_many_jobs_with_large_results_do_not_deadlock(templater: Templater) -> None:
    job = Job("", {"it": templated("{{ x * 1000 }}")}, local=[({"x": "y" * 100}, False)])
    found = templater.fill([job] * 200)
    assert all(isinstance(each, FillResult) and len(each.values["it"]) == 100_000 for each in found)


def test_values_from_lookup_env_are_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_A_TEST", "s3cr3t-value")
    with Templater() as told:
        told.host("", ["@strong"])
        assert value(told, "{{ lookup('env', 'TOKEN_OF_A_TEST') }}") == "s3cr3t-value"
        assert told.secrets == {"s3cr3t-value"}


@case_table
def test_conditions_are_evaluated_as_booleans(templater: Templater, text: str, holds: bool) -> None:
    (found,) = templater.fill([Job("", when=[templated(text, "expr")])])
    assert isinstance(found, FillResult)
    assert found.held is holds
