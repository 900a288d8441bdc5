"""Makes the plan of a start, or refuses it. Pure, but for the search of the project for modules."""

from __future__ import annotations

from pathlib import PurePosixPath

from ipexctl.errors import Refusal
from ipexctl.launch.planner import plan_launch
from ipexctl.launch.python_env import own_paths
from ipexctl.launch.request import Gathered
from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.plan import Plan
from ipexctl.node.env.check import normalize
from ipexctl.option_declaration import install_command
from ipexctl.run.start.script_imports import install_by_run
from ipexctl.run.start.start_notes import OF_PLAN, REFUSALS, texts_of
from ipexctl.run.start.start_request import StartError, check_pool_plan


def make_plan(context: Gathered, run: str) -> Plan:
    """The plan of a run; its working directory follows when the hosts' tree is known. Raises a StartError."""
    spec = context.spec
    for refuse in REFUSALS:
        refuse(spec, context.env.packages)
    plan = plan_launch(context, run)
    if isinstance(plan, Refusal):
        raise StartError(plan)
    plan = plan._replace(notes=tuple(texts_of(OF_PLAN, context, plan)))
    if plan.env:
        requirements = spec.project.requirements
        own = sorted({*requirements.names} - {pin.partition("==")[0] for pin in requirements.pins})
        plan = plan._replace(
            install=str(install_command(spec.asked.env)),
            packages=tuple(sorted(map(normalize, context.env.packages))),
            install_by_run=str(install_by_run(spec) or ""),
            project_packages=(*own, *requirements.pins),
        )
    if spec.asked.has_pool and (refusal := check_pool_plan(spec.asked, plan)) is not None:
        raise StartError(refusal)
    return plan


def in_tree(plan: Plan, tree: str, spec: RunSpec) -> Plan:
    """The plan with the ranks' working directory and the modules' directories in the tree that the hosts have."""
    settings = (*plan.settings, *own_paths(plan.project, tree, plan.rundir))
    return plan._replace(cwd=str(PurePosixPath(tree) / spec.project.subdirectory), settings=settings)
