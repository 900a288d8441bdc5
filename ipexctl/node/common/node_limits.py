"""Time limits on a node that a user can notice, in seconds. docs/run-watch.md lists the limits that users meet."""

from __future__ import annotations

SETUP_FILE = 90.0
"""Seconds for a `--setup` file. A file that waits for input would block silently."""
RANKS_BEGIN = 120.0
"""Seconds for every rank to connect after the launcher started. Logins and homes may be slow."""
CHECKPOINT_STEP = 21600.0
"""Seconds for one step of the checkpoint exchange on all hosts, such as sending large files."""

# A host sends files.
SIGN_OF_LIFE = 5.0
"""Seconds without a byte of a list or file, until the host reports that it is still working."""
LONGEST_READ = 3600.0
"""Seconds after which a host that waits for a disk stops reporting; then the control machine's limit ends the call."""

# The supervisor loses a rank.
RANK_SILENCE = 25.0
"""Seconds without a message until a rank counts as lost. A rank sends one every four seconds. A rank whose connection
broke has as long to reconnect, unless its host says that its wrapper is gone."""
STARTER_RECONNECT = 3.0
"""Seconds for a host's starter to reconnect after its connection broke."""
WRAPPER_ASK = 2.0
"""Seconds between two questions to a host about a rank wrapper that closed its connection."""
RANK_STUCK = 10.0
"""Seconds for an interpreter to exit after an uncaught exception."""

# The supervisor looks for the next attempt's hosts. Time counts from the failure.
HOST_ANSWER = 10.0
"""Seconds for the hosts of a run with --min-hosts to answer. The next attempt begins without the other hosts."""
LOST_HOST_ANSWER = 3.0
"""Seconds for a host that was just lost to answer, once all other hosts have answered."""
STARTER_CALL = 5.0
"""Seconds for node0 to log in and restart a missing starter. While ranks wait for that, node0 retries."""
STARTER_WAIT = 3600.0
"""Seconds for a host's starter to wait for a lost supervisor, because the host may rejoin the run."""

# A rank loses its supervisor. The limits go from least to most patient; `supervisor_contact.py` chooses one.
SUPERVISOR_REFUSED = 8.0
"""Seconds without a message while the supervisor's port is closed. A dead supervisor is not replaced."""
SUPERVISOR_CONNECT = 20.0
"""Seconds for the first connection. Nothing runs yet, so giving up costs nothing."""
SUPERVISOR_SILENCE = 50.0
"""Seconds without a message while the supervisor's port does not answer; then the command is killed."""
SUPERVISOR_BUSY = 180.0
"""Seconds without a message while the supervisor's port accepts: an NFS server may restart, which takes 90 seconds."""

# A run ends when both the launcher and the ranks have exited, in any order. Ranks asked to stop have TERM_GRACE until
# their wrappers kill them; the launcher has as long. A rank that is still connected gets RANK_EXIT on top before it is
# given up. While a full disk holds output back, FULL_DISK_FLUSH replaces both limits; if the disk stays full, the wait
# ends after FULL_DISK_ROOM. LAST_MESSAGES is only about the network.
TERM_GRACE = 4.0
"""Seconds between SIGTERM and SIGKILL."""
OUTPUT_DRAIN = 2.0
"""Seconds for processes that a rank's command left behind to close its output."""
RANK_EXIT = 8.0
"""Seconds for ranks to exit after the grace period, on busy machines."""
LAUNCHER_EXIT = 10.0
"""Seconds for the launcher to exit once every rank has exited."""
STORE_KEPT = 3600.0
"""Seconds for the other ranks to close rank 0's rendezvous store after its script has ended."""
LAST_MESSAGES = 2.0
"""Seconds for the ranks' last messages to arrive once the launcher has exited."""
FULL_DISK_ROOM = 5.0
"""Seconds for a full disk to get free space once every rank has exited. A call that follows already has the output."""
FULL_DISK_FLUSH = 30.0
"""Seconds to write output and the last status once a full disk has room again."""

QUEUE_ANSWER = 5.0
"""Seconds for the queue's controller to answer about a job, if the call can do without the answer."""
JOB_NOTICE = 60.0
"""Seconds before the job's end, when ranks are told to save; a quarter of a job under four minutes."""
JOB_STOP = 15.0
"""Seconds before the job's end, when the run is stopped; a sixteenth of a job under four minutes."""

NOTIFY_CLAIM = 20.0
"""Seconds for a call that follows an ended run to claim the `--notify` command, before node0 runs it."""
NOTIFY = 60.0
"""Seconds for the `--notify` command to exit before it is killed."""

DUMP_REPLIES = 8.0
"""Seconds for all ranks to send their stacks, or to count their steps for a profile."""
PROFILE_LEAD = 2.0
"""Seconds from the request for a profile to its first step, so that all ranks have it before."""
PROFILE_STEPS = 30.0
"""Seconds for the profiled steps, beside three times as long as they usually take. A rank whose last step was longer
ago stands still."""
GREP_SEARCH = 10.0
"""Seconds for `logs --grep` to search a batch of lines. An expression such as (a+)+$ can take years for one line."""
ENV_SIZES = 20.0
"""Seconds to measure all environments of a home."""

LOCK_HOLDER_SILENCE = 75.0
"""Seconds without a heartbeat until a lock's holder on another machine counts as dead. NFS caches times for 60."""
LOCK_WAIT = 90.0
"""Longer than LOCK_HOLDER_SILENCE, so a dead machine's lock is noticed."""
UPLOAD_SILENCE = 300
"""Seconds for each chunk of an upload while the tree is locked. After a lost connection the stream may never end."""
HUB_ANSWER = 5.0
"""Seconds for the hub to answer a host, before a run that uses the hub."""
DOWNLOAD_SILENCE = 30.0
"""Seconds without a byte of an index or file server until a retry."""
PEER_SILENCE = 60.0
"""Seconds without a byte from another host's file server before another route is tried."""
