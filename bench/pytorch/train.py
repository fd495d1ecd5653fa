"""Images a second of training: `mhla train` and a plain compiled PyTorch trainer, one after the other.

    python bench/pytorch/train.py --program build/cuda/bin/mhla [--batch 256] [--steps 400]
        [--attention softmax mhla] [--mode default reduce-overhead] [--json FILE]

Both train the network of configs/cifar10.yaml (DeiT-T at 32 pixels, 256 tokens) with bf16 autocast,
drop path, mixup/CutMix, a clipped norm, AdamW and averaged weights. PyTorch's side has the fused
AdamW, SDPA, torch.compile and batches that lie ready in pinned memory: nothing is read, decoded or
augmented there. Ours does all of that, from a set of random pictures that is written first. Rates
are medians over windows after the warm-up; busy is the share of the time in which the GPU ran a
kernel, as nvidia-smi counts it, sampled over the same windows.
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[2]
WINDOW = 50  # steps between two readings


class Block(nn.Module):
    def __init__(self, dim, heads, rate):
        super().__init__()
        self.heads, self.rate = heads, rate
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def attention(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def dropped(self, branch):
        if self.rate == 0 or not self.training:
            return branch
        keep = 1 - self.rate
        mask = branch.new_empty(branch.size(0), 1, 1).bernoulli_(keep)
        return branch * mask.div_(keep)

    def forward(self, x):
        x = x + self.dropped(self.attention(self.norm1(x)))
        return x + self.dropped(self.fc2(F.gelu(self.fc1(self.norm2(x)))))


class Vit(nn.Module):
    """timm's DeiT without a class token"""

    def __init__(self, dim=192, depth=12, heads=3, side=16, patch=2, classes=10, drop_path=0.1):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, side * side, dim) * 0.02)
        rates = [drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.Sequential(*(Block(dim, heads, rate) for rate in rates))
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x).mean(1)))


def mixed(image, target, step):
    """mixup on even steps, CutMix of a quarter on odd ones: the work of either"""
    soft = F.one_hot(target, 10).float() * 0.9 + 0.01
    if step % 2 == 0:
        return torch.lerp(image.flip(0), image, 0.7), torch.lerp(soft.flip(0), soft, 0.7)
    image = image.clone()
    image[:, :, 8:24, 8:24] = image[:, :, 8:24, 8:24].flip(0)
    return image, torch.lerp(soft.flip(0), soft, 0.75)


class Busy:
    """The GPU's utilisation, sampled by nvidia-smi while the block runs."""

    def __enter__(self):
        self.samples, self.process = [], None
        try:
            self.process = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return self
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()
        return self

    def read(self):
        for line in self.process.stdout:
            if line.strip().isdigit():
                self.samples.append((time.time(), int(line)))

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.thread.join()

    def between(self, begin, end):
        """its mean, or None; the first second is left out, which a sample looks back on"""
        inside = [value for at, value in self.samples if begin + 1 < at < end]
        return round(statistics.mean(inside), 1) if inside else None


def pytorch(options, mode):
    """rates of the windows, and the busy share"""
    device = torch.device(options.device)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Vit(depth=options.depth).to(device).train()
    averages = copy.deepcopy(model).requires_grad_(False)
    pairs = [list(each.parameters()) for each in (averages, model)]
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=1e-3, fused=True)
    network = model if mode == "eager" else torch.compile(model, mode=None if mode == "default" else mode)
    pinned = device.type == "cuda"
    batches = []
    for _ in range(8):
        image, target = torch.randn(options.batch, 3, 32, 32), torch.randint(10, (options.batch,))
        batches.append((image.pin_memory(), target.pin_memory()) if pinned else (image, target))

    def step(number):
        image, target = (each.to(device, non_blocking=True) for each in batches[number % len(batches)])
        image, target = mixed(image, target, number)
        with torch.autocast(device.type, torch.bfloat16):
            logits = network(image)
        loss = F.cross_entropy(logits.float(), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch._foreach_lerp_(*pairs, 0.001)
        return loss

    rates = []
    with Busy() as busy:
        for number in range(min(WINDOW, options.steps)):
            loss = step(number)
        loss.item()
        start = last = time.time()
        for number in range(options.steps):
            loss = step(number)
            if (number + 1) % WINDOW == 0 or number + 1 == options.steps:
                loss.item()  # as the other side reports its loss
                now = time.time()
                rates.append((number % WINDOW + 1) * options.batch / (now - last))
                last = now
    return statistics.median(rates), busy.between(start, last)


def random_cifar(folder, records):
    """pictures of CIFAR's format"""
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        data = bytearray(os.urandom(3073 * records))
        for i in range(records):
            data[3073 * i] = i % 10
        (folder / name).write_bytes(data)
    (folder / "batches.meta.txt").write_text("\n".join(f"class{i}" for i in range(10)) + "\n")


def ours(options, attention, folder):
    run = folder / f"run-{attention}"
    words = [f"model.attention={attention.split('-')[0]}", f"model.depth={options.depth}",
             f"data.path={folder / 'cifar'}", f"train.batch={options.batch}", f"train.device={options.device}",
             f"train.steps={WINDOW + options.steps}", f"train.log_every={WINDOW}", "train.eval_every=0",
             "train.save_every=1000000", "train.schedule.warmup_epochs=0", *options.words]
    if "-" in attention:
        words.append(f"model.attention.preset={attention.split('-')[1]}")
    with Busy() as busy:
        process = subprocess.Popen(
            [options.program, "train", str(ROOT / "configs/cifar10.yaml"), *words, "--out", str(run)],
            stderr=subprocess.PIPE, text=True)
        times, text = [], []
        for line in process.stderr:
            text.append(line)
            if line.startswith("train: step"):
                times.append(time.time())
        process.wait()
    for line in text:
        if "graph" in line:
            print("  " + line.strip())
    if process.returncode != 0 or len(times) < 2:
        print("".join(text[-5:]))
        return None, None
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    rates = [line["samples_per_second"] for line in lines if line["kind"] == "train"]
    return statistics.median(rates[1:]), busy.between(times[0], times[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="further words for `mhla train`: key=value")
    parser.add_argument("--program", default="")
    parser.add_argument("--attention", nargs="*", default=["softmax", "mhla-paper", "mhla-authors", "linear"])
    parser.add_argument("--mode", nargs="*", default=["default"],
                        help="of torch.compile: default, reduce-overhead, max-autotune; or eager")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--records", type=int, default=10000, help="pictures in each of the six files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", default="")
    options = parser.parse_intermixed_args()
    rows = []

    def show(name, rate, busy):
        rows.append({"trainer": name, "images_per_second": rate, "busy_percent": busy, "batch": options.batch})
        words = "failed" if rate is None else f"{rate:9.0f} images/s"
        print(f"{name:32} {words}  busy {busy if busy is not None else '-'} %", flush=True)

    for mode in options.mode:
        show(f"PyTorch {torch.__version__} {mode}", *pytorch(options, mode))
    torch.cuda.empty_cache() if torch.cuda.is_available() else None
    if options.program:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "cifar").mkdir()
            random_cifar(folder / "cifar", options.records)
            for attention in options.attention:
                show(f"mhla {attention}", *ours(options, attention, folder))
        softmax = next((row["images_per_second"] for row in rows if row["trainer"] == "mhla softmax"), None)
        if softmax:
            best = max(row["images_per_second"] for row in rows if row["trainer"].startswith("PyTorch"))
            print(f"mhla softmax / PyTorch: {softmax / best:.2f}")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(row["images_per_second"] is None for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
