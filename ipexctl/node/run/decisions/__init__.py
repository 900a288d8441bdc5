"""What a supervisor does next, and why a run ended. Pure.

In: a frozen state, an event, a time. Out: a new state and commands. Never reads a clock, file, socket or process.
"""
