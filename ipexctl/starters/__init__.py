"""The ways to start rank wrappers on the nodes, and what follows from each for everything else.

A `Starter` (`starter.py`) is the way of one call: mpirun over ssh (`mpirun.py`), Slurm's srun (`srun.py`), or a queue
that an extra adds, whose run begins hours later (`run/queue.py`). In a plan, a `RankStarter` needs no MPI: ranks
started directly (`direct.py`), or srun's step. Only `choice.py` decodes a name to a starter; others ask the starter
what they need, and never which one it is.

This is the pure half. Three modules act on it: `remote/connector.py` opens the sessions, `run/start/begin.py` begins
the starters of hosts over them, `node/run/mpirun.py` on node0 starts and ends the program or the rank wrappers.
`launch/mpi_commands.py` has the lines of the MPIs.
"""
