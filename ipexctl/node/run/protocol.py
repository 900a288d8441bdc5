"""The protocol between ranks and supervisor: frames over a socket, and the times that both keep.

A message is a JSON frame whose `t` is its type; output of the command has frames of its own (`common/frames.py`). A
connection begins with the handshake of `common/handshake.py`, whose `hello` and `welcome` have the rank's identity and
the state of the run. `messages.py` has what a rank sends then. The supervisor sends:

    ack             how many bytes of each stream are written
    rewind          send the output again from these offsets: the disk was full
    begin           the exchange of checkpoints is over: start the command
    stop            end the command
    dump            report the stacks of the command
    remove-job      the job file is not needed any more
    release         all output has arrived: the rank wrapper may exit
"""

from __future__ import annotations

GRACE = 4.0
"""Seconds for ranks to exit after SIGTERM."""
SUSPENDED = 5.0
"""Seconds between two checks after which a process was itself suspended: then the others do not count as silent."""
