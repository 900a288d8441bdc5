"""The measurements of `doctor --smoke`."""
