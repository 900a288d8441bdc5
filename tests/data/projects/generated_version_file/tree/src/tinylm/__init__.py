from tinylm._version import version
