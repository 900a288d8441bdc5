"""Declare the modules of playbooks: their options, types, defaults and refused combinations.

`SPECS` has a row for each module, below the name of the file that implements it; `runner` imports that file only when
a task runs. A function `_NAME` here takes the options that are given, and returns why they can't be combined, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from ipexctl.addons.play.options import Option, Spec, declared
from ipexctl.errors import UserError
from ipexctl.launch.run_declarations import DECLARED
from ipexctl.node.common.run_options import RunOptions
from ipexctl.option_declaration import DEFAULT_ENV, RECONNECT_SECONDS, Declaration, SyncOptions, declarations_of

SYSCTL: Final = re.compile(r"[a-z0-9_]+(\.[a-zA-Z0-9_\-]+)+")
_KINDS: Final[Mapping[Any, str]] = {
    str: "str", int: "int", float: "float", bool: "bool", Path: "path", tuple[str, ...]: "list",
}  # fmt: skip
Given = Mapping[str, Any]
"""Option → its value, only of options that the task gives."""


def _exec(given: Given) -> str | None:
    is_empty = isinstance(given.get("cmd"), list) and not given["cmd"][0]
    return "the list must begin with a program" if is_empty else None


def _fetch(given: Given) -> str | None:
    if "path" in given and "run" not in given:
        return "'path' is a path in a run: give 'run' too, or use 'src' for a file on the host"
    return None


def _wait(given: Given) -> str | None:
    if "port" in given and "path" in given:
        return "'port' and 'path' need two tasks"
    if given.get("port", 0) > 65535:
        return f"{given['port']} is not a port number"
    return "'host' needs 'port'" if "host" in given and "port" not in given else None


def _file(given: Given) -> str | None:
    if ("src" in given) != (given.get("state") == "link"):
        return "'src' and state: link need each other"
    is_useless = "mode" in given and given.get("state") in ("link", "absent")
    return f"'mode' has no effect with state: {given['state']}" if is_useless else None


def _env(given: Given) -> str | None:
    if "from" in given and given.get("state", "verified") != "named":
        return "'from' needs state: named"
    lacks_source = given.get("state") == "named" and "from" not in given
    return "state: named needs 'from', the environment to name" if lacks_source else None


def _tune(given: Given) -> str | None:
    unknown = (name for name in given.get("sysctl") or {} if not SYSCTL.fullmatch(name))
    return next((f"'{name}' is not a sysctl such as vm.swappiness" for name in unknown), None)


def _run(given: Given) -> str | None:
    """Return also what `ipexctl run` would refuse on any hosts, so that no earlier task trains in vain."""
    from ipexctl.run.start.start_request import check_request, set_options

    if "cmd" in given and "argv" in given:
        return "'cmd' already has the command"
    try:
        check_request(set_options(RunOptions(argv=("",)), given))
    except UserError as error:
        return str(error.message + " (" + error.fix + ")") if error.fix else error.message
    return None


def _of_command(declarations: Mapping[str, Declaration]) -> dict[str, Option]:
    """Return options of a module with the names, types, limits and defaults of a command's options."""
    options = {}
    for name, declaration in declarations.items():
        type_ = get_type_hints(RunOptions)[name]
        choices = get_args(type_) if get_origin(type_) is Literal else ()
        plain = get_args(type_)[0] if isinstance(type_, UnionType) else type_
        kind = declaration.kind.replace("directory", "path") or ("str" if choices else _KINDS[plain])
        default = RunOptions._field_defaults[name]
        options[name] = Option(kind, False, default, choices, declaration.minimum, declaration.maximum)
    return options


_COMMAND: Final = declared("cmd,argv,_raw_params:command! creates:path removes:path chdir:path stdin")
_PUT: Final = declared("dest:path! mode:mode backup:bool=no follow:bool=no")
_PATH: Final = declared("path,dest,name:path! follow:bool=no")
_STATE: Final = declared("state{directory|file|link|touch|absent} src:path mode:mode")
_WAIT_FOR: Final = declared(
    "port:int>=1 host path:path state{started|stopped|present|absent}=started seconds,timeout:float=300>=0"
    " delay:float=0>=0"
)
_FETCH: Final = declared("src:path run path:path dest:path! flat:bool=no fail_on_missing:bool=yes")
_DOCTOR: Final = declared(
    "require{avx2|avx512|avx512_bf16|amx} network:bool=yes smoke:bool=no warnings{show|fail}=show ignore:list"
)
_INSTALL: Final = declared(
    "torch stack ipex oneccl python index_url wheelhouse requirements:list extra_index_url:list find_links:list"
    " require_oneccl:bool=no offline:bool=no upgrade:bool=no downgrade:bool=no with,packages:list"
    f" env,name:env={DEFAULT_ENV}"
)
_ENV: Final = declared(f"name:env={DEFAULT_ENV} state{{verified|absent|named}}=verified from,source:env force:bool=no")
_RUN: Final = {
    **declared("script:path module cmd:command argv,args:list"),
    **_of_command(DECLARED),
    **declared(f"creates:path reconnect:float={RECONNECT_SECONDS}>=0 detach:bool=no fewer:bool=no"),
}
_TUNE: Final = declared("linger:bool thp{always|madvise|never} governor sysctl:dict state{present|absent}=present")
_SYNC: Final = declared("src:path") | _of_command(declarations_of(SyncOptions))
_FAIL: Final = {"msg": Option(default="asked to fail")}

SPECS: Final[Mapping[str, tuple[Spec, ...]]] = {
    "basic": (
        Spec("exec", "host", _COMMAND, free="cmd", becomes=True, check=_exec),
        Spec("command", "host", _COMMAND, free="cmd", becomes=True, check=_exec),
        Spec("pause", "control", declared("seconds:float=0>=0 minutes:float=0>=0"), once=True),
        Spec("wait_for", "host", _WAIT_FOR, becomes=True, check=_wait),
        Spec("assert", "control", declared("that:exprs! fail_msg,msg success_msg quiet:bool=no")),
        Spec("fail", "control", _FAIL, free="msg"),
        Spec("debug", "control", declared("msg:any var:any verbosity:int=0")),
        Spec("set_fact", "control", {}, any_option=True),
    ),
    "copy": (
        Spec("copy", "host", declared("src:path content") | _PUT, one_of=("src", "content"), becomes=True),
        Spec("template", "host", declared("src:path!") | _PUT, becomes=True),
    ),
    "file": (
        Spec("file", "host", _PATH | _STATE, becomes=True, check=_file),
        Spec("stat", "host", _PATH | declared("get_checksum:bool=yes"), becomes=True),
        Spec("ping", "host", {}, becomes=True),
    ),
    "fetch_task": (Spec("fetch", "host", _FETCH, one_of=("src", "run"), becomes=True, check=_fetch),),
    "own_commands": (
        Spec("doctor", "all", _DOCTOR),
        Spec("sync", "all", _SYNC, free="src"),
        Spec("install", "all", _INSTALL),
        Spec("env", "all", _ENV, free="name", check=_env),
    ),
    "run_task": (
        Spec("run", "all", _RUN, free="script", is_cluster_job=True, one_of=("script", "module", "cmd"), check=_run),
    ),
    "tune": (Spec("tune", "host", _TUNE, becomes=True, check=_tune),),
    "migrate": (Spec("migrate", "all", declared("src:path=. apply:bool=no"), free="src"),),
}


_FILES: Final = {spec.name: file for file, specs in SPECS.items() for spec in specs}
_SPECS: Final = {spec.name: spec for specs in SPECS.values() for spec in specs}
MODULES: Final = {**_SPECS, "shell": _SPECS["exec"]}
"""Name in a playbook → the module."""


def runner(name: str) -> Callable[..., Any]:
    """Return the function of a module. `Spec.where` decides what it takes and returns:

    - `control`: (context, call) → TaskResult
    - `host`: (context, call, session) → TaskResult
    - `all`: (context, call, hosts) → a TaskResult for all hosts, or a mapping host → its TaskResult
    """
    file = import_module(f"ipexctl.addons.play.modules.{_FILES[name]}")
    function: Callable[..., Any] = file.RUNNERS[name]
    return function
