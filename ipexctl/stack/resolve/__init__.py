"""Which one stack for all hosts: from what is asked for, their facts and what can be had. Pure."""
