"""The waits of a program on a node: limits that a user can feel, side by side. The control machine has its own in
`ipexctl/limits.py`.

It decides nothing and imports nothing. The limits by which a run counts as alive or over are in `liveness.py`, as they
belong to its rule. Those that nobody feels are beside their code: pauses between two looks, and times within which a
connection is made again. docs/run.md has each value of this file. All values are seconds.
"""

from __future__ import annotations

SETUP_FILE = 90.0
"""For a file of `--setup`: one that waits for input would block without a message."""
RANKS_BEGIN = 120.0
"""For every rank to connect after mpirun has started: logins and homes may be slow."""
CHECKPOINT_STEP = 21600.0
"""For a step of the exchange of checkpoints on all hosts together, such as reading and sending large files."""

# A host sends files.
SIGN_OF_LIFE = 5.0
"""Without a byte of a list or a file, until it says that it is at work."""
LONGEST_READ = 3600.0
"""For which it says so while it waits for a disk; the control machine gives up after its own limit then."""

# The supervisor loses a rank.
RANK_SILENCE = 25.0
"""Without a message, until a rank counts as lost: it sends one every four seconds."""
RANK_RECONNECT = 3.0
"""For a rank whose connection has broken to reconnect; one that announced it has RANK_SILENCE."""
RANK_STUCK = 10.0
"""For an interpreter to exit after an uncaught exception."""

# The supervisor looks for the hosts of the next attempt, from the moment at which an attempt fails.
HOST_ANSWER = 10.0
"""For the hosts of a run with --min-hosts to answer: the next attempt begins without the others."""
LOST_HOST_ANSWER = 3.0
"""For a host that was just lost, if all others have answered."""
STARTER_CALL = 5.0
"""For node0 to begin a starter that is gone by a login; then it tries once more, while ranks wait for it."""
HOST_JOB = 15.0
"""For a host to take the job of the next attempt."""
STARTER_WAIT = 3600.0
"""For a supervisor that the starter of a host has lost: the host may join the run again."""

# A rank loses its supervisor, the most patient case last. `supervisor_contact.py` chooses.
SUPERVISOR_AT_EXIT = 3.0
"""Without a message if mpirun has sent a signal and the command has ended: mpirun is about to kill the rank."""
SUPERVISOR_REFUSED = 8.0
"""Without a message if its port is closed: a dead supervisor is not replaced."""
SUPERVISOR_CONNECT = 20.0
"""For the first connection. Nothing runs yet, so that giving up costs nothing."""
SUPERVISOR_SILENCE = 50.0
"""Without a message, if its port has taken no connection for as long; then the command is ended."""
SUPERVISOR_BUSY = 180.0
"""Without a message, while its port takes connections: it may wait for NFS, whose server restarts in 90."""

# A run ends. Two things end, mpirun and the ranks, in any order, and each is waited for with the other's end in mind.
# When the run has an ending, ranks are told to stop and have TERM_GRACE until their wrappers kill them; mpirun, which
# ends with its ranks, has the same. RANK_EXIT comes on top before a rank that is still connected is given up. While a
# full disk holds output back, both have FULL_DISK_FLUSH in place of these, and a disk that stays full ends that wait
# after FULL_DISK_ROOM. LAST_MESSAGES is only about the network.
TERM_GRACE = 4.0
"""For ranks to exit between SIGTERM and SIGKILL."""
OUTPUT_DRAIN = 2.0
"""For processes that a rank's command has left to close its output."""
RANK_EXIT = 8.0
"""After the grace period for ranks to exit, on busy machines."""
MPIRUN_EXIT = 10.0
"""For mpirun to exit once every rank has."""
LAST_MESSAGES = 2.0
"""For the ranks' last messages to arrive once mpirun has exited."""
FULL_DISK_ROOM = 5.0
"""For a full disk to have room again once every rank has ended, as when another program ends and removes its files. A
call that follows the run has its output, so that a long wait saves little."""
FULL_DISK_FLUSH = 30.0
"""For output to be written once a full disk has room again, and for the last status."""

QUEUE_ANSWER = 5.0
"""For the controller of a queue to answer about its configuration or a job, where a call goes on without an answer."""
JOB_NOTICE = 60.0
"""Before the end of a queue's job, for its ranks to save what they have; of a job under four minutes, a quarter."""
JOB_STOP = 15.0
"""Before the end of a queue's job, to stop the run; of a job under four minutes, a sixteenth."""
ORPHANED_JOB = 1200.0
"""For the controller of a queue to count node0 of a run with --min-hosts as down, if it is: most wait for 300."""

NOTIFY_CLAIM = 20.0
"""After the end of a run, for a call that follows it to claim the command of `--notify` before node0 runs it."""
NOTIFY = 60.0
"""For the command of `--notify`: then it is killed."""

DUMP_REPLIES = 8.0
"""For all ranks to report their stacks."""
GREP_SEARCH = 10.0
"""For `logs --grep` to search some lines: an expression such as (a+)+$ takes years for some."""
ENV_SIZES = 20.0
"""To measure the sizes of all environments of a home."""

LOCK_HOLDER_SILENCE = 75.0
"""Without a heartbeat, a lock's holder on another machine counts as dead; NFS caches times for up to 60."""
TREE_LOCK = 90.0
"""To wait for another sync: longer than it takes to notice that another machine has died."""
PRUNE_LOCK = 90.0
"""To wait for another call that removes the records of runs."""
UPLOAD_SILENCE = 300
"""To wait for each chunk of an upload, with the tree locked: a lost connection may never end the stream."""
HUB_ANSWER = 5.0
"""For the hub to answer a host, before a run whose script uses it."""
DOWNLOAD_SILENCE = 30.0
"""Without a byte of an index or a file server, until the next try."""
PEER_SILENCE = 60.0
"""Without a byte of another host's file server, until another route is tried."""
