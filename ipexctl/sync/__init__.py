"""The user's project on every node: manifest, difference, transfer (on a node: `node/files/tree*.py`)."""
