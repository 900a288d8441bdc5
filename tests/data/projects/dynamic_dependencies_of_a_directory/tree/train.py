import einops
import tinylm
