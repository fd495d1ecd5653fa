"""Steps on a GPU, recorded as a CUDA graph: what they leave is what plain steps leave, bit for bit."""

import shutil
import subprocess

import pytest
from program import contents, log, mhla, newest, write_config

CONFIG = """
model: {name: tiny-deit, image_size: 32, patch: 2, dim: 192, heads: 3, depth: 2, classes: 10,
        attention: mhla, blocks: [4, 4], drop_path: 0.2, class_token: false, norm: layer}
data: {path: relations, image_size: 32, train_samples: 512, test_samples: 64, workers: 4,
       augmentation: light}
task: {name: classify, mixup: 0.2, cutmix: 1.0, label_smoothing: 0.1}
train:
  device: cuda
  deterministic: true
  precision: bf16
  batch: 64
  steps: 24
  log_every: 8
  eval_every: 1
  save_every: 12
  keep: 9
  clip: 1.0
  ema.decay: 0.9
  optimizer.lr: 2e-3
  schedule.warmup_steps: 4
"""


def has_gpu():
    try:
        return subprocess.run(["nvidia-smi"], capture_output=True).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not has_gpu(), reason="needs a GPU")
CASES = {
    "paper": ["model.attention.preset=paper"],
    "authors": ["model.attention.preset=authors"],
    "softmax": ["model.attention=softmax"],
    "linear": ["model.attention=linear"],
    "focused": ["model.attention=focused"],
    "rala": ["model.attention=rala"],
    "mala": ["model.attention=mala"],
    "f32": ["train.precision=f32"],
    "f16": ["train.precision=f16", "model.attention.preset=paper", "train.loss_scale=1024"],
    "sgd": ["train.optimizer.name=sgd", "train.optimizer.lr=0.05"],
    "late-averages": ["train.ema.start=9"],
}


@pytest.fixture
def config(tmp_path):
    return write_config(tmp_path, CONFIG)


def same(a, b):
    a, b = contents(newest(a)), contents(newest(b))
    assert a.keys() == b.keys()
    assert [name for name in a if a[name] != b[name]] == []


@pytest.mark.parametrize("case", CASES)
def test_recorded_steps_are_the_steps_themselves(tmp_path, config, case):
    recorded = mhla("train", config, *CASES[case], "train.graph=on", "--out", tmp_path / "graph")
    assert "a CUDA graph of" in recorded.stderr, recorded.stderr
    plain = mhla("train", config, *CASES[case], "train.graph=off", "--out", tmp_path / "plain")
    assert "graph" not in plain.stderr
    same(tmp_path / "graph", tmp_path / "plain")
    ours, theirs = ([line["loss"] for line in log(tmp_path / name)] for name in ("graph", "plain"))
    assert ours == theirs


def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path, config):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    mhla("train", config, "--out", whole)
    shutil.copytree(whole, cut)
    shutil.rmtree(newest(cut))
    assert newest(cut).name == "step-00000012"
    mhla("train", cut, "--resume")
    same(whole, cut)


def test_what_cannot_be_recorded_says_why(tmp_path, config):
    run = mhla("train", config, "train.recompute=true", "train.steps=5", "--out", tmp_path / "a")
    assert run.stderr.count("no CUDA graph: train.recompute") == 1
    refused = mhla("train", config, "train.recompute=true", "train.graph=on", "--out",
                   tmp_path / "b", check=False)
    assert refused.returncode != 0 and "train.graph: cannot be on" in refused.stderr
