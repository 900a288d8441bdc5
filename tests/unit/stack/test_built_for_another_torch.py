"""Which wheels of torchvision and torchaudio are refused beside a torch for CPUs: an index's own files alone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from lock_helpers import plan

from ipexctl.node.env.env_replies import AvailableWheel, PipSettings
from ipexctl.stack.install_context import InstallRequest
from ipexctl.stack.lock.stack_locking import _Locking, built_for_another_torch, unneeded_lines
from ipexctl.stack.lock.wheel_indexes import PYPI_SOURCE, IndexAnswer, Source
from ipexctl.stack.lock.wheel_lock import Conflict, LacksPackage, LacksVersion, LacksWheel, Lock, Wheel
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest

MIRROR, DIRECTORY, PAGE = (
    Source("index", "file:///srv/simple", "mirror"),
    Source("links", "/own", "/own"),
    Source("links", "http://own/wheels/", "page"),
)
TORCH = Wheel("torch", "2.13.0+cpu", "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "0" * 64)


def made(version: str, digest: str, *, path: str | None = None, name: str = "torchvision") -> Wheel:
    url = None if path else f"https://files/{name}"
    return Wheel(name, version, f"{name}-{version}-cp311-cp311-linux_x86_64.whl", digest * 64, url=url, path=path)


def answer(*found: tuple[Source, Wheel]) -> IndexAnswer:
    candidates: dict[str, tuple[AvailableWheel, ...]] = {}
    for source, each in found:
        digest = None if source == PAGE else each.sha256
        wheel = AvailableWheel(each.name, each.version, each.filename, source.label, sha256=digest)
        candidates[each.name] = (*candidates.get(each.name, ()), wheel)
    labels = tuple(source.label for source, _ in found)
    return IndexAnswer(Availability(candidates, labels), (PYPI_SOURCE, MIRROR, DIRECTORY, PAGE), PipSettings())


PUBLISHED = made("0.28.0", "a")


@pytest.mark.parametrize("wheel", [PUBLISHED, made("0.28.0", "a", path="/srv/files/a.whl")])
def test_a_file_of_an_index_is_refused_also_where_the_index_is_a_directory(wheel: Wheel) -> None:
    problem = built_for_another_torch(Lock("3.11", (TORCH, wheel)), answer((MIRROR, wheel)), {})
    assert problem is not None and "torchvision 0.28.0 in reach is built for torch with CUDA" in problem[0]


def test_all_that_lack_a_build_are_named_at_once() -> None:
    sound = made("2.11.1", "b", name="torchaudio")
    problem = built_for_another_torch(
        Lock("3.11", (TORCH, sound, PUBLISHED)), answer((PYPI_SOURCE, PUBLISHED), (PYPI_SOURCE, sound)), {}
    )
    assert problem is not None and "torchaudio 2.11.1 and torchvision 0.28.0 in reach are built" in problem[0]


@pytest.mark.parametrize(
    ("source", "wheel"),
    [
        (DIRECTORY, made("0.28.0", "a", path="/own/a.whl")),
        (DIRECTORY, made("0.28.0", "c", path="/where/a/link/points/c.whl")),
        (PAGE, made("0.28.0", "c")),
        (PYPI_SOURCE, made("0.28.0+cpu", "c")),
    ],
)
def test_what_the_fix_names_is_taken(source: Source, wheel: Wheel) -> None:
    assert (
        built_for_another_torch(Lock("3.11", (TORCH, wheel)), answer((MIRROR, PUBLISHED), (source, wheel)), {}) is None
    )


def test_a_wheel_that_was_built_from_source_is_the_users_own() -> None:
    built = made("0.28.0", "d", path="/home/.ipexctl/wheels/d.whl")
    assert built_for_another_torch(Lock("3.11", (TORCH, built)), answer((PYPI_SOURCE, PUBLISHED)), {}) is None


def test_beside_a_torch_with_cuda_nothing_is_refused() -> None:
    cuda = Wheel("nvidia-cublas", "13.0", "nvidia_cublas-13.0-py3-none-linux_x86_64.whl", "e" * 64)
    assert built_for_another_torch(Lock("3.11", (cuda, TORCH, PUBLISHED)), answer((PYPI_SOURCE, PUBLISHED)), {}) is None


def test_an_environment_that_gets_more_needs_the_directory_again() -> None:
    """Otherwise its own build would be replaced by the one of an index."""
    held = {"torchvision": "0.28.0+cpu"}
    problem = built_for_another_torch(Lock("3.11", (TORCH, PUBLISHED)), answer((PYPI_SOURCE, PUBLISHED)), held)
    assert problem is not None
    assert "again the directory or index from which the environment has torchvision 0.28.0+cpu: --find" in problem[1]


@pytest.mark.parametrize(
    ("needed", "left"),
    [
        (frozenset({"torch", "numpy"}), ("torchvision>=0.8",)),
        (frozenset({"torchvision", "numpy"}), ()),
        (frozenset({"PIL"}), ("torchvision>=0.8",)),
        (None, ()),
    ],
)
def test_a_library_of_a_list_that_the_script_does_not_import_can_be_left_out(
    needed: frozenset[str] | None, left: tuple[str, ...]
) -> None:
    packages = ("numpy", "torchvision>=0.8", "torchaudio")
    origins = {"numpy": "requirements.txt:1", "torchvision>=0.8": "requirements.txt:2"}
    request = InstallRequest(EnvRequest(StackRequest(), packages), Sources(), (), origins=origins, needed=needed)
    assert unneeded_lines(request, ["torchvision", "torchaudio"]) == left


@pytest.mark.parametrize(
    ("error", "left", "note"),
    [
        (LacksWheel("sklearn", ""), "scikit-learn PIL sympy==1 numpy==1", "r.txt:1: sklearn==0.0 names a module; "),
        (LacksPackage("pil", "", ""), "sklearn==0.0 pillow sympy==1 numpy==1", "r.txt:2: PIL names a module; "),
        (LacksWheel("sympy", ""), "sklearn==0.0 PIL numpy==1", "r.txt:3: sympy==1 is left out: sympy has no wheel"),
        (Conflict(frozenset(("sympy", "numpy")), ""), "sklearn==0.0 PIL numpy==1", "r.txt:3: sympy==1 is left out"),
        (Conflict(frozenset(("numpy",)), ""), "", ""),
        (
            Conflict(frozenset(("numpy", "PIL")), "Because torch==2.13.0+cpu depends on numpy>=2 and"),
            "sklearn==0.0 PIL sympy==1 numpy",
            "r.txt:4: numpy==1: its version is left out: torch",
        ),
        (LacksVersion("numpy", "", ""), "", ""),
        (LacksWheel("yaml", ""), "", ""),  # another package requires it
    ],
)
def test_lines_of_lists_are_changed_only_if_the_script_needs_no_more(
    error: LacksPackage | LacksVersion | Conflict, left: str, note: str
) -> None:
    lines = ("sklearn==0.0", "PIL", "sympy==1", "numpy==1")
    origins = {line: f"r.txt:{number}" for number, line in enumerate(lines, 1)}
    needed = frozenset(("sklearn", "PIL", "numpy"))
    context: Any = SimpleNamespace(notes=[])
    context.request = InstallRequest(EnvRequest(StackRequest(), lines), Sources(), (), origins=origins, needed=needed)
    assert _Locking(context, ())._leave_out(error, plan()) is bool(left)
    assert context.request.env.packages == (tuple(left.split()) or lines)
    assert [text.startswith(note) for text in context.notes] == [True] * bool(left)
    if left:
        partly = replace(context.request, env=EnvRequest(StackRequest(), lines), origins=origins, loads_by_name=True)
        context.request = partly
        assert _Locking(context, ())._leave_out(error, plan())
        assert len(context.request.env.packages) == len(lines)  # a version alone is left out
        context.request = InstallRequest(EnvRequest(StackRequest(), lines), Sources(), (), origins=origins)
        is_version = "numpy" in left and "sympy" not in left
        assert _Locking(context, ())._leave_out(error, plan())
        changed = left if not is_version else "sklearn==0.0 PIL sympy numpy==1"
        assert context.request.env.packages == tuple(changed.split())
        typed = replace(context.request, env=EnvRequest(StackRequest(), lines), origins={})
        context.request, context.notes = typed, []
        assert (_Locking(context, ())._leave_out(error, plan()), context.request) == (False, typed)
