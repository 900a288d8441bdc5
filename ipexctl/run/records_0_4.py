"""Reads registry records of 0.4, which have only the hosts of ranks in place of a plan, and writes what 0.4 reads. A
login node also reports hosts and ranks of a submitted run in these fields. To be removed with 0.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ipexctl.node.common.asked import Asked
from ipexctl.node.common.json_records import decode
from ipexctl.node.common.plan import Plan, with_ranks
from ipexctl.option_declaration import CallOptions
from ipexctl.spec import TypedCall

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json


class _RecordOf04(NamedTuple):
    script: str = ""
    env: str = ""
    world_size: int = 0
    hosts: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    cwd: str = ""
    again: str = ""
    again_run: str = ""
    job: str = ""
    typed_options: tuple[str, ...] = ()
    typed_words: tuple[str, ...] = ()
    typed_in: str = ""
    first_world_size: int = 0


def from_0_4(document: Json) -> dict[str, Any]:
    """Make the fields of our record that a 0.4 record lacks. Raises a ValueError."""
    old = decode(_RecordOf04, document, "the record")
    plan = Plan(
        str(document.get("id")),
        str(document.get("home")),
        node0="",
        asked=Asked(argv=(old.script,) if old.script else ()),
        python=str(document.get("python")),
        env=old.env or None,
        cwd=old.cwd,
        job=old.job,
        first_world_size=old.first_world_size or old.world_size,
        stores={name: name if name in old.stores else next(iter(old.stores), name) for name in old.hosts},
    )
    return {
        "source": with_ranks(plan, old.hosts, old.ranks) if old.hosts else plan,
        "options": CallOptions(old.again, old.again_run),
        "typed": TypedCall(old.typed_options, old.typed_words, old.typed_in),
    }


def for_0_4(
    plan: Plan, options: CallOptions, typed: TypedCall, hosts: tuple[str, ...], leaders: tuple[str, ...]
) -> Json:
    return _RecordOf04(
        plan.script,
        plan.environment,
        plan.world_size,
        hosts,
        leaders,
        plan.rank_hosts,
        plan.cwd,
        options.hosts,
        options.run,
        plan.job,
        typed.options,
        typed.words,
        typed.directory,
        plan.first_world_size,
    )._asdict()
