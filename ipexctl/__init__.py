"""Turn a list of machines you can ssh to into one PyTorch training job."""

__version__ = "0.4.0"
