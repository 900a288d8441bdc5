"""Takes everything of ipexctl out of a home."""
