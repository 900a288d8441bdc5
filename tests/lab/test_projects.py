"""Projects with packages of their own on real hosts: modules, scripts, commands, metadata, each way to start ranks."""

from __future__ import annotations

import json

import pytest

from ipexctl.addons.lab.lab_plan import LabSpec
from lab_run_helpers import Cluster

MPI_LAB = LabSpec(hosts=2)
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
PYPROJECT = """\
[project]
name = "tiny-lm"
version = "0.4.2"
[project.scripts]
tiny-train = "tinylm.cli:main"
[project.entry-points."tinylm.models"]
small = "tinylm.model:Small"
"""
MODULE = """\
import json, multiprocessing, os, sys
from importlib.metadata import entry_points, packages_distributions, version
from tinylm.model import Small

def child(queue):
    import tinylm.model
    queue.put(tinylm.model.__file__)

def main():
    found = [each.load() for each in entry_points().select(group="tinylm.models")]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(json.dumps({
        "rank": os.environ["RANK"], "version": version("tiny-lm"), "models": [each.__name__ for each in found],
        "file": __file__, "child": queue.get(), "argv": sys.argv, "of": packages_distributions().get("tinylm"),
        "cwd": os.getcwd(), "path": os.environ["PYTHONPATH"].split(":"),
    }), flush=True)
    process.join()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def project(cluster: Cluster) -> Cluster:
    cluster.write("pyproject.toml", PYPROJECT)
    cluster.write("src/tinylm/__init__.py", "")
    cluster.write("src/tinylm/model.py", "class Small:\n    pass\n")
    cluster.write("src/tinylm/cli.py", MODULE)
    cluster.write("scripts/start.py", "from tinylm.cli import main\n\nif __name__ == '__main__':\n    main()\n")
    cluster.write("other/tinylm_plugin.py", "")
    return cluster


def started(project: Cluster, *words: str, **more: object) -> list[dict[str, object]]:
    ran = project.run("-n", "2", *words, **more)  # type: ignore[arg-type]
    assert ran.rc == 0, ran.err
    lines = [line.partition("] ")[2] for line in ran.out.splitlines() if '"version"' in line]
    return sorted((json.loads(line) for line in lines), key=lambda found: str(found["rank"]))


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (("-m", "tinylm.cli", "--lr", "1"), ["cli.py", "--lr", "1"]),
        (("tiny-train", "--lr", "1 2"), ["tiny-train", "--lr", "1 2"]),
        (("scripts/start.py",), ["scripts/start.py"]),
        (("-x", "PYTHONPATH=other", "--launcher", "direct", "tiny-train"), ["tiny-train"]),
        (("-x", "IPEXCTL_HOOKS=off", "tiny-train"), ["tiny-train"]),
    ],
)
def test_each_rank_imports_the_projects_own_package(project: Cluster, words: tuple[str, ...], argv: list[str]) -> None:
    ranks = started(project, *words)
    assert [rank["rank"] for rank in ranks] == ["0", "1"]
    for rank in ranks:
        assert (rank["version"], rank["models"], rank["of"]) == ("0.4.2", ["Small"], ["tiny-lm"])
        assert str(rank["file"]).endswith("/src/tinylm/cli.py")
        assert str(rank["child"]).endswith("/src/tinylm/model.py")
        typed = list(map(str, rank["argv"]))  # type: ignore[call-overload]
        assert [typed[0].removeprefix(f"{rank['cwd']}/").removeprefix("src/tinylm/"), *typed[1:]] == argv
        path = [str(part) for part in rank["path"]]  # type: ignore[attr-defined]
        own = path[-3:]
        assert own == [f"{rank['cwd']}/src", own[1], rank["cwd"]]
        assert own[1].endswith("/own")
        assert ("other" in path) is ("PYTHONPATH=other" in words)


def test_what_git_ignores_of_an_own_package_is_sent_if_it_is_imported(project: Cluster) -> None:
    project.write(".gitignore", "_version.py\n")
    project.write("src/tinylm/_version.py", "number = 1\n")
    project.write("src/tinylm/model.py", "from tinylm._version import number\n\n\nclass Small:\n    pass\n")
    ran = project.run("-n", "1", "tiny-train")
    assert ran.rc == 0, ran.err
    assert "src/tinylm/_version.py is sent although .gitignore excludes it" in ran.err
    project.write(".gitignore", "_version.py\nlocal.py\ndata/\n")  # a package of code with the name of a data directory
    for name in ("local", "data/__init__", "data/loaded_by_name", "data/batch"):
        project.write(f"src/tinylm/{name}.py", "number = 1\n")
    code = "from tinylm.data.batch import number\n\n\nclass Small:\n    pass\n"
    project.write("src/tinylm/model.py", code)
    ran = project.run("-n", "1", "tiny-train")
    assert "loaded_by_name" not in ran.err
    by_name = "import importlib\n\nimportlib.import_module('tinylm.data.' + 'loaded_by_name')\n"
    project.write("src/tinylm/model.py", code + by_name)
    ran = project.run("-n", "1", "tiny-train")
    assert ran.rc == 0, ran.err
    assert "data/__init__.py and src/tinylm/data/batch.py are sent" in ran.err
    assert "src/tinylm/data/loaded_by_name.py is sent" in ran.err
    assert "local.py" not in ran.err
    project.write("src/tinylm/data/api_keys.py", "number = 1\n")
    project.write(".gitignore", "_version.py\nlocal.py\ndata/\napi_keys.py\n")
    ran = project.run("-n", "1", "tiny-train")
    assert (ran.rc, "api_keys" in ran.err) == (0, False), ran.err
