"""The ways by which rank wrappers come to life on the nodes, and what follows from that for everything else.

A `Starter` (`starter.py`) is the way of one call: mpirun over ssh (`mpirun.py`), Slurm's srun (`srun.py`), or a queue,
a starter that waits, whose run begins hours later: an extra adds it, and `run/queue.py` has what is asked of it. In a
plan, a `RankStarter` needs no MPI: ranks that are started directly (`direct.py`), the step of srun. `choice.py` is the
one place that decodes a name, of a call or of a record, to a starter; others ask the starter what they need, and never
which it is.

This is the pure half: values and text, for whichever room asks. Three modules act on it: `remote/connector.py` opens
the sessions, by ssh or by a step of the job; `run/start/begin.py` begins the starters of hosts over them;
`node/run/mpirun.py`, on node0, starts the program, or the rank wrappers, and ends them, within the limits of the
supervisor. `launch/mpi_commands.py` has the lines of the MPIs that a starter may carry.
"""
