"""What else a oneccl_bind_pt wheel without oneCCL inside needs. Pure.

Such a wheel (built with USE_SYSTEM_ONECCL) fails at import unless oneccl and impi-rt are installed too. A wheel on disk
is inspected before a lock is made; one from an index shows it only in the verification. Both give the same fix.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ipexctl.stack.catalog.table import minor, rows, version_key
from ipexctl.stack.lock.wheels import Target

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipexctl.stack.lock.wheels import Availability
    from ipexctl.stack.resolve.model import StackPlan

BINDINGS: Final = "oneccl-bind-pt"
PACKAGES: Final = frozenset({"oneccl", "impi-rt"})
_OLDEST_ON_PYPI: Final = "2021.14"
"""Oldest versions of oneccl and impi-rt that belong together on PyPI (November 2026)."""
_NEWEST: Final = "2021.15"
"""oneCCL of bindings that the version table does not know: torch-ccl 2.8 is built with 2021.15.2."""


def lacks_oneccl(plan: StackPlan, extras: Iterable[str], availability: Availability) -> tuple[str, str] | None:
    """Problem and fix if the plan's bindings have no oneCCL inside and its packages are missing from the plan."""
    if plan.oneccl is None:
        return None
    wheel = availability.build(BINDINGS, Version(plan.oneccl).public, Target(plan.python, plan.glibc))
    names = {canonicalize_name(Requirement(line).name) for line in (*plan.requirements, *extras)}
    if wheel is None or wheel.oneccl is not False or names >= PACKAGES:
        return None
    return f"the wheel of oneccl_bind_pt {plan.oneccl} has no oneCCL inside", add_oneccl(plan.row.name, plan.oneccl)


def add_oneccl(stack: str, bindings: str) -> str:
    row = next((row for row in rows() if row.name == stack), None)
    built_with = [build.oneccl for build in row.oneccl_builds if bindings.startswith(build.version)] if row else []
    version = minor(next(filter(None, built_with), _NEWEST))
    if version_key(version) < version_key(_OLDEST_ON_PYPI):
        return "use a wheel of oneccl_bind_pt with oneCCL inside, such as Intel's: --wheelhouse DIR"
    entry = json.dumps({"name": stack, "requires": [f"oneccl=={version}.*", f"impi-rt=={version}.*"]})
    return (
        f"add the packages oneccl and impi-rt to the stack: add {entry} to the list in $IPEXCTL_ROWS or "
        f"~/.config/ipexctl/rows.json (if there is no such file, create it with [{entry}]), then run "
        "ipexctl install again"
    )
