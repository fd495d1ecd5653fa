"""scripts/results-classification: what it runs, how it goes on, what it writes."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "results-classification"

# Stands for `mhla train`: ten steps, a checkpoint at a signal, goes on from it.
STUB = """#!{python}
import json, os, signal, sys, time
from pathlib import Path
words = sys.argv[2:]
resumed = words[-1] == "--resume"
run = Path(words[0] if resumed else words[words.index("--out") + 1])
if "train.fails=true" in words: sys.exit("mhla: error: it fails")
if "train.refuses=true" in words and "train.graph=off" not in words:
    sys.exit("mhla: error: not recorded: train.graph=off goes without")
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
checkpoints = run / "checkpoints"
checkpoints.mkdir(parents=True, exist_ok=True)
saved = sorted(checkpoints.glob("step-*"))
step = int(saved[-1].name[5:]) if saved else 0
pause = 0.3 if any("pause" in word for word in words) and not resumed else 0
def log(kind, **numbers):
    with (run / "log.jsonl").open("a") as file:
        file.write(json.dumps(dict(kind=kind, step=step, epoch=step / 5, **numbers)) + "\\n")
while step < 10:
    time.sleep(pause)
    step += 1
    log("train", loss=1.0, samples_per_second=100.0 * step)
    if stop:
        (checkpoints / f"step-{{step:08d}}").mkdir()
        sys.exit(143)
log("eval", top1=50.0 + len(words), top5=90.0, loss=1.5)
"""


@pytest.fixture
def stub(tmp_path):
    program = tmp_path / "mhla"
    program.write_text(STUB.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "COMMIT").write_text("abc123\n")
    return program


def script(folder, program, *words):
    results, page = folder / "r.jsonl", folder / "r.md"
    done = subprocess.run(
        [sys.executable, SCRIPT, *words, "--program", program, "--runs", folder / "runs",
         "--results", results, "--page", page, "--poll", "0.02"],
        capture_output=True, text=True, timeout=120,
    )
    lines = [json.loads(line) for line in results.read_text().splitlines()] \
        if results.exists() else []
    return done, lines, page.read_text() if page.exists() else ""


def test_every_variant_is_run_once_and_written_down(tmp_path, stub):
    done, lines, _ = script(tmp_path, stub, "run", "--jobs", "3", "--seeds", "0,1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({(line["variant"], line["seed"]) for line in lines}) == len(lines) == 18
    paper = next(line for line in lines if line["variant"] == "mhla-paper" and line["seed"] == 1)
    assert "model.attention.preset=paper train.seed=1 --out" in paper["command"]
    assert paper["commit"] == "abc123" and paper["images_per_second"] == 550
    again = script(tmp_path, stub, "run", "--seeds", "0,1")
    assert again[1] == lines and "begins" not in again[0].stdout
    _, _, page = script(tmp_path, stub, "render")
    assert "| MHLA, the paper's operator | 56.00 ± 0.00 | 2 |" in page
    assert page.count("--out") == 18 and "Not run" not in page


def test_stopped_runs_go_on(tmp_path, stub):
    words = ("run", "--only", "softmax,linear", "--jobs", "2", "train.pause=true")
    first, lines, _ = script(tmp_path, stub, *words, "--minutes", "0.015")
    assert "stopped: 2 runs" in first.stdout and lines == [], first.stdout
    second, lines, _ = script(tmp_path, stub, *words)
    assert "goes on" in second.stdout and "begins" not in second.stdout
    assert [line["attempts"] for line in lines] == [2, 2]
    assert all("--resume" not in line["command"] for line in lines)
    _, _, page = script(tmp_path, stub, "render")
    assert "Not run: MHLA, the paper's operator" in page


def test_a_run_that_fails_is_said_and_the_others_go_on(tmp_path, stub):
    done, lines, _ = script(tmp_path, stub, "run", "--only", "softmax,linear", "train.fails=true")
    assert done.returncode == 1 and lines == []
    assert done.stdout.count("FAILED") == 2 and "it fails" in done.stdout


def test_a_step_that_cannot_be_recorded_is_run_without_a_graph(tmp_path, stub):
    done, lines, _ = script(tmp_path, stub, "run", "--only", "mala", "train.refuses=true")
    assert done.returncode == 0 and len(lines) == 1, done.stdout
    assert "once more without a graph" in done.stdout
    assert lines[0]["attempts"] == 1 and lines[0]["command"].count("train.graph=off") == 1


def test_the_program_itself_runs_every_variant(tmp_path):
    small = ["data.path=relations", "data.train_samples=8", "data.test_samples=8", "data.workers=0",
             "model.name=tiny-deit", "model.dim=24", "model.depth=1", "model.patch=8",
             "train.batch=4", "train.steps=2", "train.threads=1", "train.device=cpu",
             "train.schedule.warmup_epochs=0"]
    done, lines, _ = script(tmp_path, os.environ["MHLA_PROGRAM"], "run", "--jobs", "2", *small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == 9 and all(line["steps"] == 2 for line in lines)
