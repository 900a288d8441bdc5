import einops
