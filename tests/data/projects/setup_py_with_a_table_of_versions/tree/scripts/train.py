from tinylm import model  # noqa: F401
