"""A run's life on the control machine. The programs on the nodes are in `node/run/`.

`start/` starts it; `follow`, with `reconnect`, `local_copy`, and `stall_report`, and `wait` follow it;
`stop` ends it; `dump`, `hang` and `why/` say what it does or did; `fetch` brings its files. `registry` knows the runs
of this account, `ps` lists them, `retention` prunes old ones. `node0` and `ranks` are helpers. `uninstall`, with
`control_files`, removes ipexctl from the hosts and the control machine.
"""
