import os

print("copy", os.environ["IPEXCTL_RANK"], "of", os.environ["IPEXCTL_WORLD_SIZE"], "RANK" in os.environ)
