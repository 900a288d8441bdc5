"""The front door: one small file a command, from options to a verb to what `ui` shows."""
