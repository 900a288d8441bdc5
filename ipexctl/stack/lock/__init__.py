"""The exact wheels of a stack: where they may come from, what belongs to them, their hashes."""
