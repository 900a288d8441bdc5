"""Sessions on hosts (ssh, local), fan-out over many hosts, calls to the agent, file transfer."""
