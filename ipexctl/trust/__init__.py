"""ssh from node0 to every node: a key, one line of authorized_keys per home, and an ssh config on node0."""
