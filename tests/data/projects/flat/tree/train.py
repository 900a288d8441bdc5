import torch
import model
