"""The indexes that are queried for wheels, and the labels of sources in messages."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lock_helpers import LOCAL_SESSION

from ipexctl.node.common.urls import strip_login
from ipexctl.node.env.env_replies import PipSettings
from ipexctl.stack.env import staging
from ipexctl.stack.lock.wheel_indexes import (
    STACK_SOURCES,
    Source,
    query_indexes,
    sources_for,
)
from ipexctl.stack.lock.wheel_lock import Wheel
from ipexctl.stack.resolve.model import Sources
from simple_index import SimpleIndex
from tiny_wheels import write_wheel

NONE = PipSettings()
STACK_LABELS = [source.label for source in STACK_SOURCES]


def labels(sources: Sources, settings: PipSettings = NONE, *, here: bool = True) -> list[str]:
    return [source.label for source in sources_for(sources, settings, here=here)]


def test_default_sources_are_pypi_pytorch_and_intel() -> None:
    assert labels(Sources()) == ["PyPI", *STACK_LABELS]


def test_index_url_option_replaces_all_default_and_pip_indexes() -> None:
    settings = PipSettings(
        extra_index_urls=("https://pip/simple",), find_links=("/pip",), index_url="https://main/simple"
    )
    call = Sources(index_url="https://mine/simple", extra_index_urls=("https://also/simple",), find_links=("/wheels",))
    assert labels(call, settings) == ["https://also/simple", "https://mine/simple", "/wheels"]


def test_index_url_of_pip_config_replaces_pypi() -> None:
    settings = PipSettings(index_url="https://mirror/simple", extra_index_urls=("https://pypi.org/simple/",))
    assert labels(Sources(), settings) == ["https://mirror/simple", "PyPI", *STACK_LABELS]


def test_index_of_a_user_stack_precedes_pypi() -> None:
    besides = (*STACK_SOURCES, Source("index", "https://corp/simple", "https://corp/simple"))
    found = [source.label for source in sources_for(Sources(), NONE, besides=besides)]
    assert found == ["https://corp/simple", "PyPI", *STACK_LABELS]


def test_offline_uses_only_directories() -> None:
    settings = PipSettings(index_url="https://mirror/simple", find_links=("/pip", "https://page/"))
    call = Sources(offline=True, wheelhouse="/house", find_links=("https://far/", "file:///near"))
    assert labels(call, settings) == ["/house", "/near", "/pip"]


def test_no_index_of_pip_config_is_respected() -> None:
    settings = PipSettings(no_index=True, find_links=("/pip", "https://page/"), index_url="https://mirror/simple")
    assert labels(Sources(find_links=("/mine",)), settings) == ["/mine", "/pip", "https://page/"]


def test_directories_of_the_command_line_apply_to_the_control_machine_only() -> None:
    call = Sources(wheelhouse="/house", find_links=("/wheels", "https://page/"))
    found = labels(call, PipSettings(find_links=("/theirs",)), here=False)
    assert found == ["PyPI", *STACK_LABELS, "https://page/", "/theirs"]


def test_duplicate_sources_are_queried_once() -> None:
    call = Sources(extra_index_urls=("https://pypi.org/simple", "https://a/simple", "https://a/simple/"))
    assert labels(call) == ["https://a/simple", "PyPI", *STACK_LABELS]


def test_sources_with_different_logins_have_distinct_labels() -> None:
    call = Sources(extra_index_urls=("https://me:a@host/simple", "https://you:b@host/simple"))
    assert labels(call)[:2] == ["https://host/simple", "https://host/simple (2)"]


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("https://me:secret@host:8443/simple", "https://host:8443/simple"),
        ("https://token@host/simple?key=secret#x", "https://host/simple"),
        ("/a/directory", "/a/directory"),
    ],
)
def test_source_labels_contain_no_secrets(url: str, label: str) -> None:
    assert strip_login(url) == label
    source = sources_for(Sources(extra_index_urls=(url,)), NONE)[0]
    assert "secret" not in source.label
    assert "secret" not in repr(source)


def test_repr_of_pip_settings_contains_no_secrets() -> None:
    settings = PipSettings(index_url="https://me:secret@host/simple", proxy="http://me:secret@proxy")
    assert "secret" not in repr(settings)


def test_index_answer_keeps_credentials_for_downloads(tmp_path: Path) -> None:
    write_wheel(tmp_path, "torch", "2.8.0")
    with SimpleIndex(tmp_path, login=("me", "secret")) as served:
        source = Source("index", served.url_with_login, "mine")
        found = query_indexes(
            LOCAL_SESSION, sys.executable, [source, Source("links", "/nowhere", "gone")], ["Torch"], NONE, timeout=3
        )
    assert found.sources == (source,)
    assert [failure.source for failure in found.availability.failures] == ["gone"]
    (candidate,) = found.availability.of("torch")
    assert candidate.url == served.file_url("torch-2.8.0-py3-none-any.whl")
    assert found.headers_for(candidate.url)["Authorization"].startswith("Basic ")
    assert found.headers_for("https://elsewhere/x.whl") == {}
    assert "Basic" not in repr(found)


NAMED = (("b", "host"), ("c", "inside"))


def test_locked_wheels_get_urls_from_indexes_or_the_command_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """URLs from the record of a host are not used; extras without a URL change nothing."""
    found = SimpleNamespace(filename="a-1-py3-none-any.whl", url="https://index/a-1-py3-none-any.whl")
    answer = SimpleNamespace(availability=SimpleNamespace(candidates={"a": [found]}))
    monkeypatch.setattr(staging, "query_here", lambda *_: answer)
    own = ("tqdm", "b @ https://host/b-1.whl")
    recorded = SimpleNamespace(env=SimpleNamespace(packages=(*own, "c @ https://inside/c-1.whl")))
    context: Any = SimpleNamespace(request=recorded, typed=SimpleNamespace(env=SimpleNamespace(packages=own)))
    wheels = [Wheel("a", "1", found.filename, "00")]
    wheels += [Wheel(name, "1", f"{name}-1.whl", "00", url=f"https://{at}/{name}-1.whl") for name, at in NAMED]
    urls = [wheel.url for wheel in staging.find_in_own_indexes(context, wheels)[0]]
    assert urls == [found.url, "https://host/b-1.whl", None]


@pytest.mark.parametrize(
    "url", ["https://me:pw@pypi.org/simple", "https://pypi.org/simple/", "https://pypi.org/simple"]
)
def test_pypi_is_queried_as_the_call_names_it(url: str) -> None:
    (source,) = sources_for(Sources(index_url=url), NONE, besides=())
    assert (source.url, source.label) == (url, "PyPI")
