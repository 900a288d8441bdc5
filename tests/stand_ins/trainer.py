"""Writes, rotates and loads checkpoints as the Trainer of transformers 5.17 does with several ranks, without torch.

trainer.py OUTPUT STEPS [--resume] [--save-steps N] [--limit N] [--die-at FILE]

Rank 0 writes the model and the state, each rank its own rng_state, in the order of `Trainer._save_checkpoint`; then
rank 0 alone deletes the oldest directories, by their times or, if these are less than a second apart, by their numbers
(`rotate_checkpoints`). `--resume` takes the highest number on this host (`get_last_checkpoint`).
"""

import argparse
import io
import json
import os
import re
import shutil
import signal
import sys
import time
import zipfile

STEP = float(os.environ.get("STEP_SECONDS", "0.06"))


def saved(text):
    """As torch.save writes it."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("data.pkl", text * 1000)
    return packed.getvalue()


def tensors(text):
    """As safetensors writes it."""
    data = (text * 1000).encode()
    header = json.dumps({"weight": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    return len(header).to_bytes(8, "little") + header + data


def save(options, rank, step):
    directory = f"{options.output}/checkpoint-{step}"
    run = f"{os.environ['RUN']} {step}"
    files = {}
    if rank == 0:
        files["config.json"] = b"{}"
        files["model.safetensors"] = tensors(f"model {run}")
        files["training_args.bin"] = saved(f"args {os.environ['RUN']}")
        files["optimizer.pt"] = saved(f"optimizer {run}")
        files["scheduler.pt"] = saved(f"scheduler {run}")
    files[f"rng_state_{rank}.pth"] = saved(f"rng {rank} {run}")
    if rank == 0:
        files["trainer_state.json"] = json.dumps({"global_step": step}).encode()
    os.makedirs(directory, exist_ok=True)
    for name, content in files.items():
        if options.die_at == f"{step}/{name}":
            os.kill(os.getpid(), signal.SIGKILL)
        with open(f"{directory}/{name}", "wb") as file:
            file.write(content)
    if rank == 0:
        rotate(options)


def number_of(name):
    return int(name.rpartition("-")[2])


def checkpoints(output):
    names = os.listdir(output) if os.path.isdir(output) else []
    return sorted((name for name in names if re.match(r"^checkpoint\-(\d+)$", name)), key=number_of)


def rotate(options):
    found = checkpoints(options.output)
    times = {name: os.path.getmtime(f"{options.output}/{name}") for name in found}
    if max(times.values()) - min(times.values()) >= 1.0:
        found.sort(key=times.__getitem__)
    for name in found[: -options.limit]:
        shutil.rmtree(f"{options.output}/{name}", ignore_errors=True)


def resume(options, rank):
    found = checkpoints(options.output)
    if not found:
        print("from nothing", flush=True)
        return 0
    directory = f"{options.output}/{found[-1]}"
    needed = ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json", f"rng_state_{rank}.pth")
    if not all(os.path.isfile(f"{directory}/{name}") for name in needed):
        print(f"Can't find a valid checkpoint at {directory}", file=sys.stderr, flush=True)
        time.sleep(1)  # no rank is ended before it has printed it
        sys.exit(1)
    print("from", found[-1], flush=True)
    with open(f"{directory}/trainer_state.json") as file:
        return json.load(file)["global_step"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("steps", type=int)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--save-steps", type=int, default=20)
    parser.add_argument("--limit", type=int, default=2)
    parser.add_argument("--die-at", default="")
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    os.environ.setdefault("RUN", str(time.time()))
    for step in range((resume(options, rank) if options.resume else 0) + 1, options.steps + 1):
        time.sleep(STEP)
        if step % options.save_steps == 0 or step == options.steps:
            save(options, rank, step)
    print("at", options.steps, flush=True)


main()
