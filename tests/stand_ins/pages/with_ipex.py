import intel_extension_for_pytorch as ipex
import torch
import torch.distributed as dist

dist.init_process_group("ccl")
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = ipex.optimize(model, optimizer=optimizer)
