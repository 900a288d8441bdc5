import torch, model
