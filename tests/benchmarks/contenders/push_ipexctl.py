"""A tree to every host the way ipexctl's own commands send one: one bundle, packed once, sent to all at a time.

push_ipexctl.py KEY KNOWN_HOSTS USER TREE DESTINATION ADDRESS…
"""

from __future__ import annotations

import sys
from pathlib import Path

from ipexctl.hosts.host import Host
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import fan_out
from ipexctl.remote.push import bundled, push_bundle, tree_items
from ipexctl.remote.reach import Reach, ReachOptions


def main() -> None:
    key, known_hosts, user, tree, destination, *addresses = sys.argv[1:]
    hosts = [Host(a, a, user=user, identity=Path(key), known_hosts=Path(known_hosts)) for a in addresses]
    cancel = Cancel()
    lost = 0
    with Reach(ReachOptions()) as reach, bundled(tree_items(Path(tree))) as bundle:

        def on_one(host: Host) -> bool:
            session = reach.open(host, cancel)
            try:
                push_bundle(session, bundle, destination, cancel=cancel)
            finally:
                session.close()
            return True

        for done in fan_out(hosts, on_one, forks=32, cancel=cancel):
            if done.error is not None:
                lost += 1
                print(f"{done.host.name}: {done.error.reason}", file=sys.stderr)
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
