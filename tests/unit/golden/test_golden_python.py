"""The names of `import ipexctl` with their signatures: a promise to programs."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator

from golden_file import Case, golden_diff

import ipexctl
from ipexctl.launch.run_declarations import DECLARED
from ipexctl.remote.outcome import ignore_event
from measures import ROOT

HANDLES = ("Cluster", "Run")
_KEYWORDS = """\
    class RunKeywords(TypedDict, total=False):
        \"""The options above as keywords of `Cluster.run`, for type checkers: `IPEXCTL_GOLDEN=write` writes them.\"""

"""


def _cases() -> Iterator[Case]:
    for name in HANDLES:
        value = getattr(ipexctl, name)
        members = {"": value.__init__} | {member: of for member, of in vars(value).items() if member[0] != "_"}
        for member, of_class in members.items():
            yield Case(f"{name}.{member}".rstrip("."), _signature(of_class))
    for name in sorted(set(ipexctl.__all__) - {*HANDLES, "__version__"}):
        value = getattr(ipexctl, name)
        yield Case(name, " ".join(getattr(value, "__annotations__", ())) or str(inspect.signature(value.__init__)))


def _signature(member: object) -> str:
    if isinstance(member, property):
        return "a property"
    function = member.__func__ if isinstance(member, classmethod) else member
    assert callable(function)
    text = str(inspect.signature(function)).replace(repr(ignore_event), "ignored").replace("'", "")
    return text.replace(", ", ",\n")


def _fields(path: str, *names: str) -> dict[str, str]:
    """The fields of classes, as their source has them, by name."""
    tree = ast.parse((ROOT / path).read_text())
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name in names]
    fields = [field for node in classes for field in node.body if isinstance(field, ast.AnnAssign)]
    return {ast.unparse(field.target): ast.unparse(field.annotation) for field in fields}


def test_signatures_are_those_that_were_promised() -> None:
    path = "ipexctl/api/cluster.py"
    keywords = [
        Case(name, "\n".join(map(": ".join, _fields(path, name).items())))
        for name in ("HostKeywords", "PlanKeywords", "StackKeywords")
    ]
    assert golden_diff("python", [*_cases(), *keywords]) == ""


def test_keywords_of_a_run_are_written_from_its_options() -> None:
    """Type checkers derive no TypedDict from a NamedTuple; with IPEXCTL_GOLDEN=write, this test writes it."""
    types = _fields("ipexctl/node/common/run_options.py", "RunOptions")
    declared = {name: types[name] for name in DECLARED} | {"cwd": "str | Path | None"}
    lines = [f"        {name}: {kind}\n" for name, kind in declared.items()]
    derived = "".join(lines).replace("tuple[str, ...]", "Sequence[str]").replace("'", '"')
    path = ROOT / "ipexctl/launch/run_declarations.py"
    before, head, block = path.read_text().partition(_KEYWORDS)
    _, end, after = block.partition("\n\n\n")
    if os.environ.get("IPEXCTL_GOLDEN") == "write":
        path.write_text(f"{before}{head}{derived.rstrip()}{end}{after}")
    else:
        assert block.startswith(f"{derived}\n\n"), "IPEXCTL_GOLDEN=write pytest tests/unit/golden"
