"""The ways to start rank wrappers on the nodes, and what follows from each for everything else. Values and text only.

A `Starter` (`starter.py`) is the way of one call: mpirun over ssh (`mpirun.py`), Slurm's srun (`srun.py`), or a queue
that an extra adds, whose run begins hours later (`run/queue.py`). In a plan, a `RankStarter` needs no MPI: ranks
started directly (`direct.py`), or srun's step. Only `choice.py` decodes a name to a starter; others ask the starter
what they need, and never which one it is. Three modules act: `remote/connector.py` opens the sessions,
`run/start/begin.py` begins the starters of hosts over them, `node/run/mpirun.py` on node0 starts and ends the program
or the rank wrappers.
"""
