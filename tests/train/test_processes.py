"""Several processes on one machine: the same losses as one, a lost one, another number of them."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from program import log, mhla, newest, start, write_config

# Nothing whose random numbers belong to a process.
STILL = ["model.drop_path=0", "task.mixup=0", "task.cutmix=0", "train.log_every=1"]


def losses(run):
    return [line["loss"] for line in log(run) if line["kind"] == "train"]


@pytest.fixture(scope="module", autouse=True)
def gloo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gloo")
    done = mhla("train", write_config(folder), "--out", folder / "run", "--processes", "2",
                "train.steps=1", check=False)
    if "lacks" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr


def test_two_processes_give_the_losses_of_one(tmp_path):
    config = write_config(tmp_path)
    for count in (1, 2):
        mhla("train", config, "--out", tmp_path / str(count), "--processes", count, *STILL)
    mhla("train", config, "--out", tmp_path / "sharded", "--processes", 2, *STILL,
         "train.shard_optimizer=true")
    assert losses(tmp_path / "sharded") == pytest.approx(losses(tmp_path / "2"), abs=1e-5)
    one, two = losses(tmp_path / "1"), losses(tmp_path / "2")
    assert len(one) == 32
    # The first ones to rounding; later ones differ by what rounding grew to.
    assert two[:4] == pytest.approx(one[:4], abs=1e-6)
    assert two == pytest.approx(one, abs=1e-3)
    evaluated = [[line["loss"] for line in log(tmp_path / name) if line["kind"] == "eval"]
                 for name in ("1", "2")]
    assert evaluated[1] == pytest.approx(evaluated[0], abs=1e-3)


def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    config = write_config(tmp_path)
    same = [*STILL, "train.schedule.name=constant"]  # whatever the number of steps
    mhla("train", config, "--out", tmp_path / "one", "train.steps=12", *same)
    mhla("train", config, "--out", tmp_path / "run", "--processes", 2, "train.steps=8", *same)
    mhla("train", config, "--out", tmp_path / "run", "--resume", "train.steps=12", *same)
    assert losses(tmp_path / "run")[8:12] == pytest.approx(losses(tmp_path / "one")[8:12], abs=1e-4)


def children(pid):
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(status.parent.name))
    return found


def test_a_lost_process_ends_the_job_with_one_message_and_it_resumes(tmp_path):
    config = write_config(tmp_path)
    words = ["train", config, "--out", tmp_path / "run", "--processes", 2, "train.epochs=200"]
    process = start(*words)
    while newest(tmp_path / "run") is None:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 1
    errors = [line for line in text.splitlines() if "mhla: error" in line]
    assert len(errors) == 1, text
    reached = json.loads((newest(tmp_path / "run") / "state.json").read_text())["step"]
    mhla("train", config, "--out", tmp_path / "run", "--processes", 2, "--resume",
         f"train.steps={reached + 2}")
