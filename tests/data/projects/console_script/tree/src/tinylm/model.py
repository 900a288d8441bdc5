import torch
from tqdm import tqdm
import safetensors

Model = torch.nn.Linear
