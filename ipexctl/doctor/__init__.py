"""Doctor: rules over each host's facts and over all hosts, the network check, a recommendation."""
