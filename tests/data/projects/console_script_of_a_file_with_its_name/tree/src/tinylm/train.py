import torch
from tinylm.model import Model
import einops
