import torch, datasets
