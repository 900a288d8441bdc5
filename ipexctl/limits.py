"""The waits of the control machine: limits that a user can feel, side by side. The other side is
`node/common/limits.py`.

It decides nothing and imports nothing, so that any module can take a limit from it. A limit that is the default of an
option is in `option_defaults.py`. Those that no user feels stay beside the only code that reads them, as the pause
between two looks at a pipe. docs/run.md has the table for users, and a test finds each value in it. All values are
seconds.
"""

from __future__ import annotations

from typing import Final

DEAD_AFTER: Final = 30
"""Without any packet of a connected host; the connection counts as lost half of that later at most."""
STEP_SILENCE: Final = 3600.0
"""In which a step of ipexctl without `--timeout` neither prints nor reads: then a disk of the host hangs."""
FETCH_SILENCE: Final = 60.0
"""Without a sign of life from a host that sends files, which comes every 5 seconds, also while it only reads: without
`--timeout` its program is then ended."""
PROBE_REST: Final = 5.0
"""For the rest of a probe after its first output: a file server that is down must not block doctor."""
PIPE_SILENCE: Final = 60.0
"""In which a pipe that the call names brings nothing: a command may ask a cloud for its hosts."""
CANCEL_GRACE: Final = 2.0
"""Between TERM and KILL for what a cancelled call has started on a host."""
CANCEL_CLEANUP: Final = 6.0
"""For a host to end and remove what a cancelled call began there; a host that is down has none of it later."""

PS_ANSWER: Final = 30.0
"""For node0's answer to `ps`, which asks many of them."""
WHY_ANSWER: Final = 60.0
"""For node0's answer to `why`, which reads the end of all output."""
SLOW_ANSWER: Final = 60.0
"""For the answers of node0 and of a suspect's host to `slow`."""
STOP_ANSWER: Final = 60.0
"""For node0's answer to `stop` and `why --stacks`, with the time that the ranks need."""
STOP_WAIT: Final = 20.0
"""For all ranks to exit: there are four between TERM and KILL."""
DUMP_WAIT: Final = 10.0
"""For the stacks of all ranks: a busy interpreter answers late."""
STOP_DELIVERY: Final = 5.0
"""The second Ctrl-C waits this long for the request of the first to reach node0; the third does not wait."""
STOPPED_RUN_SILENCE: Final = 8.0
"""Without an event of a run that this call has stopped: then its last lines may be missing."""
DUMP_FRESH: Final = 60.0
"""For which a stack dump of a running run is not taken again: taking one stops the ranks for a moment."""

NODE0_MOST_SILENCE: Final = 30.0
"""Without a frame of a followed run, until the connection to node0 counts as lost; half of `--reconnect`, if less."""
NODE0_LEAST_SILENCE: Final = 10.0
"""The same, for a short `--reconnect`: of a silent run node0 sends a frame every 5 seconds, and may be late."""
NODE0_STEADY: Final = 30.0
"""A connection that has brought frames for so long is as good as one that was never lost."""

MIRROR_INTERVAL: Final = 10.0
"""Between two passes of `fetch --follow`: a page that draws curves reloads them every 30 seconds."""

JOB_UPLOAD: Final = 60.0
"""For the job files of a host: a few KB, so that more means a file system that hangs."""
RUN_START: Final = 120.0
"""For the supervisor to listen, and to start mpirun: node0's home may be on a slow server."""
START_CONFIRMED: Final = 6.0
"""For the supervisor's record, if the connection was lost while the run was starting."""
PATHS_CHECK: Final = 60.0
"""For a look at the paths that the user named: they may be on a file server that is down."""
IMPORTS_CHECK: Final = 30.0
"""For a look at the script's imports, without importing them; a slower host only gives no warning."""
CONNECTIVITY_CHECK: Final = 6.0
"""For connections between the nodes; no answer by then is what a firewall looks like."""
RUNS_LOOK: Final = 20.0
"""For a look at the other runs of a host, which `run --exclusive` and `--wait` take, and for its lock."""
LOCK_VALID: Final = 3600.0
"""For which a call that is starting has the locks of its hosts: sshd may keep a lost connection for hours."""
CONNECTIVITY_VALID: Final = 600.0
"""For which connections that a run used are not checked again."""
LOGINS_REMEMBERED: Final = 7200.0
"""For which logins between nodes that failed are not tried again, where the ranks need none."""
NETWORK_CHECK: Final = 8.0
"""For all connections that doctor tries between the hosts; more for many hosts."""
CHECKED_CONNECTION: Final = 3.0
"""For one of them; more for many hosts."""
TRUST_LOGIN: Final = 25
"""For a login from node0 to a node, in `trust` and in the check by doctor and run."""

ENV_BUILD: Final = 3600.0
"""For the build of an environment on a host: gigabytes onto a slow disk."""
ENV_CHECK: Final = 120.0
"""For a look at an environment that exists."""
ENV_UNCHANGED_CHECK: Final = 30.0
"""For the short look by which `install` sees that nothing is to do; a slower host is asked again in full."""
ENV_STEP: Final = 300.0
"""For each step of a verification: the first import of torch from a cold file server takes minutes."""
LOCK_SOLVE: Final = 300.0
"""For the solver, which reads the metadata of many versions."""
PROJECT_LOCK: Final = 60.0
"""For uv to write out the versions of a project's uv.lock; it reads two files and takes 20 ms."""
INDEX_ANSWER: Final = 5.0
"""For an index to answer; the plan is then made without it."""
INDEX_ANSWER_VALID: Final = 86400.0
"""For which the answer of the indexes is used by commands that query none."""

PEER_SERVER_START: Final = 20.0
"""For a host to serve files to the others, before they take another route."""
SYNC_CLEANUP: Final = 20.0
"""For a host to remove what a sync has sent and applied; a slower one keeps it for a day."""

TEMPLATE_RENDERED: Final = 5.0
"""For one template of a playbook: one that takes longer never ends."""
TEMPLATE_REPLY: Final = 8.0
"""The same from outside, for one that TEMPLATE_RENDERED can't interrupt: a single step of Python."""

LAB_LOCK: Final = 30.0
"""To wait for another call that works on the lab."""
LAB_HOST_START: Final = 60.0
"""For a host of a lab to start its sshd."""
LAB_NODES_START: Final = 30
"""For the nodes of a lab's queue to be idle."""
LAB_DOWNLOAD: Final = 600.0
"""For apt-get to download the packages of a lab's queue."""
