"""What ranks and host starters tell the supervisor, their end of the connection, and when the other end is lost.

Frames (`common/frames.py`) behind a handshake (`common/token_proof.py`) go in both directions; output that waits is
kept in memory and in a file. Nothing here decides about the run.
"""
