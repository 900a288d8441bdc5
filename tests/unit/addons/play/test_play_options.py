"""Options of modules: conversion and validation of values, and masking of secrets in results."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from case_table import case_table
from ipexctl.addons.play.modules import MODULES, runner
from ipexctl.addons.play.modules.run_task import _run_spec
from ipexctl.addons.play.options import OMIT, BadOption, Option, convert_value, fill_environment, fill_options
from ipexctl.addons.play.result import (
    HIDDEN,
    Call,
    TaskResult,
    combine_items,
    hide_secrets,
    mask_secrets,
    mask_value,
    secrets_in,
)
from ipexctl.commands.app import load_command
from ipexctl.commands.run_arguments import PANELS
from ipexctl.hosts.host import Host


@case_table
def test_option_values_are_converted_to_their_type(kind: Any, given: Any, taken: Any) -> None:
    assert convert_value(Option(kind), given) == taken


def test_later_environments_override_earlier_ones() -> None:
    layers = [{"A": "a", "_b2": "old"}, {}, {"_b2": 3, "C": True, "D": OMIT}]
    assert fill_environment(layers) == {"A": "a", "_b2": "3", "C": "true"}


def test_omitted_options_get_their_defaults() -> None:
    args = fill_options(MODULES["doctor"], {"require": "\0omit", "smoke": "yes"})
    assert (args["require"], args["smoke"], args["network"]) == (None, True, True)
    with pytest.raises(BadOption):
        fill_options(MODULES["template"], {"src": "\0omit", "dest": "/x"})


def test_every_module_function_takes_the_expected_number_of_arguments() -> None:
    count = {"control": 2, "host": 3, "all": 3}
    for spec in MODULES.values():
        assert len(inspect.signature(runner(spec.name)).parameters) == count[spec.where]


def test_shown_results_contain_no_secrets() -> None:
    result = TaskResult(
        "changed", "it is s3cret", "type s3cret", {"a": ["x s3cret y"], "s3cret": 1}, "+s3cret", "s3cret"
    )
    seen = hide_secrets(result, {"s3cret"}, no_log=False)
    assert "s3cret" not in repr(seen)
    assert seen.data["a"] == [f"x {HIDDEN} y"]
    hidden = hide_secrets(result, set(), no_log=True)
    assert "s3cret" not in repr(hidden)
    assert secrets_in(TaskResult("ok", data={"stdout": "one line\nab\nanother"})) == {
        "one line\nab\nanother",
        "one line",
        "another",
    }


@pytest.mark.parametrize(
    "text",
    ['k"ey of\nseveral lines', "stderr: several lines", '"k\\"ey of\\nseveral lines"', "ayJleSBvZgpzZXZlcmFsIGxpbmVz"],
)
def test_parts_and_encodings_of_multiline_secrets_are_masked(text: str) -> None:
    assert HIDDEN in mask_secrets(text, ['k"ey of\nseveral lines'])
    assert mask_secrets(text, ["another"]) == text


@pytest.mark.parametrize(
    "form",
    [
        shlex.quote,
        quote,
        lambda text: quote(text, safe=""),
        quote_plus,
        lambda text: b64encode(text.encode()).decode(),
        lambda text: b64encode(f"a:{text}".encode()).decode(),
        lambda text: b64encode(f"ab:{text}".encode()).decode(),
        lambda text: urlsafe_b64encode(text.encode()).decode(),
        json.dumps,
        str.upper,
        str.lower,
    ],
)
def test_secrets_are_masked_in_the_output_form_of_every_filter(form: Callable[[str], str]) -> None:
    secret = "p4'Ss/w\u00f6rd>>??"
    printed = mask_secrets(f"it is {form(secret)}.", [secret])
    assert HIDDEN in printed
    assert not set(re.findall(r"\w{3,}", form(secret))) & set(re.findall(r"\w{3,}", printed))


def test_secrets_of_loop_results_and_facts_are_collected() -> None:
    loop = TaskResult(
        "ok", data={"results": [{"stdout": "first-out"}, {"stdout": "second-out", "item": {"a": "given"}}]}
    )
    assert secrets_in(loop) == {"first-out", "second-out", "given"}
    facts = TaskResult("ok", data={"ansible_facts": {"a": {"b": ["deep-one"]}, "n": 12345}})
    assert secrets_in(facts) == {"deep-one", "12345"}
    assert mask_value({"n": 12345, "rc": 1}, {"12345"}) == {"n": HIDDEN, "rc": 1}


def test_combined_loop_result_has_the_worst_status() -> None:
    turns = [TaskResult("ok"), TaskResult("failed", "no"), TaskResult("changed")]
    all_of_it = combine_items(turns, ["a", "b", "c"], "item")
    assert (all_of_it.status, all_of_it.reason) == ("failed", "no")
    assert [each["item"] for each in all_of_it.data["results"]] == ["a", "b", "c"]
    assert combine_items([], [], "item").status == "skipped"


def test_run_module_has_the_options_of_the_run_command() -> None:
    """Others are of `play` itself, or of the tasks install and fetch; notify is a keyword of tasks, and --resume
    takes the words of a command line."""
    command: Any = load_command("run")
    params = {param.name: param for param in command.params}
    of_call = {*PANELS["Where"], *PANELS["Watching"], *PANELS["Connection"], "dry_run", "iface"} - {
        "detach",
        "reconnect",
        "meter",
        "profile",
        "tag",
    }
    other = {"words", "install", "stack", "torch", "packages", "requirements", "no_requirements", "export"}
    other |= {"extra", "group", "build"}
    other |= {"env_file", "accelerate_config", "notify", "resume_run", "help_all"}
    options = MODULES["run"].options
    assert params.keys() - of_call - other == (options.keys() & params.keys()) - {"home"}
    for name in options.keys() & params.keys():
        param, option = params[name], options[name]
        default = getattr(param.default, "value", param.default)
        assert (name, option.default or None) == (name, default or None)  # of a list, one has () and one nothing
        assert (name, option.choices) == (name, tuple(getattr(param.type, "choices", ())))


def test_run_module_passes_restart_and_hang_options() -> None:
    given = {"script": "train.py", "max_restarts": "2", "checkpoint": "out/../ckpt", "hang_after": 5, "on_hang": "stop"}
    task: Any = SimpleNamespace(base=Path("/p"))
    context: Any = SimpleNamespace(options=SimpleNamespace(home="~/.ipexctl", iface=None))
    here = Host(name="localhost", address="localhost")
    request = _run_spec(context, Call(here, here, task, fill_options(MODULES["run"], given)))
    assert (request.asked.max_restarts, request.asked.checkpoint, request.asked.hang_after, request.asked.on_hang) == (
        2,
        "ckpt",
        5.0,
        "stop",
    )
    with pytest.raises(BadOption) as caught:
        fill_options(MODULES["run"], {"script": "train.py", "on_hang": "end"})
    assert "report, dump, stop" in caught.value.fix


@pytest.mark.parametrize("backend", ["none", "gloo", "auto"])
def test_run_module_passes_the_backend(backend: str) -> None:
    task: Any = SimpleNamespace(base=Path("/p"))
    context: Any = SimpleNamespace(options=SimpleNamespace(home="~/.ipexctl", iface=None))
    here = Host(name="localhost", address="localhost")
    call = Call(here, here, task, fill_options(MODULES["run"], {"script": "infer.py", "backend": backend}))
    assert _run_spec(context, call).asked.backend == backend
