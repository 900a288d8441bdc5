"""What a supervisor does next, and why a run ended. Pure: no clock, file, socket or process; values in, values out."""
