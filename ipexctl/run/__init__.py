"""A run's life on the control machine. The programs on the nodes are in `node/run/`.

`start/` starts it; `follow`, with `reconnect`, `local_copy` and `stall_report`, and `wait` follow it; `stop` ends it;
`dump`, `hang` and `why/` explain it; `fetch` brings its files. `registry` knows this account's runs, `ps` lists them,
`retention` prunes them. `uninstall`, with `control_files`, removes ipexctl from the hosts and the control machine.
"""
