"""Time limits of the control machine that a user can notice, in seconds; `node/common/node_limits.py` has the nodes'.

A limit that no user notices stands beside the code that uses it. docs/run-watch.md lists the limits that a user can set
or may meet; a test compares its figures with these.
"""

from __future__ import annotations

from typing import Final

DEAD_AFTER: Final = 30
"""Time without a packet from the kernel of a connected host, after which the connection is lost. Noticed at most half
of it later."""
PATIENCE: Final = 120.0
"""Time without a byte from a host whose port has answered: for its sshd, its login shell, or a short answer. A login
takes 40 s on a machine with 50 busy processes per core."""
TOLD_AFTER: Final = 5.0
"""A person is told what a call waits for after this time."""
CHECKED_BURDEN: Final = 30.0
"""For a host to tell, once a limit is reached, what keeps it busy."""
LOGIN_QUESTION: Final = 300.0
"""To type a password or code that the ssh program asks for."""
STEP_SILENCE: Final = 3600.0
"""Without `--timeout`, a step of ipexctl that neither prints nor reads for this long is taken to hang on a disk."""
PROBE_REST: Final = 5.0
"""For each part of a probe on a host that is not busy: a dead file server must not block doctor."""
PIPE_SILENCE: Final = 60.0
"""A pipe on the command line may be silent for this long, because its command may ask a cloud for hosts."""
CANCEL_GRACE: Final = 2.0
"""Between TERM and KILL for what a cancelled call started on a host."""
CANCEL_CLEANUP: Final = 6.0
"""For a host to end and remove what a cancelled call began. A host that is down does not clean up later."""

STOP_WAIT: Final = 20.0
"""For all ranks to exit, with 4 seconds between TERM and KILL."""
DUMP_WAIT: Final = 10.0
"""For the stacks of all ranks: a busy interpreter answers late."""
PROFILE_WAIT: Final = 3600.0
"""For a profile of a live run. node0 gives up earlier: after 30 s and three times as long as the steps usually take."""
STOPPED_RUN_SILENCE: Final = 8.0
"""A call that stopped a run waits this long for each further event. The run's last lines may be missing then."""
DUMP_FRESH: Final = 60.0
"""A stack dump of a running run is reused for this long: taking one stops the ranks for a moment."""

NODE0_SILENCE: Final = 30.0
"""The connection to node0 counts as lost after this time without a frame; it sends one every 5 seconds."""
NODE0_STEADY: Final = 30.0
"""Once frames have arrived for this long, earlier losses of the connection no longer count."""


START_CONFIRMED: Final = 6.0
"""For the supervisor's record, if the connection was lost during the start."""
CONNECTIVITY_CHECK: Final = 6.0
"""For connections between the nodes; no answer by then means a firewall."""
PASS_AFTER: Final = 10.0
"""After so long, --wait passes over a process that holds a host's lock and starts no run."""
LOCK_VALID: Final = 3600.0
"""A starting call holds the locks of its hosts for this long: sshd may keep a lost connection for hours."""
CONNECTIVITY_VALID: Final = 600.0
"""Connections that a run used are not checked again for this long."""
NETWORK_CHECK: Final = 8.0
"""For all connections that doctor tries between the hosts; longer for many hosts."""
SLOW_SHELL: Final = 2.0
"""A login shell that takes so long to start a command is a finding of doctor, which then extends NETWORK_CHECK."""
SLOWEST_SHELL: Final = 5.0
"""A host whose login shell takes longer is left out of doctor's network check."""
CHECKED_CONNECTION: Final = 3.0
"""For one of these connections; longer for many hosts."""

ENV_BUILD: Final = 3600.0
"""To build an environment on a host: gigabytes onto a slow disk."""
ENV_STEP: Final = 300.0
"""For each step of a verification: the first import of torch from a cold file server takes minutes."""
BACKEND_STEP: Final = 120.0
"""For one step of a build backend that reads its list."""
LOCK_SOLVE: Final = 300.0
"""For the solver, which reads the metadata of many versions."""
PROJECT_LOCK: Final = 60.0
"""For uv to write out the versions of a project's uv.lock; it reads two files and takes 20 ms."""
INDEX_ANSWER: Final = 5.0
"""For an index to answer. After that the plan is made without it."""
INDEX_ANSWER_VALID: Final = 86400.0
"""Commands that query no index use its last answer for this long."""

PEER_SERVER_START: Final = 20.0
"""For a host to start serving files to the others, before they take another route."""
OFFER_CLEANUP: Final = 20.0
"""For a host to remove its store of a hub's files for other hosts."""

TEMPLATE_RENDERED: Final = 5.0
"""For one template of a playbook. One that takes longer is taken to never end."""
TEMPLATE_INTERRUPTED: Final = 8.0
"""For the signal at that time to interrupt a template. In C code it may not, and then ipexctl ends."""

LAB_LOCK: Final = 30.0
"""To wait for another call that works on the lab."""
LAB_HOST_START: Final = 60.0
"""For a host of a lab to start its sshd."""
LAB_NODES_START: Final = 30
"""For the nodes of a lab's queue to be idle."""
LAB_DOWNLOAD: Final = 600.0
"""For apt-get to download the packages of a lab's queue."""
