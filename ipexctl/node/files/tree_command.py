"""Agent command for a project's tree: describes it and, with a manifest, updates it in the same call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO

from ipexctl.node.common.answer import answer
from ipexctl.node.common.home import home_of
from ipexctl.node.files.tree import inspect, remove_job_files

if TYPE_CHECKING:
    from ipexctl.node.files.replies import TreesReply
    from ipexctl.node.files.tree import TreeRequest


def inspect_or_update(request: TreeRequest, stream: BinaryIO) -> TreesReply:
    if not request["dry_run"]:
        remove_job_files(os.fsencode(home_of(request, "code")), request["ended"])
    if "expected" not in request:
        return inspect(request)
    from ipexctl.node.files.tree_upload import update  # imports OpenSSL, 10 ms that a description does not need

    return update(request, stream)


def main(action: str) -> int:
    return answer({"inspect": inspect_or_update}[action])
