import pandas
load = 1
try:
    import wandb
except ImportError:
    wandb = None


def later():
    import plots
