"""Models and data of a hub: what a script names, and what its ranks get of it."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from launch_helpers import chosen, cpu, machine, plan, value

from ipexctl.facts.facts import Facts
from ipexctl.facts.system_facts import Environment, HomeDirectory
from ipexctl.hugging_face import HubRepo
from ipexctl.launch.hub_settings import OFFLINE_NAMES, hub_use_of, with_arguments
from ipexctl.node.common.asked import Export
from ipexctl.script_file import HostHub, Hub, HubUse, NamedRepo

TINY, DATA = HubRepo("model", "org/tiny"), HubRepo("dataset", "org/data")
HOME = "/home/me/.ipexctl/hub"


def named(source: str, *arguments: str) -> dict[str, bool]:
    """The words of what is named → whether it is certain."""
    use = with_arguments(hub_use_of(ast.parse(source), "train.py"), arguments)
    return {entry.repo.word: entry.is_certain for entry in use.repos}


IMPORT = "from transformers import AutoModel, pipeline\nfrom datasets import load_dataset\n"
OPTION = 'p.add_argument("--model-id", default="org/tiny")\n'
LOAD = 'AutoModel.from_pretrained("org/tiny")\n'


@pytest.mark.parametrize(
    ("source", "arguments", "found"),
    [
        (IMPORT + LOAD, (), {"hf:org/tiny": True}),
        (IMPORT + f"def main():\n    {LOAD}", (), {"hf:org/tiny": True}),
        (IMPORT + f'if __name__ == "__main__":\n    {LOAD}', (), {"hf:org/tiny": True}),
        (IMPORT + 'NAME = "org/tiny"\nAutoModel.from_pretrained(NAME, revision="v1")', (), {"hf:org/tiny@v1": True}),
        (IMPORT + 'pipeline("text-generation", model="org/tiny")', (), {"hf:org/tiny": True}),
        (IMPORT + 'load_dataset("org/data")', (), {"hf-dataset:org/data": True}),
        (
            'import huggingface_hub\nhuggingface_hub.snapshot_download("org/data", repo_type="dataset")',
            (),
            {"hf-dataset:org/data": True},
        ),
        # It may not run, or not be of a hub.
        (IMPORT + f"if fast:\n    {LOAD}", (), {"hf:org/tiny": False}),
        (IMPORT + f"def other():\n    {LOAD}", (), {"hf:org/tiny": False}),
        (IMPORT + f"try:\n    {LOAD}except OSError:\n    {LOAD}", (), {"hf:org/tiny": False}),
        (IMPORT + LOAD + 'model.save_pretrained("org/other")', (), {"hf:org/tiny": False}),
        (IMPORT + LOAD, ("--output_dir", "./org"), {"hf:org/tiny": False}),
        (IMPORT + 'AutoModel.from_pretrained("out/final")', (), {"hf:out/final": False}),
        ("from mine import AutoModel\n" + LOAD, (), {"hf:org/tiny": False}),
        # It is none.
        (IMPORT + 'load_dataset("csv")\nload_dataset("a/b/c")\nAutoModel.from_pretrained("./here")', (), {}),
        (IMPORT + 'AutoModel.from_pretrained("org/tiny", cache_dir="/models")', (), {}),
        (IMPORT + 'NAME = "org/tiny"\nNAME = other()\nAutoModel.from_pretrained(NAME)', (), {}),
        ('from mine import load_dataset\nload_dataset("org/data")', (), {}),
        # Arguments.
        (IMPORT, ("--model_name_or_path", "org/tiny", "--dataset-name=org/data"), {"hf:org/tiny": True, "hf-dataset:org/data": True}),  # noqa: E501
        ("", ("--model", "org/tiny", "--model_args", "a/b"), {"hf:org/tiny": False}),
        (IMPORT, ("--model", "tiny", "--tokenizer_name", "/data/tiny"), {}),
        # A default counts if it reaches a call that loads it: the names of other models may look alike.
        (IMPORT + 'p.add_argument("--model", default="DiT-L/2")\nmodels[args.model]()', (), {"hf:DiT-L/2": False}),
        (IMPORT + OPTION + "AutoModel.from_pretrained(args.model_id)", (), {"hf:org/tiny": True}),
        (IMPORT + OPTION + "name = args.model_id\nAutoModel.from_pretrained(name)", (), {"hf:org/tiny": True}),
        (IMPORT + 'p.add_argument("--model-id", default="org/tiny")', ("--model_id", "a/b"), {"hf:a/b": True}),
    ],
)  # fmt: skip
def test_what_a_script_names(source: str, arguments: tuple[str, ...], found: dict[str, bool]) -> None:
    assert named(source, *arguments) == found


def test_deep_expressions_are_read() -> None:
    assert named(IMPORT + LOAD + "x = " + "+".join(["1"] * 900)) == {"hf:org/tiny": True}


def test_a_place_is_the_line_of_the_call() -> None:
    (entry,) = hub_use_of(ast.parse(IMPORT + LOAD), "train.py").repos
    assert entry.place == "train.py, line 3"


# The plan


def host(number: int, *, has_hub: bool = False, **variables: str) -> Facts:
    return machine(
        cpu(8),
        number,
        home=HomeDirectory("/home/me/.ipexctl", True, has_hub=has_hub),
        environment=Environment(variables=variables, tools={"ssh": "/usr/bin/ssh"}),
    )


def hub(*hosts: HostHub, is_certain: bool = True, repos: tuple[HubRepo, ...] = (TINY,)) -> Hub:
    use = HubUse(tuple(NamedRepo(repo, "train.py, line 3", is_certain) for repo in repos), imports=True)
    return Hub(use, {f"node{at}": found for at, found in enumerate(hosts, 1)}, HOME)


IN_HOME, IN_OWN, LACKS = HostHub(in_home=frozenset({TINY})), HostHub(in_own=frozenset({TINY})), HostHub()
CUT_OFF = HostHub("no answer in 5 s")


def cut_off(found: HostHub) -> HostHub:
    return HostHub("no answer in 5 s", found.has_own_cache, found.in_home, found.in_own)


@pytest.mark.parametrize(
    ("found", "options", "home"),
    [
        (Hub(home=HOME), {}, HOME),  # nothing is known of the script
        (hub(IN_HOME, IN_HOME), {}, HOME),
        (hub(LACKS, LACKS), {}, HOME),
        (hub(IN_OWN, IN_OWN), {}, None),  # HF_HOME would hide it
        (hub(IN_OWN, IN_HOME), {}, HOME),
        (hub(HostHub(has_own_cache=True), LACKS), {}, None),
        (Hub(home=HOME), {"exports": (Export("HF_HOME", "-x", "/m"),)}, "/m"),
        (Hub(home=HOME), {"exports": (Export("HF_HUB_CACHE", "-x", "/m"),)}, None),
    ],
)
def test_ranks_read_the_cache_of_the_home(found: Hub, options: dict[str, Any], home: str | None) -> None:
    made = plan(host(1, has_hub=True), host(2, has_hub=True), hub=found, **options)
    assert value(made, "HF_HOME") == home
    token = value(made, "HF_TOKEN_PATH")
    assert token == ("~/.cache/huggingface/token" if home == HOME else None)


def test_empty_cache_and_logins_with_a_cache_change_nothing() -> None:
    assert value(plan(host(1), host(2)), "HF_HOME") is None
    made = plan(host(1, has_hub=True), host(2, has_hub=True, HF_HOME="/models"), hub=Hub(home=HOME))
    assert (value(made, "HF_HOME"), value(made, "HF_HOME", "node2")) == (HOME, None)
    made = plan(host(1, has_hub=True, XDG_CACHE_HOME="/c"), hub=Hub(home=HOME))
    assert value(made, "HF_TOKEN_PATH") == "/c/huggingface/token"


@pytest.mark.parametrize(
    ("found", "options", "offline"),
    [
        (Hub(), {}, (None, None)),
        (hub(LACKS, LACKS), {}, (None, None)),
        (hub(cut_off(IN_OWN), cut_off(IN_OWN)), {}, ("1", "1")),
        (hub(LACKS, CUT_OFF), {}, (None, "1")),
        (hub(IN_OWN, cut_off(IN_OWN)), {}, ("1", "1")),  # else node1 may take a newer revision
        (hub(LACKS, CUT_OFF, repos=()), {}, (None, "1")),
        (Hub(), {"offline_hub": True}, ("1", "1")),
        (hub(CUT_OFF, CUT_OFF), {"exports": (Export("HF_HUB_OFFLINE", "-x", "0"),)}, ("0", "0")),
    ],
)
def test_ranks_that_cannot_reach_the_hub_do_not_ask_it(
    found: Hub, options: dict[str, Any], offline: tuple[str | None, str | None]
) -> None:
    made = plan(host(1), host(2), hub=found, **options)
    assert (value(made, "HF_HUB_OFFLINE"), value(made, "HF_HUB_OFFLINE", "node2")) == offline
    is_own = "exports" in options
    for name in OFFLINE_NAMES[1:]:
        assert value(made, name, "node2") == (None if is_own else offline[1])


def test_reasons_and_variables_of_the_user() -> None:
    made = plan(host(1, HF_HUB_OFFLINE="0"), host(2), hub=hub(CUT_OFF, CUT_OFF, repos=()))
    assert value(made, "HF_HUB_OFFLINE") is None
    assert "no answer in 5 s" in chosen(made, "HF_HUB_OFFLINE", "node2").reason
    made = plan(host(1), offline_hub=True, exports=(Export("HF_DATASETS_OFFLINE", "-x", "0"),))
    assert [value(made, name) for name in OFFLINE_NAMES] == ["1", "1", "0"]


LOADS = "from datasets import load_dataset\n"
CALL = 'load_dataset(snapshot_download("org/data", repo_type="dataset"'


@pytest.mark.parametrize(
    ("source", "arguments", "fix"),
    [
        (LOADS + 'load_dataset("org/data")', (), f"{CALL}))"),
        (LOADS + 'load_dataset("org/data", revision="v1")', (), f'{CALL}, revision="v1"))'),
        (LOADS + "load_dataset(args.dataset_name)", ("--dataset_name", "org/data"), f"{CALL}))"),
        # Loaded in another way, or nobody knows.
        (LOADS + "load_dataset(read())", ("--dataset_name", "org/data"), None),
        (LOADS + f"{CALL}))", (), None),
        (LOADS + f'try:\n    load_dataset("org/data")\nexcept OSError:\n    {CALL}))', (), None),
    ],
)
def test_a_dataset_that_would_not_load_without_the_hub_is_a_note_with_the_call_that_does(
    source: str, arguments: tuple[str, ...], fix: str | None
) -> None:
    use = with_arguments(hub_use_of(ast.parse(source), "train.py"), arguments)
    (repo,) = (entry.repo for entry in use.repos)
    there = HostHub("no answer", in_own=frozenset({repo}))
    prepared = HostHub("no answer", in_own=frozenset({repo}), prepared_in_own=frozenset({repo}))
    reached = HostHub(in_own=frozenset({repo}))

    def notes(*found: HostHub) -> list[str]:
        hosts = {f"node{at}": host_hub for at, host_hub in enumerate(found, 1)}
        made = plan(host(1), host(2), hub=Hub(use, hosts, HOME))
        return [note for note in made.notes if "load_dataset" in note]

    assert [note.endswith(f"in the script: {fix}") for note in notes(there, prepared)] == [True] * (fix is not None)
    assert all(" on node1 " in note for note in notes(there, prepared))
    assert notes(prepared, prepared) == notes(reached, reached) == []


def test_hidden_repositories_are_not_named_without_a_cache_of_the_home() -> None:
    others = HostHub(others=3)
    assert not [note for note in plan(host(1), hub=hub(others, repos=())).notes if "HF_HOME" in note]
