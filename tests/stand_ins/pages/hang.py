import os
import subprocess
import sys
import threading
import time
from pathlib import Path

PIPE = Path("batches")


def load_batch():
    with open(PIPE) as batches:
        batches.read()


def all_reduce():
    time.sleep(600)


def step():
    if os.environ["RANK"] == "1":
        load_batch()
    all_reduce()


def train():
    step()


if os.environ["RANK"] == "1":
    os.mkfifo(PIPE)
threading.Thread(target=time.sleep, args=[600], daemon=True).start()
with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]):
    train()
