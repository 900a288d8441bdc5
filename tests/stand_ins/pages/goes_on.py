import os
import sys
import time
from pathlib import Path

Path("checkpoints").mkdir(exist_ok=True)
Path(f"checkpoints/{os.environ['RANK']}.pt").write_text("learnt so far")
print("epoch", 1, file=sys.stderr if os.environ["RANK"] == "3" else sys.stdout)
time.sleep(600)
