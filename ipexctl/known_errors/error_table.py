"""Reads `table.yaml`, and has functions for rows whose sentences depend on more than their text. A row's `explain`
names one, which returns sentence and fix, or None if the row does not apply.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import shlex
import signal
import sys
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from packaging.specifiers import SpecifierSet

from ipexctl.errors import UserError
from ipexctl.hosts.nodeset import fold
from ipexctl.hub.hugging_face import (
    DEFAULT_REVISION,
    PREFIXES,
    HubRepo,
    load_call,
    parse_repo,
    push_command,
)
from ipexctl.known_errors.match import KnownError, PatternMatch, shorten_text
from ipexctl.known_errors.packages import known_packages
from ipexctl.node.common.fix import Fix, ipexctl_command, join_fixes
from ipexctl.node.common.plan import Plan
from ipexctl.node.common.run_options import RunOptions
from ipexctl.node.run.decisions.verdict import signal_name
from ipexctl.text import join_words

FOUND_NO_GPU: Final = "script.found_no_gpu"
_OF_GPUS: Final = re.compile(r"\b(?:gpus?|cuda|nccl)\b", re.IGNORECASE)
_LOOPBACK: Final = re.compile(r"^(?:127\.|localhost$|::1$|\[::1\]$)")
_TIERS: Final = {
    "amx": "AVX-512 and AMX",
    "avx512_bf16": "AVX-512 with bfloat16",
    "avx512": "AVX-512",
    "avx2": "AVX2 and no AVX-512",
    "unsupported": "less than AVX2",
}


@cache
def known_errors(section: str = "errors") -> tuple[KnownError, ...]:
    """Return the rows of a section of `table.yaml`, in its order. Raise ValueError if a row has no condition."""
    rows = tuple(map(_row, _sections()[section]))
    if section == "errors" and (loose := [known.id for known in rows if not known.has_condition]):
        raise ValueError(f"rows of table.yaml that say of no error that they explain it: {join_words(loose)}")
    return rows


@cache
def _sections() -> dict[str, list[dict[str, Any]]]:
    import yaml  # slow to import

    text = Path(__file__).with_name("table.yaml").read_text(encoding="utf-8")
    return dict(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))  # noqa: S506


_LISTS: Final = ("certain", "impossible", "needs", "raised", "frame", "printed")


def _row(values: Mapping[str, Any]) -> KnownError:
    fields = dict(values)
    texts = fields.pop("text", ())
    patterns = tuple(re.compile(text, re.MULTILINE) for text in ((texts,) if isinstance(texts, str) else texts))
    signals = tuple(signal.Signals[name] for name in fields.pop("signals", ()))
    kinds = fields.pop("detail", ())
    details = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    explain = _FUNCTIONS[fields.pop("explain")] if "explain" in fields else None
    fields.update((name, tuple(fields[name].split())) for name in _LISTS if name in fields)
    if "message" in fields:
        fields["message"] = re.compile(fields["message"], re.MULTILINE)
    return KnownError(patterns=patterns, signals=signals, details=details, explain=explain, **fields)


def _proxy_ended(match: PatternMatch) -> tuple[str, str]:
    status = int(match.groups["status"])
    how = f"exit code {status >> 8}" if status >> 8 else f"signal {status & 127}"
    return (
        f"mpirun's daemon on {match.groups['node']} exited at its start ({how})",
        Fix("`ipexctl doctor` checks that node, and its network to node0"),
    )


def _illegal_instruction(match: PatternMatch) -> tuple[str, str]:
    host, tiers = match.output.host, match.context.tiers
    can = _TIERS.get(tiers.get(host, ""))
    has = f"; it has {can}" if can else ""
    others = sorted({tier for name, tier in tiers.items() if name != host and tier})
    more = " (other hosts of this run have more)" if can and others and others != [tiers[host]] else ""
    return (
        f"the processor of {host} does not support an instruction of a program or library{has}{more}",
        Fix(
            "`ipexctl doctor` shows each processor's instruction set; `ipexctl install` takes a stack "
            "that runs on all{without}",
            without=match.fields()["or_without_host"],
        ),
    )


def _hidden(match: PatternMatch) -> tuple[str, str] | None:
    """A file of the project that Python imports in place of its own module or of a package; None if there is none."""
    name, top = match.groups.get("name") or match.groups["module"], match.groups["module"].partition(".")[0]
    output, is_pythons = match.output, top in sys.stdlib_module_names
    is_package = top == "torch" or bool(known_packages().get(top)) or match.context.has_package(top)
    if match.context.is_own(top) or not (is_package or (is_pythons and (output.library or _is_of_python(top, name)))):
        return None  # a script that misses a name of its own profile.py may not mean Python's
    ends = (f"{top}.py", f"{top}/__init__.py")
    paths = [f"{directory}/{end}" for directory in output.own_directories for end in ends]
    own = _path_in_project(match.groups.get("file", "")) or next(
        filter(None, map(match.context.project_file, paths)), ""
    )
    what = f"Python's own module {top}" if is_pythons else f"the package {top}"
    use = f", which {output.library} imports" if output.library else f"; {output.place} needs its {name}"
    fix = "rename that file; Python imports from the script's directory first"
    return (f"{own} of the project hides {what}{use}", fix) if own else None


def _is_of_python(top: str, name: str) -> bool:
    """True if a module of Python has the name, as its source on this machine says: nothing is imported."""
    module, name = Path(sysconfig.get_path("stdlib"), top), name.rpartition(".")[2]
    files = filter(Path.is_file, (module.with_suffix(".py"), module / "__init__.py"))
    defined = rf"^(?:def|class) {name}\b|^{name} *="
    return (module / f"{name}.py").exists() or any(re.search(defined, file.read_text("utf-8"), re.M) for file in files)


def _hides_pythons_own(match: PatternMatch) -> tuple[str, str] | None:
    """A file of the project with the name of a module of Python that the failing line of a library names."""
    output = match.output
    if not output.library:
        return None
    *_, failing = re.split(r'^ *File "', output.last_text, flags=re.MULTILINE)
    names = {*re.findall(r"\w+", failing)} & sys.stdlib_module_names
    paths = (f"{directory}/{name}.py" for directory in output.own_directories for name in sorted(names))
    own = next(filter(None, map(match.context.project_file, paths)), "")
    what = f"{own} of the project hides Python's own module {posixpath.basename(own)[:-3]}, which {output.library} uses"
    return (what, "rename that file; Python imports from the script's directory first") if own else None


def _path_in_project(file: str) -> str:
    is_own = file.startswith("/") and not any(part in file for part in ("-packages/", "/lib/python3"))
    return (file.rpartition("/code/")[2].partition("/")[2] or file) if is_own else ""


def _no_module(match: PatternMatch) -> tuple[str, str]:
    module = match.groups["module"]
    top = module.split(".")[0]
    known = next(iter(known_packages().get(module) or known_packages().get(top, ())), "")
    sentence = "{hosts_have_no} Python module named {module}{doubt}".format_map(match.fields())
    if file := match.groups.get("file"):
        hidden = f"a file {file}.py hides the package {file}, of which {module} is a part"
        return (_other_version(match, top, f"module {module}") if file != top else None) or (
            _hidden(match)
            or (hidden, "if that file is yours, rename it; Python imports from the script's directory first")
        )
    if match.context.has_package(known or top):
        package, *bound = re.split("[<>=!~]", known)
        if bound:  # other versions lack the module
            what = f"{package} {match.context.version_of(package)}".strip() + f" has no module {module}"
            return what, Fix.of((match.context.install(known),))
        lost = f"the environment of {fold(match.hosts)} is damaged: its record lists the module {module}, which is gone"
        return lost, Fix("to build it again: {repair}", repair=match.context.repair)
    if module != top and match.context.is_own(top):
        return (
            sentence,
            Fix(f"correct the name, which the own package {top} lacks; `ipexctl run --dry-run -v` shows its paths"),
        )
    if not known and match.context.is_of_project(top):
        known = top.replace("_", "-")
    fix = Fix(f"if {top} is a file of yours: put it into the project, which `ipexctl sync` uploads; ")
    if not known:
        has_own_python = match.context.plan.has_own_python
        add = "if you know one, install it" if has_own_python else "if you know one, add it with --with"
        return sentence, Fix("{fix}no package is known to have it; {add}", fix=fix, add=add)
    return sentence, Fix("{fix}if it is a package: {install}", fix=fix, install=match.context.install(known))


_OF_STACKS: Final = ("torch", "intel-extension-for-pytorch", "oneccl-bind-pt")


def _no_submodule(match: PatternMatch) -> tuple[str, str] | None:
    """An installed package that lacks one of its modules is of another version than the code expects."""
    module = match.groups["module"]
    top = module.partition(".")[0]
    if top != module and (hidden := _hidden(match)) is not None:
        return hidden
    return _other_version(match, top, f"module {module}") if top != module else None


def _gone_name(match: PatternMatch) -> tuple[str, str] | None:
    return _other_version(match, match.groups["module"].partition(".")[0], match.groups["name"])


def _gone(match: PatternMatch) -> tuple[str, str] | None:
    """A name that a row of the table knows, unless the installed version should have it or its package is missing."""
    context, library = match.context, match.output.library
    key = ".".join(filter(None, (match.groups.get("module") or library, match.groups.get("name"))))
    rows = _sections()["gone"]
    row = next((row for row in rows if key in (f"{of}.{name}" for of in row["of"] for name in row["names"])), None)
    if row is None:
        return None
    older = row.get("package", "").split()
    package, *bound = re.split("(?=<)", older[0] if older else row["lacks"])
    version = context.version_of(package)
    if context.plan.packages and not context.has_package(package):
        return None  # such as a DataFrame of polars
    if bound and version and SpecifierSet(bound[0]).contains(version, prereleases=True):
        return None
    at = f" ({match.output.place})" if match.output.place else ""
    what = f"{package} {version}".strip() + f" has no {key}" + "".join(f", which {name} has" for name in older[:1]) + at
    change = f"write {row['write']} instead" if "write" in row else "change that code"
    if library and package not in (known_packages().get(library) or (library.replace("_", "-"),)):
        change = f"take a newer {library}"
    if not older:
        return what, change
    take = Fix("take the {package} that has the name: {line}", package=package, line=context.install(*older))
    return what, Fix("{change}, or {take}", change=change, take=take)


def _other_version(match: PatternMatch, top: str, lacking: str) -> tuple[str, str] | None:
    """The installed version lacks what the code uses, and which one has it is not known; None without a package."""
    context, packages = match.context, known_packages().get(top) or (top.replace("_", "-"),)
    package = next(filter(context.has_package, packages), "")
    if context.is_own(top):
        return None
    if (gone := _gone(match)) is not None or not package:
        return gone
    package, version = re.split("[<>=!~]", package)[0], context.version_of(package)
    what = f"{package} {version}".strip() + f" is installed and has no {lacking}: it is too new or too old for it"
    if package in _OF_STACKS:
        return what, "another stack has another version; to see them: ipexctl versions"
    see = "take the version that the code was written for, as its own requirements or the changes of {package} say"
    return what, Fix(f"{see}, with --with of {{repair}}", package=package, repair=context.repair)


def _for_gpus(match: PatternMatch) -> tuple[str, str]:
    """Torch's own error about a GPU: of a library, or of a script that --gpu-code leaves as it is."""
    output, plan = match.output, match.context.plan
    file, _, number = output.place.rpartition(", line ")
    packages = re.findall(r'^ *File "[^"]*-packages/(\w+)', output.last_text, re.MULTILINE)
    if packages and re.search(rf'-packages/[^"\n]*{re.escape(file)}", line {number}\b', output.last_text):
        return (
            f"{packages[0]} wants a GPU here, and these nodes have only CPUs: {output.place}, in an installed package",
            f"look for an option of {packages[0]} that chooses the CPU; if it wants GPUs only for several ranks: -n 1",
        )
    cause = "the script is written for GPUs, and these nodes have only CPUs" + (f" ({output.place})" if file else "")
    if plan.asked.gpu_code == "off":
        again = ipexctl_command("run", "--gpu-code", "auto", argv=plan.asked.program)
        return cause, Fix("to place on CPUs what it places on GPUs: {again}", again=again)
    return cause, "use device 'cpu', the backend gloo, and torch.load with map_location='cpu'"


def _found_no_gpu(match: PatternMatch) -> tuple[str, str] | None:
    """For a script that asked for a GPU and exited with words about GPUs; None after an exception, which says more."""
    cause, assume = "the script exited because PyTorch found no GPU", ("--gpu-code", "assume")
    again = ipexctl_command("run", *assume, argv=match.context.plan.asked.program)
    fix = Fix("to say that there are GPUs, and place on the CPU what it places there: {again}", again=again)
    if match.output.exception is not None or _OF_GPUS.search(match.output.last_text) is None:
        return None
    return f"{cause}, for which it asked: {match.groups['what']}", fix


def _checkpoint(match: PatternMatch) -> tuple[str, str]:
    """The file is the one that the failing lines, the call's words or --checkpoint name."""
    asked, host = match.context.plan.asked, match.output.host
    loads = re.findall(r"\bload\w*\(\s*f?[\"']([^\"'{]+)[\"']", match.output.last_text)
    named = [word.rpartition("=")[2] for word in match.context.plan.command if word.endswith(_CHECKPOINTS)]
    path = next(iter((*loads, *named)), asked.checkpoint or "")
    cause = f"{path or 'a checkpoint'} on {host} can't be read whole: {shorten_text(match.groups.get('said', ''))}"
    if "name" in match.groups:
        cause = f"{path or 'a checkpoint'} on {host} doesn't match the model: {match.groups['name']} has another shape"
    use = "use a whole checkpoint of this model, the same file on every node"
    see = "; to compare them: `ipexctl exec -- env -C {cwd} sha256sum {path}`" if path else ""
    return cause, Fix(use + see, cwd=match.context.plan.cwd, path=path)


_CHECKPOINTS: Final = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")


def _from_cwd(path: str, plan: Plan) -> tuple[str, bool]:
    """A path in the project's tree, HOME/code/NAME, as seen from the working directory, and whether it leads out."""
    cwd, code = plan.cwd, f"{plan.home}/code"
    tree = f"{code}/{cwd.removeprefix(f'{code}/').partition('/')[0]}/"
    is_in = cwd.startswith(f"{code}/") and f"{posixpath.normpath(posixpath.join(cwd, path))}/".startswith(tree)
    leads_out = cwd.startswith(f"{code}/") and not path.startswith("/") and not is_in
    return (posixpath.relpath(path, cwd) if is_in and path.startswith("/") else path), leads_out


def _no_file(match: PatternMatch) -> tuple[str, str]:
    path, leads_out = _from_cwd(match.groups["path"], match.context.plan)
    if (gone := match.measured("gone")) and _REMOVES.search(match.output.source):
        fields = {**match.fields(), "path": path, "gone": gone[0].text}
        cause = "{path} was gone when {process} was to remove or move it{at}: {gone}".format_map(fields)
        return f"{cause}, as by another rank", "let one rank do it: if rank == 0; then a barrier for all"
    if (missing := match.measured("directory")) and _WRITES.search(match.output.source):
        directory, _ = _from_cwd(missing[0].text, match.context.plan)
        fields = {**match.fields(), "directory": directory, "path": path}
        cause = "{host} has no directory {directory}, in which {process} was to write {path}{at}".format_map(fields)
        make = Fix("make it first: os.makedirs({directory}, exist_ok=True)", directory=repr(directory))
        return cause, Fix("{make}; if a rank removes it, let it wait for a barrier of all", make=make)
    sentence = "{hosts_have_no} file {path}{doubt}".format_map({**match.fields(), "path": path})
    if leads_out:
        fix = Fix("put it into the project; or copy it to every node and name its absolute path: `ipexctl push --help`")
        absent = "{hosts_have_no} file {path}".format_map(match.fields())
        return f"{absent}: the path leads out of the project, and only the project is uploaded", fix
    why, line = match.context.line_that_sends(path)
    if line:
        return f"{sentence}; {why}", line
    plan = match.context.plan
    see = Fix("to see which hosts have it: `ipexctl exec -- ls -d {path}`", path=posixpath.join(plan.cwd, path))
    if path.endswith((".pt", ".pth", ".ckpt", ".safetensors")) and len(plan.hosts) > 1 and not plan.asked.checkpoint:
        own = "if a rank wrote it, only the host of that rank has it, and --checkpoint {place} brings it to all; {see}"
        return sentence, Fix(own, place=posixpath.dirname(path) or path, see=see)
    if path.startswith("/"):
        return sentence, Fix("if this machine has it, copy it: `ipexctl push {path} {path}`; {see}", path=path, see=see)
    if gone and posixpath.dirname(path):
        own = (
            "if a rank removed or moved it, let one rank do that, after a barrier of all; else put it into the project"
        )
        return f"{sentence}; {gone[0].text}", Fix(f"{own}; {{see}}", see=see)
    return sentence, Fix(
        "put it into the project, which `ipexctl sync` uploads; other data must be at the same path on every node, "
        "which run --data DIR checks; {see}",
        see=see,
    )


_WRITES: Final = re.compile(r"""open\([^)]*["'][wax]b?t?\+?b?["']|\b(?:save\w*|dump|write\w*|to_\w+)\(""")
_REMOVES: Final = re.compile(r"\b(?:remove|unlink|rmtree|rmdir|rename|replace|move)\(")


def _windows_lines(match: PatternMatch) -> tuple[str, str]:
    """A file with Windows line ends, from the message, else from the call; or a first line that is wrong otherwise."""
    what, asked = match.groups["what"], match.context.plan.asked
    words = asked.argv if asked.kind == "command" else ()
    called = next((word for word in words if word not in ("bash", "sh")), "")
    is_other = called.startswith("-") or (called.endswith(".sh") and what.startswith("python"))
    file = "" if is_other else called
    if said := match.groups.get("file"):  # by a host: only a file of the project is named to sed
        file = match.context.project_file(said) or (called if posixpath.normpath(called) == said else "")
    if not what.endswith("\\r"):
        cause = f"the first line of {called} on {match.output.host} names a program that it lacks: {what}"
        return cause, "correct that line"
    cause = f"{file or 'a file'} has Windows line ends: {match.output.host} looks for {posixpath.basename(what)}"
    fix = f"sed -i 's/\\r$//' -- {shlex.quote(file)}; then run it again" if file else "to find it: grep -rlI $'\\r' ."
    return cause, fix


def _torch_library(match: PatternMatch) -> tuple[str, str] | None:
    if not match.context.plan.install:  # the user's own Python: unknown which package had it
        return None
    library = match.groups["library"]
    lost = f"the environment of {fold(match.hosts)} is damaged: torch's own library {library} is gone"
    return lost, Fix("to build it again: {repair}", repair=match.context.repair)


_THROWN: Final = re.compile(
    r"^terminate called after throwing an instance of '(?P<type>[^']+)'(?:\n\s+what\(\):\s+(?P<words>.+))?",
    re.MULTILINE,
)


def _aborted(match: PatternMatch) -> tuple[str, str]:
    """SIGABRT, explained by the C++ exception, by the place in the script, or by neither."""
    output, process = match.output, match.fields()["process"]
    full_log = Fix(f"the complete message: `ipexctl logs {match.context.run} -r {output.rank} --stderr`")
    if mention := _THROWN.search(output.last_text):
        at = f" ({output.place})" if output.place else ""
        words = f": {shorten_text(mention['words'])}" if mention["words"] else ""
        return f"a library aborted {process}{at} with a C++ exception, {mention['type']}{words}", full_log
    if output.place:
        return f"{process} was aborted in a call at {output.place}", full_log
    if "Fatal Python error: Aborted" in output.last_text:
        return f"{process} was aborted outside the script's code, for example in a function that runs at exit", full_log
    all_output = Fix(f"all its output: `ipexctl logs {match.context.run} -r {output.rank}`")
    return f"{process} called abort() without a message: a library, or the script itself", all_output


def _argument(match: PatternMatch) -> tuple[str, str]:
    listed = re.search(r"not used by the HfArgumentParser: (\[[^\]]*\])", match.output.last_text)
    words = re.findall(r"'--([\w-]+)", listed[1]) if listed else []
    names = list(dict.fromkeys(name.replace("-", "_") for name in (words or [match.groups["name"].strip("-")])))
    parts = []
    for known in _sections()["arguments"]:
        for name in set(known["names"]).intersection(names):
            older = Fix("; or {older}", older=match.context.install(*known["last"])) if "last" in known else ""
            parts.append(f"{name}: " * (len(names) > 1) + known["fix"] + older)
    cause = f"the installed version of transformers or accelerate has no argument {join_words(names)}"
    return cause, join_fixes(parts or ["look up its name in the documentation of that version"])


_USAGE: Final = re.compile(r"^usage: (?:.*\n)*?(?=\S+: error: )", re.MULTILINE)


def _arguments(match: PatternMatch) -> tuple[str, str]:
    """Correct the user's own words, if the usage that the script printed or the options of a run show how."""
    what, asked = match.groups["what"], match.context.plan.asked
    cause, argv = f"the script rejects its arguments: {what}", asked.argv
    mark = {"module": ("-m",), "command": ("--",)}.get(asked.kind, ())
    rejected = what.partition("unrecognized arguments: ")[2].split()
    option = next((word for word in rejected if word.startswith("-") and word in argv), "")
    name, equals, value = option.partition("=")
    usage = _USAGE.search(match.output.text)
    near = get_close_matches(name, re.findall(r"--[\w-]+", usage[0]) if usage else (), n=1)
    at = argv.index(option) if option else 0
    if option and name.strip("-").replace("-", "_") in RunOptions._fields:
        end = at + 1 + bool(not equals and argv[at + 1 : at + 2] and argv[at + 1] in rejected)
        moved = ipexctl_command("run", *argv[at:end], *mark, argv=(*argv[:at], *argv[end:]))
        return cause, Fix("options of ipexctl come before the script: {moved}", moved=moved)
    if near:
        corrected = ipexctl_command("run", *mark, argv=(*argv[:at], f"{near[0]}{equals}{value}", *argv[at + 1 :]))
        return cause, Fix("did you mean {near}? {corrected}", near=near[0], corrected=corrected)
    if not argv:
        return cause, "correct them after the script's name; options of ipexctl come before it"
    shown = ipexctl_command("run", "-n", "1", *mark, argv=(argv[0], "--help"))
    return cause, Fix("correct them after the script's name; to see what it takes: {shown}", shown=shown)


def _no_name(match: PatternMatch) -> tuple[str, str]:
    name, module, file = match.groups["name"], match.groups["module"], match.groups.get("file", "")
    own = _path_in_project(file)
    if own and (hidden := _hidden(match)) is not None:
        return hidden
    if "unfinished" in match.groups:
        circle = f"{module} imports a module that imports {module} again, which has no {name} yet"
        return circle, "move one of the two imports into the function that uses it"
    if own:
        return f"{own} of the project has no {name}", f"add {name} there, or correct the import ({match.output.place})"
    if (other := _other_version(match, module.partition(".")[0], f"{name} in {module}")) is not None:
        return other
    fix = Fix("see the versions: `ipexctl envs`; take another with --with of {repair}", repair=match.context.repair)
    return f"{module} has no {name}: the script was written for another version", fix


def _other_build(match: PatternMatch) -> tuple[str, str]:
    library, context = match.groups["library"], match.context
    fix = Fix("install both together: {line}", line=context.install(library))
    if context.plan.has_own_python:
        fix = Fix(f"install the {library} that was released with its torch, from the index of that torch")
    return f"{library} was built for another torch", fix


def _worker_ended(match: PatternMatch) -> tuple[str, str] | None:
    if any(text in match.output.text for text in ("its bootstrapping phase", "context has already been set")):
        return None  # script.no_main
    first = _WORKER.search(match.output.text)  # above, where a worker's own lines mix with it
    how = first[1] if first is not None else match.groups["how"]
    where = (
        "in a library or in code of the dataset" if "signal" in how else "in code of the dataset, or a library of it"
    )
    who = f"a DataLoader worker of {match.output.process} on {match.output.host} {'was ' * ('signal' in how)}{how}"
    shows = "num_workers=0 shows where: `ipexctl logs {run} -r {rank} --stderr`"
    return f"{who}, {where}", Fix(shows, run=match.context.run, rank=f"{match.output.rank}")


_WORKER: Final = re.compile(
    r"DataLoader worker \(pid \d+\) (?:is )?(killed by signal: [^.]+|exited unexpectedly with exit code \d+)"
)
_PREFIX: Final = {kind: prefix for prefix, kind in PREFIXES.items()}
_HUB_ADDRESS: Final = re.compile(
    r"(?:https?://[^/\s'\"]+|with url: )/(?:api/)?(?P<kind>models/|datasets/)?(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:/(?:resolve|raw|tree|revision)/(?P<revision>[\w.-]+)|: offline mode)"
)
_HUB_CALL: Final = re.compile(
    r"\b(?P<kind>from_pretrained|load_dataset|snapshot_download|hf_hub_download)\(\s*['\"](?P<repo>[\w.-]+/[\w.-]+)['\"]"
)
_HUB_OPTION: Final = re.compile(r"--(?P<kind>model|dataset)\w*[ =](?P<repo>[\w.-]+/[\w.-]+)(?!\S)")


def _hub_repos(match: PatternMatch) -> list[HubRepo]:
    """What was requested, according to the text, an address, the script's line, or the command line."""

    def named_in(pattern: re.Pattern[str], text: str = match.output.text) -> list[str]:
        return [
            f"{_PREFIX['dataset' if 'dataset' in (mention['kind'] or '') else 'model']}{mention['repo']}"
            f"@{mention.groupdict().get('revision') or DEFAULT_REVISION}"
            for mention in pattern.finditer(text)
        ]

    by_text = [f"{_PREFIX[kind]}{name}" for kind, name in match.groups.items() if kind in _PREFIX]
    line = " ".join(match.context.plan.asked.argv)
    repos: dict[HubRepo, None] = {}
    for word in by_text or named_in(_HUB_ADDRESS) or named_in(_HUB_CALL) or named_in(_HUB_OPTION, line):
        with suppress(UserError):
            repos[parse_repo(word)] = None
    return list(repos)


def _hub(match: PatternMatch) -> tuple[str, str]:
    repos = _hub_repos(match)
    what = join_words([repo.repo_id for repo in repos]) or "the model or data"
    by_hand = "send it to every host with `ipexctl push`, as hf:ORG/MODEL"
    line = Fix.of((push_command(repos),)) if repos else Fix(by_hand)
    hosts = fold(match.hosts)
    if "model" in match.groups:
        return f"the cache of {hosts} lacks a file of {what} that the script needs", line
    if "dataset" in match.groups and repos:
        cause = f"datasets cannot reach the hub from {hosts}, and {what} was not prepared there before"
        repo, argv = repos[0], match.context.plan.asked.argv
        if any(mention["kind"] == "load_dataset" for mention in _HUB_CALL.finditer(match.output.text)):
            return cause, Fix("{line}; then, in the script: {call}", line=line, call=load_call(repo))
        option = next((word for word, value in pairwise(argv) if value == repo.repo_id and word.startswith("-")), "")
        then = f"to {option}, in place of {repo.repo_id}" if option else f"in place of {repo.repo_id}"
        return cause, Fix("{line}; then give the directory that it prints {then}", line=line, then=then)
    cause = f"{hosts} can't reach the hub or is offline by a setting, and the cache of its ranks lacks {what}"
    return cause, Fix("{line}; if a proxy leads to the hub: `-x HTTPS_PROXY`", line=line)


def _timed_out(match: PatternMatch) -> tuple[str, str] | None:
    place, port, context = match.groups["place"], match.groups["port"], match.context
    own_address = "don't set MASTER_ADDR, in the script or with -x: ipexctl run sets node0's address for every rank"
    if f"network addresses of ({place}, {port}) cannot be retrieved" in match.output.text:
        return None  # it tried that name until the timeout
    if _LOOPBACK.match(place) and len(context.hosts) > 1:
        waited = "so each node searched for rank 0 on itself, and rank 0 waited for the other ranks"
        return f"MASTER_ADDR is {place}, {waited}", own_address
    if (context.master.addr or place) != place:
        changed = f"but rank 0 is at {context.master.addr}: MASTER_ADDR was changed"
        return f"ranks searched for rank 0 at {place}, {changed}", own_address
    return (
        (
            f"rank 0 did not answer at {place}:{port} in time: it had not reached init_process_group, or a firewall "
            "blocks the port"
        ),
        Fix(
            f"the output of rank 0: `ipexctl logs {context.run} -r 0`; `ipexctl doctor` shows which "
            "connections between the nodes fail; another network: --iface NAME|CIDR"
        ),
    )


def _own_address(match: PatternMatch) -> tuple[str, str] | None:
    """None on one host, where the address is right."""
    if len(match.context.hosts) < 2:
        return None
    cause = (
        "init_method in the script names {place}, which is each host itself, so no rank found rank 0 on another host"
    )
    fix = "leave init_method out, or write init_method='env://': ipexctl run sets the address of rank 0 for every rank"
    return cause.format_map(match.fields()), fix


def _too_few(match: PatternMatch) -> tuple[str, str] | None:
    """None if only the rank's report names a size, and the run has as many ranks."""
    ranks, there = len(match.context.outputs), match.groups.get("there", "")
    told = [proof.text for proof in match.measured("group") if re.fullmatch(r"[0-9]{1,9}", proof.text)]
    size = int(match.groups["all"] if there else next(iter(told), "0"))
    if size > ranks:
        came = f": {there}/{size} came" if there else ""
        cause = f"the script waits for {size} ranks (world_size), and the run has {ranks}{came}"
        more = ipexctl_command("run", "-n", f"{size}", argv=match.context.plan.asked.program)
        fix = Fix(f"leave world_size out: it is {ranks} in each rank; or start as many: {{more}}", more=more)
        return f"{cause}{match.fields()['at']}", fix
    if not there:
        return None
    seconds = match.groups["seconds"]
    cause = f"only {there} of {size} ranks connected to rank 0 in {seconds} s: the others use another address"
    see = Fix("`ipexctl logs {run}`", run=match.context.run)
    fix = Fix("leave MASTER_ADDR to ipexctl, in the script and in -x; read the other ranks' output: {see}", see=see)
    return f"{cause}, or were not there yet", fix


_SPAWNED: Final = re.compile(r"-- Process \d+ terminated with the following error|torch/multiprocessing/spawn\.py")


def _port_busy(match: PatternMatch) -> tuple[str, str]:
    port, holder = match.groups.get("port") or "", match.groups.get("holder")
    if holder:
        own = Fix(
            "if the script starts its own ranks (mp.spawn), give `ipexctl run --ppn 1`; else remove fixed ports from it"
        )
        return f"port {port} of {match.output.host} was taken by {holder}", own
    if port and port == str(match.context.master.port or "") and _SPAWNED.search(match.output.text):
        ranks = len(match.context.outputs)
        taken = (
            f"the script starts ranks of its own in each of the {ranks} ranks of this run, and those of another one had"
        )
        return (
            f"{taken} taken port {port} of node0, its MASTER_PORT",
            "start the script once, with -n 1; or take its spawn out",
        )
    if port and port == str(match.context.master.port or ""):
        taken = f"port {port} of node0, the MASTER_PORT of the ranks, was taken by another program"
        if match.context.plan.master_port:
            leave_out = "leave --master-port out: node0 looks for a free port at each start"
            return taken, Fix(f"{leave_out}; to see which one: `ipexctl exec -- ss -ltnp`")
        return taken, "run it again: node0 looks for a free port at each start"
    where = f"port {port}" if port else "a port the script listens on"
    return (
        (
            f"{where} is already in use on {match.output.host}: the script uses a fixed port that another rank, "
            "another run or another program has there"
        ),
        Fix(
            "remove MASTER_PORT and fixed ports from the script: ipexctl finds a free port for each run; to "
            "see the process, unless it is another account's: `ipexctl exec -l {host} -- ss -ltnp`",
            host=match.output.host,
        ),
    )


_SEE_WHO: Final = (
    "see who works there: `ipexctl exec -l {host} -- ps -eo user,lstart,args --sort start_time`; its output: "
    "`ipexctl logs {run}"
)


def _ended_from_elsewhere(match: PatternMatch) -> tuple[str, str]:
    """A signal that neither ipexctl nor, by its own count, the kernel sent."""
    output, context = match.output, match.context
    host, number = output.host, output.ended_by or signal.SIGKILL
    guards, low = match.measured("guard"), match.measured("memory-low")
    who, which = output.process if output.signal else f"a process of {output.process}", "a guard such as earlyoom"
    if guards:
        least = "".join(f" ({proof.text})" for proof in match.measured("memory-low", "memory-free"))
        which = f"{guards[0].text}, a guard of memory that runs there{least}"
    sender = f"by the script itself, a person, a scheduler or {which}"
    mpirun = context.plan.launcher
    if mpirun.mode == "mpirun" and len(context.hosts) > 1:
        sender += f", by mpirun once its own program on {context.hosts[0]} or on {host} was killed"
    cause = f"{who} was ended by {signal_name(number)}, which ipexctl did not send: {sender}, or a shutdown of {host}"
    if number == signal.SIGKILL:
        cause = f"{who} was killed on {host}, and the kernel counted no kill for memory: {sender}"
    if guards and low:
        guard = guards[0].text.partition(",")[0]
        see = Fix("see what it ended, as root on {host}: journalctl -u {guard} -n 20", host=host, guard=guard)
        return cause, Fix("{see}; use a smaller batch or fewer ranks: --ppn", see=see)
    return cause, Fix(_SEE_WHO + " -r {rank}`", host=host, run=context.run, rank=str(output.rank or 0))


def _mpirun_ended(match: PatternMatch) -> tuple[str, str]:
    host, how = match.output.host, match.groups.get("how", "SIGTERM")
    cause = f"mpirun was ended on {host} by {how}, and not by ipexctl: by a person, a scheduler or a guard of memory"
    if part := match.groups.get("part"):
        cause = f"mpirun ended the ranks because {part}, of mpirun itself, had ended on {host} just before"
        cause += ": killed by a person, a scheduler or a guard of memory, or by the kernel"
    if how == "SIGKILL":
        see = Fix(
            "see whether the kernel did, as root on {host}: dmesg -T | grep -i kill; then run it again", host=host
        )
        return f"{cause}, or by the kernel", see
    return cause, Fix(_SEE_WHO + "`", host=host, run=match.context.run)


def _bus_error(match: PatternMatch) -> tuple[str, str]:
    host, output, full = match.output.host, match.output, match.measured("disk-full")
    at = f" ({output.place})" if output.place else ""
    cause = f"{output.process} touched a part of a mapped file that is no longer there{at}"
    logs = Fix("all its output: `ipexctl logs {run} -r {rank}`", run=match.context.run, rank=str(output.rank or 0))
    if full:
        see = Fix("make room: `ipexctl exec -l {host} -- df -h /dev/shm /tmp`; {logs}", host=host, logs=logs)
        return f"{cause}: {full[0].text} on {host}", see
    see = Fix("see how full they are: `ipexctl exec -l {host} -- df -h /dev/shm /tmp`; {logs}", host=host, logs=logs)
    room = ", which had room again once it had ended" if output.evidence else ""
    return f"{cause}: the file was shortened, or /dev/shm or a disk of {host} was full{room}", see


def _memory_refused(match: PatternMatch) -> tuple[str, str]:
    host, process, free = match.output.host, match.output.process, match.measured("memory-free")
    cause = f"{host} has too little memory for an allocation of {process}"
    if free:
        limit = "it is more than the machine has, or than a limit of the account allows (ulimit -v)"
        cause = f"an allocation of {process} was refused on {host}, though {free[0].text}: {limit}"
    see = Fix("see the limit: `ipexctl exec -l {host} -- sh -c 'ulimit -v'`, also in a --setup file", host=host)
    return cause, Fix("use a smaller batch or fewer ranks: --ppn; {see}", see=see)


def _memory_kill(match: PatternMatch) -> tuple[str, str]:
    """SIGKILL, or its exit code from a shell: the kernel counted or logged it, or nothing could be read."""
    host, worker = match.output.host, match.groups.get("worker")
    what = f"a {worker} of {match.output.process}" if worker else match.output.process
    see = Fix("see what the kernel killed, as root on {host}: dmesg -T | grep -i kill", host=host)
    if not match.measured("oom-counted") and (worker or match.pattern is None):
        whom = "by the kernel for memory, a person, a scheduler or a guard"
        known = "the kernel's count of its kills could not be read there"
        if elsewhere := match.measured("oom-elsewhere"):
            free = "".join(f", though {proof.text}" for proof in match.measured("memory-free"))
            known = f"{elsewhere[0].text.partition(' (')[0]}{free}".replace("this machine", host)
        return f"{what} was killed on {host} {whom}; {known}", see
    what = f"{what} was killed by the kernel" if worker else f"{what} lost a process that the kernel killed"
    fewer = Fix("use a smaller batch, fewer DataLoader workers or fewer ranks: --ppn")
    return f"{what} on {host}, because memory was short", Fix("{see}; {fewer}", see=see, fewer=fewer)


def _no_variable(match: PatternMatch) -> tuple[str, str]:
    name = match.groups["name"]
    fix = f"pass it on from here: -x {name}" if match.context.is_set_here(name) else f"set it: -x {name}=VALUE"
    return f"the script reads the variable {name}, which the ranks do not have", fix


def _unreachable(match: PatternMatch) -> tuple[str, str] | None:
    """A server that the exception, else the failing line of the script, names; None if the server had answered."""
    output, host = match.output, match.output.host
    if re.search(r"Read timed out|Remote\w* ?[Dd]isconnected|Connection (?:aborted|reset)", output.raised):
        return None
    if os.strerror(errno.ECONNREFUSED) in output.raised and "name" in match.groups:
        cause = "no program listens on port {port} of {name}, to which {process} connects{at}"
        fix = "correct the address in the script, or start that server before the run"
        return cause.format_map(match.fields()), fix
    named = re.search(r"['\"/@]((?:[\w-]+\.)+[\w-]+)['\"/:]", output.source)
    name = match.groups.get("name") or (named[1] if named is not None else "")
    cause = f"{host} can't reach {name or 'a server that the script uses'}{match.fields()['at']}"
    proxy = "if a proxy leads to it: -x HTTPS_PROXY; else download it beforehand, into the project or for --data DIR"
    if not name:
        return cause, proxy
    see = Fix(
        "see whether it has an address there: `ipexctl exec -l {host} -- getent hosts {name}`", host=host, name=name
    )
    return cause, Fix("{see}; {proxy}", see=see, proxy=proxy)


def _use_cpu(match: PatternMatch) -> tuple[str, str]:
    line = ipexctl_command("run", argv=(*match.context.plan.asked.program, "--use_cpu"))
    return (
        "the Trainer computes in bf16, and nothing tells it that the ranks are on CPUs",
        Fix("where the script makes its TrainingArguments itself, add use_cpu=True; else: {line}", line=line),
    )


_FUNCTIONS: Final[Mapping[str, Callable[[PatternMatch], tuple[str, str] | None]]] = {
    "aborted": _aborted,
    "argument": _argument,
    "arguments": _arguments,
    "bus_error": _bus_error,
    "ended_from_elsewhere": _ended_from_elsewhere,
    "checkpoint": _checkpoint,
    "for_gpus": _for_gpus,
    "found_no_gpu": _found_no_gpu,
    "gone": _gone,
    "gone_name": _gone_name,
    "hub": _hub,
    "illegal_instruction": _illegal_instruction,
    "hidden": _hidden,
    "hides_pythons_own": _hides_pythons_own,
    "memory_kill": _memory_kill,
    "memory_refused": _memory_refused,
    "mpirun_ended": _mpirun_ended,
    "no_file": _no_file,
    "no_module": _no_module,
    "no_name": _no_name,
    "no_submodule": _no_submodule,
    "no_variable": _no_variable,
    "other_build": _other_build,
    "own_address": _own_address,
    "port_busy": _port_busy,
    "proxy_ended": _proxy_ended,
    "timed_out": _timed_out,
    "too_few": _too_few,
    "torch_library": _torch_library,
    "unreachable": _unreachable,
    "use_cpu": _use_cpu,
    "windows_lines": _windows_lines,
    "worker_ended": _worker_ended,
}
