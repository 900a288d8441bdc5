"""Limits of the control machine that a user can feel, in seconds. `node/common/limits.py` has those of the nodes.

Imports nothing, so that any module can take a limit from here. Limits that no user feels stay with the only code that
reads them. docs/run-watch.md lists those that a user can set or meets, and a test compares its figures with these.
"""

from __future__ import annotations

from typing import Final

DEAD_AFTER: Final = 30
"""Without a packet from a connected host. The connection counts as lost at most half of this later."""
STEP_SILENCE: Final = 3600.0
"""A step of ipexctl without `--timeout` may neither print nor read for this long; then a disk of the host hangs."""
FETCH_SILENCE: Final = 60.0
"""Without a sign of life from a host that sends files (one every 5 seconds, also while it only reads). Then its program
is ended, if there is no `--timeout`."""
PROBE_REST: Final = 5.0
"""For the rest of a probe after its first output: a dead file server must not block doctor."""
PIPE_SILENCE: Final = 60.0
"""A pipe on the command line may be silent for this long: its command may ask a cloud for hosts."""
CANCEL_GRACE: Final = 2.0
"""Between TERM and KILL for what a cancelled call started on a host."""
CANCEL_CLEANUP: Final = 6.0
"""For a host to end and remove what a cancelled call began. A host that is down does not clean up later."""

PS_ANSWER: Final = 30.0
"""For one node0's answer to `ps`, which asks many."""
WHY_ANSWER: Final = 60.0
"""For node0's answer to `why`, which reads the end of all output."""
SLOW_ANSWER: Final = 60.0
"""For the answers of node0 and of a suspect's host to `slow`."""
STOP_ANSWER: Final = 60.0
"""For node0's answer to `stop` and `why --stacks`, including the time that the ranks need."""
STOP_WAIT: Final = 20.0
"""For all ranks to exit, with 4 seconds between TERM and KILL."""
DUMP_WAIT: Final = 10.0
"""For the stacks of all ranks: a busy interpreter answers late."""
STOP_DELIVERY: Final = 5.0
"""The second Ctrl-C waits this long for the first one's request to reach node0; the third does not wait."""
STOPPED_RUN_SILENCE: Final = 8.0
"""Without an event of a run that this call stopped. Its last lines may then be missing."""
DUMP_FRESH: Final = 60.0
"""A stack dump of a running run is reused for this long: taking one stops the ranks for a moment."""

NODE0_MOST_SILENCE: Final = 30.0
"""Without a frame of a followed run before the connection to node0 counts as lost; at most half of `--reconnect`."""
NODE0_LEAST_SILENCE: Final = 10.0
"""The same for a short `--reconnect`: node0 sends a frame of a silent run every 5 seconds, and may be late."""
NODE0_STEADY: Final = 30.0
"""After frames for this long, a connection counts as if it had never been lost."""

MIRROR_INTERVAL: Final = 10.0
"""Between two passes of `fetch --follow`: a page that draws curves reloads them every 30 seconds."""

JOB_UPLOAD: Final = 60.0
"""For the job files of a host: a few KB, so more time means a hanging file system."""
RUN_START: Final = 120.0
"""For the supervisor to listen and start mpirun: node0's home may be on a slow server."""
START_CONFIRMED: Final = 6.0
"""For the supervisor's record, if the connection was lost during the start."""
PATHS_CHECK: Final = 60.0
"""To check the paths that the user named: they may be on a dead file server."""
IMPORTS_CHECK: Final = 30.0
"""To check the script's imports without importing them; a slower host only gives no warning."""
CONNECTIVITY_CHECK: Final = 6.0
"""For connections between the nodes; no answer by then means a firewall."""
RUNS_LOOK: Final = 20.0
"""To look for other runs on a host (`run --exclusive`, `--wait`), and for its lock."""
LOCK_VALID: Final = 3600.0
"""A starting call holds the locks of its hosts for this long: sshd may keep a lost connection for hours."""
CONNECTIVITY_VALID: Final = 600.0
"""Connections that a run used are not checked again for this long."""
LOGINS_REMEMBERED: Final = 7200.0
"""Failed logins between nodes are not retried for this long where the ranks need none."""
NETWORK_CHECK: Final = 8.0
"""For all connections that doctor tries between the hosts; longer for many hosts."""
CHECKED_CONNECTION: Final = 3.0
"""For one of these connections; longer for many hosts."""
TRUST_LOGIN: Final = 25
"""For a login from node0 to a node, in `trust` and in the checks of doctor and run."""

ENV_BUILD: Final = 3600.0
"""To build an environment on a host: gigabytes onto a slow disk."""
ENV_CHECK: Final = 120.0
"""For a look at an environment that exists."""
ENV_UNCHANGED_CHECK: Final = 30.0
"""For the short check that lets `install` see that nothing is to do; a slower host gets the full check."""
ENV_STEP: Final = 300.0
"""For each step of a verification: the first import of torch from a cold file server takes minutes."""
LOCK_SOLVE: Final = 300.0
"""For the solver, which reads the metadata of many versions."""
PROJECT_LOCK: Final = 60.0
"""For uv to write out the versions of a project's uv.lock; it reads two files and takes 20 ms."""
INDEX_ANSWER: Final = 5.0
"""For an index to answer; then the plan is made without it."""
INDEX_ANSWER_VALID: Final = 86400.0
"""Commands that query no index use its last answer for this long."""

PEER_SERVER_START: Final = 20.0
"""For a host to start serving files to the others, before they take another route."""
SYNC_CLEANUP: Final = 20.0
"""For a host to remove what a sync sent and applied; a slower one keeps it for a day."""

TEMPLATE_RENDERED: Final = 5.0
"""For one template of a playbook; a longer one never ends."""
TEMPLATE_REPLY: Final = 8.0
"""The same from outside, for a template that TEMPLATE_RENDERED can't interrupt: a single step of Python."""

LAB_LOCK: Final = 30.0
"""To wait for another call that works on the lab."""
LAB_HOST_START: Final = 60.0
"""For a host of a lab to start its sshd."""
LAB_NODES_START: Final = 30
"""For the nodes of a lab's queue to be idle."""
LAB_DOWNLOAD: Final = 600.0
"""For apt-get to download the packages of a lab's queue."""
