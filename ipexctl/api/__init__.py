"""The typed functions that commands, playbooks and Python programs call; nothing here prints."""
