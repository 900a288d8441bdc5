"""assert, fail, debug and set_fact: no host is touched for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from ipexctl.playbook.options import OMIT, text_of_template
from ipexctl.playbook.result import Result, failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.playbook.play_context import PlayContext
    from ipexctl.playbook.result import Call


class _Assert:
    def here(self, context: PlayContext, call: Call, thats: Sequence[bool]) -> Result:
        del context
        for text, holds in zip(call.args["that"], thats, strict=True):
            if not holds:
                said = call.args["fail_msg"]
                return failed(f"{said}" if said else f"it does not hold: {text}", assertion=text, evaluated_to=False)
        return Result("ok", said="" if call.args["quiet"] else call.args["success_msg"] or "all of it holds")


class _Fail:
    def here(self, context: PlayContext, call: Call, thats: Sequence[bool]) -> Result:
        del context, thats
        return failed(call.args["msg"])


class _Debug:
    def here(self, context: PlayContext, call: Call, thats: Sequence[bool]) -> Result:
        del thats
        if call.args["verbosity"] > context.options.verbose:
            return Result("skipped", "verbosity: -" + "v" * call.args["verbosity"] + " shows it")
        value = call.args["msg"]
        if value is None and "var" in call.task.args:
            name = text_of_template(call.task.args["var"].value).strip()
            return Result("ok", said=f"{name} = {_shown(call.args['var'])}", data={name: call.args["var"]})
        text = "Hello world!" if value is None else value if isinstance(value, str) else _shown(value)
        return Result("ok", said=text, data={"msg": value})


class _SetFact:
    def here(self, context: PlayContext, call: Call, thats: Sequence[bool]) -> Result:
        del context, thats
        facts = {name: value for name, value in call.args.items() if name != "cacheable" and value != OMIT}
        return Result("ok", data={"ansible_facts": facts})


def _shown(value: Any) -> str:
    return json.dumps(value, indent=2 if isinstance(value, dict | list) else None, ensure_ascii=False)


RUNNERS: Final = {"assert": _Assert(), "fail": _Fail(), "debug": _Debug(), "set_fact": _SetFact()}
