"""Output of `ipexctl hub`: a line per repository with its hosts, what was removed, or JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from ipexctl.hugging_face import HubRepo
from ipexctl.text import readable
from ipexctl.ui.messages import print_message
from ipexctl.ui.results import group_by, report_json, show_results
from ipexctl.ui.table import fitting_layout, folded_hosts, show_table

if TYPE_CHECKING:
    from ipexctl.hub.cache import CacheReport, CacheResult
    from ipexctl.node.files.replies import CachedRepo

_LAYOUTS: Final = (("repository", "revisions", "files", "size", "last use", "hosts"), ("repository", "size", "hosts"))


def as_json(report: CacheReport) -> dict[str, Any]:
    return report_json("hub", report, without=("is_list",))


def show(report: CacheReport, *, quiet: bool = False, no_color: bool = False) -> None:
    if report.is_list:
        _show_list(report, quiet=quiet, no_color=no_color)
    show_results(report.hosts, _describe, quiet=quiet or report.is_list, no_color=no_color)


def _describe(result: CacheResult) -> str:
    if not result.removed:
        return result.reason or "nothing to remove"
    return f"removed {', '.join(result.removed)}, {readable(result.freed_bytes)}"


def _show_list(report: CacheReport, *, quiet: bool, no_color: bool) -> None:
    entries = [(_row(repo), done.host.name) for done in report.hosts for repo in done.repos]
    if entries:
        equal = group_by(entries, lambda entry: tuple(entry[0].items()))
        rows = [{**dict(row), "hosts": folded_hosts([name for _, name in found])} for row, found in equal.items()]
        layout = fitting_layout(_LAYOUTS, rows)
        show_table(layout, [[row[name] for name in layout] for row in rows], no_color=no_color)
    elif not quiet and any(done.status == "ok" for done in report.hosts):
        print_message("no models and no datasets; ipexctl push brings one, named as hf:ORG/MODEL")


def _row(repo: CachedRepo) -> dict[str, str]:
    return {
        "repository": HubRepo("dataset" if repo.kind == "dataset" else "model", repo.repo_id).word,
        "revisions": ", ".join(revision[:12] for revision in repo.revisions) or "-",
        "files": f"{repo.files:,}",
        "size": readable(repo.size),
        "last use": time.strftime("%Y-%m-%d", time.localtime(repo.used)) if repo.used else "-",
    }
