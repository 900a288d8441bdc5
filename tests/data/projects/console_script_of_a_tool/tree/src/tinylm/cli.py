import os
import subprocess


def main():
    variables = dict(os.environ, NPROC_PER_NODE="2")
    subprocess.run(["swift", "sft", "--model", "model"], env=variables, check=True)
