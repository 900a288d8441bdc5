"""The waits of a program on a node: limits that a user can feel, side by side. The control machine has its own in
`ipexctl/limits.py`.

It decides nothing and imports nothing. The limits by which a run counts as alive or over are in `liveness.py`, as they
belong to its rule; those of a run that is going on are beside its states, in `run/rank.py`, `run/supervisor.py`,
`run/rank_connections.py`, `run/supervisor_client.py`, `run/stack_dumps.py` and `run/mpirun.py`; that of an exchange of
checkpoints is `files/checkpoint.py: TIME_LIMIT`. docs/run.md has each value of this file. All values are seconds.
"""

from __future__ import annotations

SETUP_FILE = 90.0
"""For a file of `--setup`: one that waits for input would block without a message."""
RANKS_BEGIN = 120.0
"""For every rank to connect after mpirun has started: logins and homes may be slow."""
NOTIFY_CLAIM = 20.0
"""After the end of a run, for a call that follows it to claim the command of `--notify` before node0 runs it."""
NOTIFY = 60.0
"""For the command of `--notify`: then it is killed."""
LOCK_HOLDER_SILENCE = 75.0
"""Without a heartbeat, a lock's holder on another machine counts as dead; NFS caches times for up to 60."""
TREE_LOCK = 90.0
"""To wait for another sync: longer than it takes to notice that another machine has died."""
UPLOAD_SILENCE = 300
"""To wait for each chunk of an upload, with the tree locked: a lost connection may never end the stream."""
DOWNLOAD_SILENCE = 30.0
"""Without a byte of an index or a file server, until the next try."""
PEER_SILENCE = 60.0
"""Without a byte of another host's file server, until another route is tried."""
