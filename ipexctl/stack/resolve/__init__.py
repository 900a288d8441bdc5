"""The resolver: one stack for all hosts, from a request, their facts and the available wheels. Pure."""
