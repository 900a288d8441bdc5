import torch, core.data
