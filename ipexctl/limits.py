"""The waits of the control machine: limits that a user can feel, side by side. The other side is
`node/common/limits.py`.

It decides nothing and imports nothing, so that any module can take a limit from it. A limit that is the default of an
option is in `option_defaults.py`. Others stay beside the only code that reads them: those that no user feels, as the
pause between two looks at a pipe, and some that a user can feel: `file_reader.py: PIPE_SECONDS`,
`stack/lock/indexes.py: ANSWER_WITHIN`, `doctor/network_check.py: _BUDGET`, `playbook/templater.py: _REPLY_TIMEOUT`.
docs/run.md has the table for users, and a test finds each value of this file in it. All values are seconds.
"""

from __future__ import annotations

from typing import Final

DEAD_AFTER: Final = 30
"""Without any packet of a connected host; the connection counts as lost half of that later at most."""
STEP_SILENCE: Final = 3600.0
"""In which a step of ipexctl without `--timeout` neither prints nor reads: then a disk of the host hangs."""
PROBE_REST: Final = 5.0
"""For the rest of a probe after its first output: a file server that is down must not block doctor."""

PS_ANSWER: Final = 30.0
"""For node0's answer to `ps`, which asks many of them."""
WHY_ANSWER: Final = 60.0
"""For node0's answer to `why`, which reads the end of all output."""
STOP_ANSWER: Final = 60.0
"""For node0's answer to `stop` and `dump`, with the time that the ranks need."""
STOP_WAIT: Final = 20.0
"""For all ranks to exit: there are four between TERM and KILL."""
DUMP_WAIT: Final = 10.0
"""For the stacks of all ranks: a busy interpreter answers late."""
DUMP_FRESH: Final = 60.0
"""For which a stack dump of a running run is not taken again: taking one stops the ranks for a moment."""

JOB_UPLOAD: Final = 60.0
"""For the job files of a host: a few KB, so that more means a file system that hangs."""
RUN_START: Final = 120.0
"""For the supervisor to listen, and to start mpirun: node0's home may be on a slow server."""
PATHS_CHECK: Final = 60.0
"""For a look at the paths that the user named: they may be on a file server that is down."""
IMPORTS_CHECK: Final = 30.0
"""For a look at the script's imports, without importing them; a slower host only gives no warning."""
CONNECTIVITY_CHECK: Final = 6.0
"""For connections between the nodes; no answer by then is what a firewall looks like."""
CONNECTIVITY_VALID: Final = 600.0
"""For which connections that a run used are not checked again."""

ENV_BUILD: Final = 3600.0
"""For the build of an environment on a host: gigabytes onto a slow disk."""
ENV_CHECK: Final = 120.0
"""For a look at an environment that exists."""
ENV_STEP: Final = 300.0
"""For each step of a verification: the first import of torch from a cold file server takes minutes."""
LOCK_SOLVE: Final = 300.0
"""For the solver, which reads the metadata of many versions."""
INDEX_ANSWER_VALID: Final = 86400.0
"""For which the answer of the indexes is used by commands that query none."""
