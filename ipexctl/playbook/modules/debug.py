"""The modules assert, fail, debug and set_fact; they run on the control machine without a session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ipexctl.playbook.options import OMIT, text_of_template
from ipexctl.playbook.result import Call, Result, failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.playbook.play_context import PlayContext


class _Assert:
    def run_locally(self, context: PlayContext, call: Call, conditions: Sequence[bool]) -> Result:
        del context
        for text, holds in zip(call.args["that"], conditions, strict=True):
            if not holds:
                fail_msg = call.args["fail_msg"]
                return failed(
                    f"{fail_msg}" if fail_msg else f"it does not hold: {text}", assertion=text, evaluated_to=False
                )
        return Result("ok", message="" if call.args["quiet"] else call.args["success_msg"] or "all of it holds")


class _Fail:
    def run_locally(self, context: PlayContext, call: Call, conditions: Sequence[bool]) -> Result:
        del context, conditions
        return failed(call.args["msg"])


class _Debug:
    def run_locally(self, context: PlayContext, call: Call, conditions: Sequence[bool]) -> Result:
        del conditions
        if call.args["verbosity"] > context.options.verbose:
            return Result("skipped", "verbosity: -" + "v" * call.args["verbosity"] + " shows it")
        value = call.args["msg"]
        if value is None and "var" in call.task.args:
            name = text_of_template(call.task.args["var"].value).strip()
            return Result("ok", message=f"{name} = {_to_text(call.args['var'])}", data={name: call.args["var"]})
        text = "Hello world!" if value is None else value if isinstance(value, str) else _to_text(value)
        return Result("ok", message=text, data={"msg": value})


class _SetFact:
    def run_locally(self, context: PlayContext, call: Call, conditions: Sequence[bool]) -> Result:
        del context, conditions
        facts = {name: value for name, value in call.args.items() if name != "cacheable" and value != OMIT}
        return Result("ok", data={"ansible_facts": facts})


def _to_text(value: Any) -> str:
    return json.dumps(value, indent=2 if isinstance(value, dict | list) else None, ensure_ascii=False)


RUNNERS: Final = {"assert": _Assert(), "fail": _Fail(), "debug": _Debug(), "set_fact": _SetFact()}
