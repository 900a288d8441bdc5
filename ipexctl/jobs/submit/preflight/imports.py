"""Whether the environment can run the script: what to ask the hosts' own Pythons, and what their answers mean. Pure."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ipexctl.errors import FileError
from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.submit.failure import PreflightFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.jobs.submit.preflight.script import Import, Script
    from ipexctl.stack.env.record import EnvRecord

_MOST: Final = 2_000_000
"""Letters of a script that is sent to be read."""
_PACKAGES: Final = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "git": "GitPython",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "pkg_resources": "setuptools<81",
    "pytorch_lightning": "pytorch-lightning",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "pyyaml",
}
"""What those packages are called that aren't called as their modules are."""
_ROWS: Final = {
    "intel_extension_for_pytorch": "--stack ipex",
    "oneccl_bindings_for_pytorch": "--require-oneccl",
    "torch_ccl": "--require-oneccl",
}
"""Modules that no package adds to any stack: another stack has them."""


@dataclass(frozen=True, slots=True)
class ScriptRequirements:
    """What a run needs of the hosts' Python."""

    script: Script
    modules: tuple[Import, ...] = ()
    """Those that aren't in the project."""
    elsewhere: tuple[str, ...] = ()
    """Of these, what the project has in a place where Python doesn't look: from the working directory."""
    doubt: str = ""
    """Why a module that isn't found may be found all the same."""
    own: bool = True
    """Whether the environment is ours: a login adds nothing to it."""
    install: str = ""
    """The command that makes the environment as it is."""

    def question(self) -> dict[str, Any]:
        """What `imports.py` is asked, on every host; the script is read on node0."""
        text = self.script.text
        return {
            "modules": [each.module for each in self.modules],
            "own": self.own,
            "name": self.script.name,
            "source": text if text is not None and len(text) <= _MOST else None,
        }


def check_syntax(script: Script, fault: Mapping[str, Any] | None) -> None:
    """Raises what a hostfile's bad line raises: the place, the line, a caret."""
    if fault is None:
        return
    line = int(fault["line"])
    text = script.line(line)
    column = min(int(fault["column"]), len(text) + 1)
    what = str(fault["what"])
    if fault["kind"] in ("IndentationError", "TabError") or not what.startswith("invalid"):
        what = f"{fault['kind']}: {what}"
    fix = f"so says the environment's Python {fault['python']}; nothing was started"
    raise FileError(script.name, line, what, text=text, column=column, fix=fix)


def check_imports(needs: ScriptRequirements, lacking: Mapping[str, Sequence[str]]) -> PreflightFailure | str:
    """`lacking`: host → the modules it lacks, in the hosts' order. A sentence, where it may go well all the same."""
    by_module: dict[str, list[str]] = {}
    for host, modules in lacking.items():
        for module in modules:
            by_module.setdefault(module, []).append(host)
    if not by_module:
        return ""
    first = next(each.module for each in needs.modules if each.module in by_module)
    hosts = tuple(by_module[first])
    alike = [each for each in needs.modules if tuple(by_module.get(each.module, ())) == hosts]
    said = f"{fold(hosts)} {'lacks' if len(hosts) == 1 else 'lack'} {_named(alike, needs.script.name)}"
    if needs.doubt:
        return f"{said}; {needs.doubt}, so it may be found"
    return PreflightFailure(said, _fix([each for each in needs.modules if each.module in by_module], needs), hosts)


def _named(imports: Sequence[Import], script: str) -> str:
    names = [each.module for each in imports]
    lines = list(dict.fromkeys(str(each.line) for each in imports if each.line))
    what = f"the module {names[0]}" if len(names) == 1 else f"the modules {_and(names)}"
    if not lines:
        return f"{what} that -m names"
    return f"{what} that {script} imports ({'line' if len(lines) == 1 else 'lines'} {_and(lines)})"


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _fix(imports: Sequence[Import], needs: ScriptRequirements) -> str:
    names = [each.module for each in imports]
    if astray := [name for name in names if name in needs.elsewhere]:
        return f"{astray[0]} is in the project, but not where Python looks for it: -x PYTHONPATH=. lets it look there"
    if old := [name for name in names if name in sys.stdlib_module_names]:
        return f"{old[0]} came with Python {sys.version_info[0]}.{sys.version_info[1]}: a script for another Python?"
    if row := next((_ROWS[name] for name in names if name in _ROWS), None):
        return f"another stack has it: ipexctl install {row}"
    packages = [_PACKAGES.get(name, name) for name in names]
    if not needs.own:
        return f"in that Python, on each host: -m pip install {shlex.join(packages)}"
    return " ".join([needs.install or "ipexctl install", *(f"--with {shlex.quote(each)}" for each in packages)])


def install_again(record: EnvRecord | None, name: str) -> str:
    """The command that asks for the environment as it is; what is to be added goes behind it."""
    words = ["ipexctl", "install", *(["--env", name] if name != "default" else [])]
    asked = record.requests[-1] if record is not None and record.requests else {}
    for option in ("torch", "stack", "ipex", "oneccl", "python"):
        if asked.get(option):
            words += [f"--{option}", str(asked[option])]
    if asked.get("require_oneccl"):
        words.append("--require-oneccl")
    for extra in asked.get("extras", ()):
        words += ["--with", str(extra)]
    return shlex.join(words)
