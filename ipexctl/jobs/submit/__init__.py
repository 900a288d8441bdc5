"""From what is asked to a run that has begun: look, find the environment, bring the code, plan, start."""
