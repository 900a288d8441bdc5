"""Waits on a node that a user can notice, in seconds. The control machine's are in `ipexctl/limits.py`.

Limits that decide whether a run is alive are in `liveness.py`; unnoticed ones, such as polling pauses, are next to
their code. docs/run-watch.md lists those that a user meets.
"""

from __future__ import annotations

SETUP_FILE = 90.0
"""For a file of `--setup`: one that waits for input would block silently."""
RANKS_BEGIN = 120.0
"""For every rank to connect after mpirun started: logins and homes may be slow."""
CHECKPOINT_STEP = 21600.0
"""For a step of the checkpoint exchange on all hosts together, such as sending large files."""

# A host sends files.
SIGN_OF_LIFE = 5.0
"""Without a byte of a list or file, until the host reports that it is working."""
LONGEST_READ = 3600.0
"""For a host to keep reporting while it waits for a disk; then the control machine's own limit ends the call."""

# The supervisor loses a rank.
RANK_SILENCE = 25.0
"""Without a message until a rank counts as lost: it sends one every four seconds."""
RANK_RECONNECT = 3.0
"""For a rank to reconnect a broken connection; RANK_SILENCE if it told us before."""
RANK_STUCK = 10.0
"""For an interpreter to exit after an uncaught exception."""

# The supervisor looks for the next attempt's hosts, counted from the failure.
HOST_ANSWER = 10.0
"""For the hosts of a run with --min-hosts to answer: the next attempt begins without the others."""
LOST_HOST_ANSWER = 3.0
"""For a host that was just lost, once all others have answered."""
STARTER_CALL = 5.0
"""For node0 to restart a missing starter by a login; it retries once while ranks wait."""
HOST_JOB = 15.0
"""For a host to take the job of the next attempt."""
STARTER_WAIT = 3600.0
"""For a host's starter to wait for a lost supervisor: the host may rejoin the run."""

# A rank loses its supervisor, most patient case last. `supervisor_contact.py` chooses.
SUPERVISOR_AT_EXIT = 3.0
"""Without a message after mpirun sent a signal and the command exited: mpirun is about to kill the rank."""
SUPERVISOR_REFUSED = 8.0
"""Without a message while its port is closed: a dead supervisor is not replaced."""
SUPERVISOR_CONNECT = 20.0
"""For the first connection. Nothing runs yet, so giving up costs nothing."""
SUPERVISOR_SILENCE = 50.0
"""Without a message while its port takes no connection; then the command is killed."""
SUPERVISOR_BUSY = 180.0
"""Without a message while its port takes connections: it may wait for NFS, whose server restarts in 90."""

# A run ends when both mpirun and the ranks have exited, in any order. Ranks are told to stop and have TERM_GRACE until
# their wrappers kill them, and so has mpirun. RANK_EXIT is added before a rank that is still connected is given up.
# While a full disk holds output back, FULL_DISK_FLUSH replaces both; if the disk stays full, that wait ends after
# FULL_DISK_ROOM. LAST_MESSAGES is only about the network.
TERM_GRACE = 4.0
"""For ranks to exit between SIGTERM and SIGKILL."""
OUTPUT_DRAIN = 2.0
"""For processes left by a rank's command to close its output."""
RANK_EXIT = 8.0
"""For ranks to exit on busy machines, after the grace period."""
MPIRUN_EXIT = 10.0
"""For mpirun to exit once every rank has."""
LAST_MESSAGES = 2.0
"""For the ranks' last messages to arrive once mpirun has exited."""
FULL_DISK_ROOM = 5.0
"""For a full disk to get room once every rank has exited, as when another program removes its files. A call that
follows the run has its output, so waiting longer saves little."""
FULL_DISK_FLUSH = 30.0
"""To write output once a full disk has room again, and for the last status."""

QUEUE_ANSWER = 5.0
"""For the queue's controller to answer about a job, where the call can do without an answer."""
JOB_NOTICE = 60.0
"""Before the end of a queue's job, for ranks to save; a quarter of a job under four minutes."""
JOB_STOP = 15.0
"""Before the end of a queue's job, to stop the run; a sixteenth of a job under four minutes."""
ORPHANED_JOB = 1200.0
"""For the queue's controller to count a dead node0 of a run with --min-hosts as down: most wait 300."""

NOTIFY_CLAIM = 20.0
"""After a run's end, for a call that follows it to claim the `--notify` command before node0 runs it."""
NOTIFY = 60.0
"""For the command of `--notify` until it is killed."""

DUMP_REPLIES = 8.0
"""For all ranks to report their stacks."""
GREP_SEARCH = 10.0
"""For `logs --grep` to search some lines: an expression such as (a+)+$ takes years for some."""
ENV_SIZES = 20.0
"""To measure all environments of a home."""

LOCK_HOLDER_SILENCE = 75.0
"""Without a heartbeat until a lock's holder on another machine counts as dead; NFS caches times for up to 60."""
TREE_LOCK = 90.0
"""To wait for another sync: longer than it takes to notice that a machine died."""
PRUNE_LOCK = 90.0
"""To wait for another call that removes records of runs."""
UPLOAD_SILENCE = 300
"""For each chunk of an upload while the tree is locked: a lost connection may never end the stream."""
HUB_ANSWER = 5.0
"""For the hub to answer a host before a run that uses it."""
DOWNLOAD_SILENCE = 30.0
"""Without a byte of an index or file server until a retry."""
PEER_SILENCE = 60.0
"""Without a byte of another host's file server until another route is tried."""
