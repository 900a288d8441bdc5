import subprocess


def launch():
    subprocess.run("torchrun --nnodes 1 -m tinylm.train".split())
