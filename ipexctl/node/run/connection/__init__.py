"""What ranks and host starters tell the supervisor, their end of the connection, and when the other end is lost.

Touches sockets, and a file for output that waits. `common/token_proof.py` has the handshake, `common/frames.py` the
bytes.
"""
