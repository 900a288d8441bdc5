"""Sessions on hosts, fan-out over many hosts, and calls to the agent."""
