"""The version table: its data, the format of a row, and a user's own rows."""
