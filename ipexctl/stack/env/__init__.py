"""An environment on the hosts: delivered, built, verified, listed, removed."""
