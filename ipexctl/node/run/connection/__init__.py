"""What ranks and host starters tell the supervisor, their end of the connection, and when the other end is lost.

In and out: frames (`common/frames.py`) behind a handshake (`common/token_proof.py`), a file for output that waits.
Never decides about the run.
"""
