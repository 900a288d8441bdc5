"""An environment on the hosts: its wheels on their way, made, verified, listed, removed."""
