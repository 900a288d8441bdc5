"""The modules of playbooks: their options, types, defaults and refused combinations; implementations are imported late.
A function `_NAME` takes the given options and returns why they can't be combined, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from ipexctl.errors import UserError
from ipexctl.extras.play.playbook_model import Option, Spec
from ipexctl.launch.run_options import DECLARED
from ipexctl.node.common.asked import Asked
from ipexctl.option_declaration import DEFAULT_ENV, RECONNECT_SECONDS, Declaration, SyncOptions, declarations_of

TIERS: Final = ("avx2", "avx512", "avx512_bf16", "amx")
SYSCTL: Final = re.compile(r"[a-z0-9_]+(\.[a-zA-Z0-9_\-]+)+")
_KINDS: Final[Mapping[Any, Any]] = {
    str: "str", int: "int", float: "float", bool: "bool", Path: "path", tuple[str, ...]: "list",
}  # fmt: skip
_TEXT: Final = Option("str")
_LIST: Final = Option("list")
_COUNT: Final = Option("int", minimum=1)
_YES: Final = Option("bool", default=True)
_NO: Final = Option("bool", default=False)
_PRESENT: Final = Option("str", default="present", choices=("present", "absent"))


def _exec(given: Mapping[str, Any]) -> str | None:
    if isinstance(given.get("cmd"), list) and not given["cmd"][0]:
        return "the list must begin with a program"
    return None


def _fetch(given: Mapping[str, Any]) -> str | None:
    if "path" in given and "run" not in given:
        return "'path' is a path in a run: give 'run' too, or use 'src' for a file on the host"
    return None


def _wait(given: Mapping[str, Any]) -> str | None:
    if "port" in given and "path" in given:
        return "'port' and 'path' need two tasks"
    if "port" in given and given["port"] > 65535:
        return f"{given['port']} is not a port number"
    if "host" in given and "port" not in given:
        return "'host' needs 'port'"
    return None


def _file(given: Mapping[str, Any]) -> str | None:
    if ("src" in given) != (given.get("state") == "link"):
        return "'src' and state: link need each other"
    if "mode" in given and given.get("state") in ("link", "absent"):
        return f"'mode' has no effect with state: {given['state']}"
    return None


def _env(given: Mapping[str, Any]) -> str | None:
    if "from" in given and given.get("state", "verified") != "named":
        return "'from' needs state: named"
    if given.get("state") == "named" and "from" not in given:
        return "state: named needs 'from', the environment to name"
    return None


def _tune(given: Mapping[str, Any]) -> str | None:
    for name in given.get("sysctl") or {}:
        if not SYSCTL.fullmatch(name):
            return f"'{name}' is not a sysctl such as vm.swappiness"
    return None


def _run(given: Mapping[str, Any]) -> str | None:
    if "cmd" in given and "argv" in given:
        return "'cmd' already has the command"
    return _of_request(given)


def _of_request(given: Mapping[str, Any]) -> str | None:
    """What `ipexctl run` would refuse on any hosts; checked early, so that no earlier task trains in vain."""
    from ipexctl.run.start.request import check_request, with_given

    try:
        check_request(with_given(Asked(argv=("",)), given))
    except UserError as error:
        return str(error.message + " (" + error.fix + ")") if error.fix else error.message
    return None


def declared_options(declared: Mapping[str, Declaration]) -> dict[str, Option]:
    types, defaults = get_type_hints(Asked), Asked._field_defaults
    return {name: _option(types[name], defaults[name], declaration) for name, declaration in declared.items()}


def _option(type_: Any, default: Any, declaration: Declaration) -> Option:
    kinds = get_args(type_) if isinstance(type_, UnionType) else (type_,)
    choices = get_args(type_) if get_origin(type_) is Literal else ()
    kind: Any = declaration.kind or ("str" if choices else _KINDS[kinds[0]])
    kind = "path" if kind == "directory" else kind
    return Option(kind, default=default, choices=choices, minimum=declaration.minimum, maximum=declaration.maximum)


_COMMAND: Final[Mapping[str, Option]] = {
    "cmd": Option("command", required=True, aliases=("argv", "_raw_params")),
    **dict.fromkeys(("creates", "removes", "chdir"), Option("path")),
    "stdin": _TEXT,
}
_PUT: Final[Mapping[str, Option]] = {
    "dest": Option("path", required=True),
    "mode": Option("mode"),
    "backup": _NO,
    "follow": _NO,
}
_COPY: Final[Mapping[str, Option]] = {"src": Option("path"), "content": _TEXT, **_PUT}
_OF_PATH: Final[Mapping[str, Option]] = {"path": Option("path", required=True, aliases=("dest", "name"))}
_FILE: Final[Mapping[str, Option]] = {
    **_OF_PATH,
    "state": Option("str", choices=("directory", "file", "link", "touch", "absent")),
    "src": Option("path"),
    "mode": Option("mode"),
    "follow": _NO,
}
_WAIT_FOR: Final[Mapping[str, Option]] = {
    "port": _COUNT,
    "host": _TEXT,
    "path": Option("path"),
    "state": Option("str", default="started", choices=("started", "stopped", "present", "absent")),
    "seconds": Option("float", default=300.0, minimum=0, aliases=("timeout",)),
    "delay": Option("float", default=0.0, minimum=0),
}
_FETCH: Final[Mapping[str, Option]] = {
    "src": Option("path"),
    "run": _TEXT,
    "path": Option("path"),
    "dest": Option("path", required=True),
    "flat": _NO,
    "fail_on_missing": _YES,
}
_ASSERT: Final[Mapping[str, Option]] = {
    "that": Option("exprs", required=True),
    "fail_msg": Option("str", aliases=("msg",)),
    "success_msg": _TEXT,
    "quiet": _NO,
}
_DOCTOR: Final[Mapping[str, Option]] = {
    "require": Option("str", choices=TIERS),
    "network": _YES,
    "smoke": _NO,
    "warnings": Option("str", default="show", choices=("show", "fail")),
    "ignore": _LIST,
}
_INSTALL: Final[Mapping[str, Option]] = {
    **dict.fromkeys(("torch", "stack", "ipex", "oneccl", "python", "index_url", "wheelhouse"), _TEXT),
    **dict.fromkeys(("requirements", "extra_index_url", "find_links"), _LIST),
    **dict.fromkeys(("require_oneccl", "offline", "upgrade", "downgrade"), _NO),
    "env": Option("env", default=DEFAULT_ENV, aliases=("name",)),
    "with": Option("list", aliases=("packages",)),
}
_ENV: Final[Mapping[str, Option]] = {
    "name": Option("env", default=DEFAULT_ENV),
    "state": Option("str", default="verified", choices=("verified", "absent", "named")),
    "from": Option("env", aliases=("source",)),
    "force": _NO,
}
_RUN: Final[Mapping[str, Option]] = {
    "script": Option("path"),
    "module": _TEXT,
    "cmd": Option("command"),
    "argv": Option("list", aliases=("args",)),
    **declared_options(DECLARED),
    "creates": Option("path"),
    "reconnect": Option("float", default=RECONNECT_SECONDS, minimum=0),
    "detach": _NO,
    "fewer": _NO,
}
_TUNE: Final[Mapping[str, Option]] = {
    "linger": Option("bool"),
    "thp": Option("str", choices=("always", "madvise", "never")),
    "governor": _TEXT,
    "sysctl": Option("dict"),
    "state": _PRESENT,
}
_DURATION: Final = Option("float", default=0.0, minimum=0)

SPECS: Final[Mapping[str, tuple[Spec, ...]]] = {
    "basic": (
        Spec("exec", "host", _COMMAND, free="cmd", becomes=True, check=_exec),
        Spec("command", "host", _COMMAND, free="cmd", becomes=True, check=_exec),
        Spec("pause", "control", {"seconds": _DURATION, "minutes": _DURATION}, once=True),
        Spec("wait_for", "host", _WAIT_FOR, becomes=True, check=_wait),
        Spec("assert", "control", _ASSERT),
        Spec("fail", "control", {"msg": Option("str", default="asked to fail")}, free="msg"),
        Spec("debug", "control", {"msg": Option("any"), "var": Option("any"), "verbosity": Option("int", default=0)}),
        Spec("set_fact", "control", {}, any_option=True),
    ),
    "copy": (
        Spec("copy", "host", _COPY, one_of=("src", "content"), becomes=True),
        Spec("template", "host", {"src": Option("path", required=True), **_PUT}, becomes=True),
    ),
    "file": (
        Spec("file", "host", _FILE, becomes=True, check=_file),
        Spec("stat", "host", {**_OF_PATH, "follow": _NO, "get_checksum": _YES}, becomes=True),
        Spec("ping", "host", {}, becomes=True),
    ),
    "fetch_task": (Spec("fetch", "host", _FETCH, one_of=("src", "run"), becomes=True, check=_fetch),),
    "own_commands": (
        Spec("doctor", "all", _DOCTOR),
        Spec("sync", "all", {"src": Option("path"), **declared_options(declarations_of(SyncOptions))}, free="src"),
        Spec("install", "all", _INSTALL),
        Spec("env", "all", _ENV, free="name", check=_env),
    ),
    "run_task": (
        Spec("run", "all", _RUN, free="script", is_cluster_job=True, one_of=("script", "module", "cmd"), check=_run),
    ),
    "tune": (Spec("tune", "host", _TUNE, becomes=True, check=_tune),),
    "migrate": (Spec("migrate", "all", {"src": Option("path", default="."), "apply": _NO}, free="src"),),
}


_FILES: Final = {spec.name: file for file, specs in SPECS.items() for spec in specs}
_SPECS: Final = {spec.name: spec for specs in SPECS.values() for spec in specs}
MODULES: Final = {**_SPECS, "shell": _SPECS["exec"]}


def runner(name: str) -> Callable[..., Any]:
    """A module's function; the `where` of its declaration decides how it is called: `control`: (context, call) ->
    TaskResult; `host`: (context, call, session) -> TaskResult; `all`: (context, call, hosts) -> TaskResult for
    all hosts, or a mapping from the host's name.
    """
    file = import_module(f"ipexctl.extras.play.modules.{_FILES[name]}")
    function: Callable[..., Any] = file.RUNNERS[name]
    return function
