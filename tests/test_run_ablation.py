"""`scripts/run_ablation.py`: a sweep on this machine, resumable, without an account."""

import csv
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from lit_reason.report.ablation import outcome
from lit_reason.report.comparison import FILES
from tests.test_ablations import write_sweep

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "run_ablation.py"


def run_ablation(*args):
    runpy.run_path(str(SCRIPT))["main"]([str(a) for a in args])


TRAIN = """
import pathlib, sys, time
args = dict(a.removeprefix("--").split("=", 1) for a in sys.argv[1:])
run = pathlib.Path(args["run_dir"])
(run.parent.parent.parent / "calls.txt").open("a").write(run.parent.parent.name + "\\n")
run.mkdir()
while args.get("wait") == args["a.x"]:
    time.sleep(0.1)
if args.get("fail") == args["a.x"]:
    sys.exit("error: as asked")
after = round(float(args["a.x"]) / 10 + int(args["seed_everything"]) / 100, 2)
(run / "metrics.csv").write_text(f"rollout,val/accuracy\\n1.0,\\n,{after}\\n")
print("│ val/accuracy      │  0.100 │  0.999 │")
"""


@pytest.fixture
def sweep_file(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    return write_sweep(tmp_path / "s.yaml", parameters={"a.x": {"values": [1, 2]}})


def calls(out):
    return (out / "calls.txt").read_text().split() if (out / "calls.txt").exists() else []


def rows(out):
    with (out / "results.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_runner_writes_results_and_a_table(sweep_file, tmp_path, capsys):
    out = tmp_path / "out"
    run_ablation(sweep_file, "--out", out, "--seeds", 2)
    assert [(r["point"], r["a.x"], r["seed"], r["before"], r["after"]) for r in rows(out)] == [
        ("x=1", "1", "0", "0.1", "0.1"),
        ("x=2", "2", "0", "0.1", "0.2"),
        ("x=1", "1", "1", "0.1", "0.11"),
        ("x=2", "2", "1", "0.1", "0.21"),
    ]
    text = capsys.readouterr().out
    assert "[2/4] x=2 seed 0: 0.100 -> 0.200" in text
    assert "| x=2 | 2     | 0.205 [0.200, 0.210] | x=1     | +0.100 [0.100, 0.100] |" in text
    written = {p.name for p in out.iterdir() if p.is_file()} - {"calls.txt"}
    assert written == {"curves.csv", "results.csv", *FILES}


def test_a_dry_run_prints_the_commands_and_runs_nothing(sweep_file, tmp_path, capsys):
    run_ablation(sweep_file, "--out", tmp_path / "out", "--dry-run", "--", "--wait=1")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.endswith("--wait=1") for line in lines)
    assert not (tmp_path / "out").exists()


def test_finished_runs_are_skipped_and_half_finished_ones_start_again(sweep_file, tmp_path):
    out = tmp_path / "out"
    run_ablation(sweep_file, "--out", out)
    assert calls(out) == ["x=1", "x=2"]
    (out / "x=2" / "seed_0" / "result.json").unlink()
    run_ablation(sweep_file, "--out", out)
    assert calls(out) == ["x=1", "x=2", "x=2"]
    run_ablation(sweep_file, "--out", out, "--seeds", 5, 0)
    assert [(r["point"], r["seed"]) for r in rows(out)] == [
        ("x=1", "0"),
        ("x=2", "0"),
        ("x=1", "5"),
        ("x=2", "5"),
    ]


def test_a_failed_run_is_reported_and_the_others_go_on(sweep_file, tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        run_ablation(sweep_file, "--out", out, "--", "--fail=1")
    assert stop.value.code == 1
    assert [r["status"] for r in rows(out)] == ["failed", "finished"]
    text = capsys.readouterr().out
    assert f"x=1 seed 0: failed, see {out / 'x=1' / 'seed_0' / 'log.txt'}" in text
    assert "0 (1 failed)" in text


def test_results_of_another_command_are_not_mixed_in(sweep_file, tmp_path, capsys):
    out = tmp_path / "out"
    run_ablation(sweep_file, "--out", out)
    with pytest.raises(SystemExit) as stop:
        run_ablation(sweep_file, "--out", out, "--", "--more=1")
    assert stop.value.code == 2
    assert "holds the result of another command" in capsys.readouterr().err


def test_a_folder_of_something_else_is_left_alone(sweep_file, tmp_path, capsys):
    mine = tmp_path / "out" / "x=1" / "seed_0" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(SystemExit):
        run_ablation(sweep_file, "--out", tmp_path / "out")
    assert mine.read_text() == "mine"


def alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_one_number_of_seeds_counts_them(sweep_file, tmp_path, capsys):
    run_ablation(sweep_file, "--out", tmp_path / "out", "--seeds", 3, "--dry-run")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("--seed_everything=")[1][0] for line in lines] == list("001122")
    with pytest.raises(SystemExit):
        run_ablation(sweep_file, "--seeds", 0)
    assert "error: --seeds 0: one number is how many" in capsys.readouterr().err


def test_several_runs_go_side_by_side_and_the_table_keeps_its_order(sweep_file, tmp_path, capsys):
    """Point 1 waits for point 2, which would never come if they ran one after the other."""
    waits = 'while args["a.x"] == "1" and not (run.parents[2] / "x=2" / "seed_0").exists()'
    text = TRAIN.replace('while args.get("wait") == args["a.x"]', waits)
    (tmp_path / "train.py").write_text(text)
    out = tmp_path / "out"
    run_ablation(sweep_file, "--out", out, "--jobs", 2)
    assert [row["point"] for row in rows(out)] == ["x=1", "x=2"]
    run_ablation(sweep_file, "--out", out, "--collect")
    assert calls(out).count("x=1") == 1
    assert "| x=1 | 1 " in capsys.readouterr().out.rsplit("val/accuracy after", 1)[1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_child_ends_with_the_runner(sweep_file, tmp_path, number):
    out = tmp_path / "out"
    command = [sys.executable, SCRIPT, sweep_file, "--out", out, "--", "--wait=2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    runner = subprocess.Popen([*map(str, command)], env=env, stdout=subprocess.DEVNULL)
    try:
        until(lambda: calls(out) == ["x=1", "x=2"])
        listed = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
        (child,) = map(int, listed)
        runner.send_signal(number)
        runner.wait(20)
    finally:
        runner.kill()
    until(lambda: not alive(child))
    assert [r["point"] for r in rows(out)] == ["x=1"]


def test_values_at_the_ends_come_from_the_metrics_where_they_are_logged(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "log.txt").write_text("nothing here")
    metrics = tmp_path / "run" / "metrics.csv"
    metrics.write_text("rollout,val/accuracy\n,0.25\n1.0,\n,0.5\n2.0,\n")
    assert outcome(tmp_path, "val/accuracy") == (0.25, None, 2)
    (tmp_path / "log.txt").write_text("│ val/accuracy │ 0.111 │ 0.750 │")
    assert outcome(tmp_path, "val/accuracy") == (0.25, 0.75, 2)


@pytest.mark.slow
def test_two_real_points_and_a_second_call_that_runs_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    content = yaml.safe_load((ROOT / "ablations" / "clip_higher.yaml").read_text())
    content["parameters"] = {"model.policy.clip_high": {"values": [0.2, 0.28]}}
    sweep = tmp_path / "two.yaml"
    sweep.write_text(yaml.safe_dump(content))
    small = [
        "--data.groups_per_rollout=2",
        "--data.group_size=2",
        "--data.rollouts_per_epoch=1",
        "--data.sampling.max_new_tokens=8",
        "--data.val_sampling.max_new_tokens=8",
        "--data.val_samples=1",
        "--model.update.minibatch_size=4",
        "--model.update.micro_batch_size=4",
        "--trainer.max_epochs=1",
        "--trainer.check_val_every_n_epoch=1",
        "--trainer.limit_val_batches=1",
        "--callbacks.value_warmup=null",
    ]
    out = tmp_path / "out"
    args = [sweep, "--config", "configs/scale/tiny.yaml", "--out", out, "--", *small]
    run_ablation(*args)
    first = rows(out)
    assert [row["status"] for row in first] == ["finished", "finished"]
    assert all(row["rollouts"] == "1" for row in first)
    assert all(0 <= float(row[k]) <= 1 for row in first for k in ("before", "after"))
    for row, value in zip(first, (0.2, 0.28), strict=True):
        folder = out / row["point"] / "seed_0"
        saved = yaml.safe_load((folder / "run" / "config.yaml").read_text())
        assert saved["model"]["policy"]["init_args"]["clip_high"] == value
        assert f"--model.policy.clip_high={value}" in json.loads(
            (folder / "command.json").read_text()
        )
    started = time.monotonic()
    run_ablation(*args)
    assert time.monotonic() - started < 5
    assert rows(out) == first
