"""Runs of the program `mhla train`, for the tests beside this file."""

import json
import os
import signal
import struct
import subprocess
from pathlib import Path

PROGRAM = os.environ["MHLA_PROGRAM"]

# A network and a set of pictures so small that a step takes milliseconds.
CONFIG = """
model: {name: tiny-deit, image_size: 16, dim: 24, depth: 2, classes: 10, drop_path: 0.1}
data: {path: relations, image_size: 16, train_samples: 256, test_samples: 64, workers: 1,
       augmentation: light}
task: {name: classify, mixup: 0.2, cutmix: 1.0, label_smoothing: 0.1}
train:
  device: cpu
  threads: 1
  batch: 32
  epochs: 4
  log_every: 4
  save_every: 3
  keep: 2
  clip: 1.0
  ema.decay: 0.9
  optimizer.lr: 2e-3
  schedule.warmup_steps: 4
"""

# One batch learned by heart.
BY_HEART = ["data.train_samples=32", "data.augmentation=none", "task.mixup=0", "task.cutmix=0",
            "model.drop_path=0", "train.steps=60", "train.save_every=60", "train.log_every=10",
            "train.optimizer.lr=5e-3", "train.eval_every=0"]


def write_config(folder, text=CONFIG):
    path = Path(folder) / "tiny.yaml"
    path.write_text(text)
    return path


def mhla(*words, check=True, timeout=300, **more):
    done = subprocess.run(
        [PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=timeout, **more
    )
    if check and done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}: {done.stderr}")
    return done


def start(*words):
    return subprocess.Popen(
        [PROGRAM, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def log(run):
    return [json.loads(line) for line in (Path(run) / "log.jsonl").read_text().splitlines()]


def newest(run):
    """The newest checkpoint's folder, or None."""
    folders = sorted((Path(run) / "checkpoints").glob("step-*"))
    return folders[-1] if folders else None


def contents(checkpoint):
    """Every file of a checkpoint, as bytes."""
    return {path.name: path.read_bytes() for path in sorted(Path(checkpoint).iterdir())}


def tensors(path):
    """The f32 tensors of a safetensors file, as tuples of numbers."""
    data = Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin : 8 + size + end])
        for name, entry in header.items()
        if entry["dtype"] == "F32"
        for begin, end in [entry["data_offsets"]]
    }


def children(pid):
    """The processes that it started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(status.parent.name))
    return found


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stderr.close()
