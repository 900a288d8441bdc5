"""The modules assert, fail, debug and set_fact; they run on the control machine without a session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ipexctl.extras.play.options import OMIT
from ipexctl.extras.play.playbook_file import Templated
from ipexctl.extras.play.result import Call, Result, failed

if TYPE_CHECKING:
    from ipexctl.extras.play.play_context import PlayContext


def _assert(_: PlayContext, call: Call) -> Result:
    for text, holds in call.args["that"]:
        if not holds:
            reason = call.args["fail_msg"] or f"it does not hold: {text}"
            return failed(reason, assertion=text, evaluated_to=False)
    return Result("ok", message="" if call.args["quiet"] else call.args["success_msg"] or "all of it holds")


def _fail(_: PlayContext, call: Call) -> Result:
    return failed(call.args["msg"])


def _debug(context: PlayContext, call: Call) -> Result:
    if call.args["verbosity"] > context.options.verbose:
        return Result("skipped", "verbosity: -" + "v" * call.args["verbosity"] + " shows it")
    value = call.args["msg"]
    if value is None and "var" in call.task.args:
        var = call.task.args["var"].value
        name = (var.text if isinstance(var, Templated) else str(var)).strip()
        return Result("ok", message=f"{name} = {_to_text(call.args['var'])}", data={name: call.args["var"]})
    text = "Hello world!" if value is None else value if isinstance(value, str) else _to_text(value)
    return Result("ok", message=text, data={"msg": value})


def _set_fact(_: PlayContext, call: Call) -> Result:
    facts = {name: value for name, value in call.args.items() if name != "cacheable" and value != OMIT}
    return Result("ok", data={"ansible_facts": facts})


def _to_text(value: object) -> str:
    return json.dumps(value, indent=2 if isinstance(value, dict | list) else None, ensure_ascii=False)


RUNNERS: Final = {"assert": _assert, "fail": _fail, "debug": _debug, "set_fact": _set_fact}
