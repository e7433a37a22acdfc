"""`scripts/run_ablation.py`: a sweep on this machine, resumable, without an account."""

import csv
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from lit_reason.report.ablation import outcome
from lit_reason.report.comparison import FILES
from tests.test_ablations import write_sweep
from tests.test_comparison import squeezed

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
begin = time.monotonic()
while args.get("wait") == args["a.x"] and time.monotonic() < begin + 30:
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
    assert "| x=2 | 2 | 0.205 [0.200, 0.210] | x=1 | +0.100 [0.100, 0.100] |" in squeezed(text)
    written = {p.name for p in out.iterdir() if p.is_file()} - {"calls.txt", ".lock"}
    assert written == {"curves.csv", "results.csv", *FILES}
    assert all(str(out / name) in text.splitlines() for name in written)


def test_a_dry_run_prints_the_commands_and_runs_nothing(sweep_file, tmp_path, capsys):
    run_ablation(sweep_file, "--out", tmp_path / "out", "--dry-run", "--", "--wait=1")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.endswith("--wait=1") for line in lines)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "secret",
    [["--a.client_secret=Zz9secret"], ["--a.k={password: Zz9secret}"], ["--a.h=Bearer Zz9secret"]],
)
def test_secrets_reach_the_runs_and_no_file(sweep_file, tmp_path, capsys, secret):
    text = TRAIN.replace("run.mkdir()", "run.mkdir()\nassert 'Zz9secret' in str(args)")
    (tmp_path / "train.py").write_text(text)
    out = tmp_path / "out"
    args = [sweep_file, "--out", out, "--", *secret, "--b=1"]
    run_ablation(*args)
    run_ablation(*args)  # the same command
    assert calls(out) == ["x=1", "x=2"]
    run_ablation(*args[:3], "--dry-run", *args[3:])
    assert [row["status"] for row in rows(out)] == ["finished", "finished"]
    for path in (path for path in out.rglob("*") if path.is_file()):
        assert b"Zz9secret" not in path.read_bytes(), path
    told = capsys.readouterr()
    assert "Zz9secret" not in told.out + told.err
    assert "…" in told.out
    command = out / "x=1" / "seed_0" / "command.json"
    words = json.loads(command.read_text())
    assert words[-1] == "--b=1"
    words[-2] = secret[0]  # as an earlier release wrote it
    command.write_text(json.dumps(words))
    run_ablation(*args)
    assert calls(out) == ["x=1", "x=2"]
    with pytest.raises(SystemExit):
        run_ablation(*args[:-1], "--b=2")
    assert "holds the result of another command" in capsys.readouterr().err


def test_a_swept_secret_is_in_no_table(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN.replace('args["a.x"]', 'args.get("a.x", 1)'))
    parameters = {"a.token": {"value": "Zz9secret"}, "a.y": {"values": [3, True]}}
    run_ablation(write_sweep(tmp_path / "s.yaml", parameters=parameters), "--out", tmp_path / "out")
    assert [(r["a.token"], r["a.y"]) for r in rows(tmp_path / "out")] == [("…", "3"), ("…", "True")]


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
    with pytest.raises(SystemExit) as stop:
        run_ablation(sweep_file, "--out", out, "--collect", "--", "--fail=1")
    assert stop.value.code == 1
    assert "0 (1 failed)" in capsys.readouterr().out
    assert [r["status"] for r in rows(out)] == ["failed", "finished"]
    assert calls(out) == ["x=1", "x=2"]
    (tmp_path / "train.py").write_text(TRAIN.replace("as asked", "").replace('"fail"', '"none"'))
    run_ablation(sweep_file, "--out", out, "--", "--fail=1")
    assert calls(out) == ["x=1", "x=2", "x=1"]
    assert [r["status"] for r in rows(out)] == ["finished", "finished"]


def test_results_of_another_command_are_not_mixed_in(sweep_file, tmp_path, capsys):
    out = tmp_path / "out"
    run_ablation(sweep_file, "--out", out)
    with pytest.raises(SystemExit) as stop:
        run_ablation(sweep_file, "--out", out, "--", "--more=1")
    assert stop.value.code == 2
    assert "holds the result of another command" in capsys.readouterr().err
    table = (out / "table.md").read_text()
    for other in (["--collect", "--", "--more=1"], ["--seeds", "7", "--", "--more=1"]):
        with pytest.raises(SystemExit):
            run_ablation(sweep_file, "--out", out, *other)
        assert "holds the result of another command" in capsys.readouterr().err
    assert (out / "table.md").read_text() == table
    assert calls(out) == ["x=1", "x=2"]


def test_results_are_those_of_the_command_wherever_they_lie(sweep_file, tmp_path, monkeypatch):
    run_ablation(sweep_file, "--out", tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    run_ablation(sweep_file, "--out", "moved")
    assert calls(tmp_path / "moved") == ["x=1", "x=2"]


@pytest.mark.parametrize("made", [False, True])
def test_there_is_nothing_to_collect_of_nothing(sweep_file, tmp_path, capsys, made):
    out = tmp_path / "out"
    if made:
        out.mkdir()
    with pytest.raises(SystemExit) as stop:
        run_ablation(sweep_file, "--out", out, "--collect")
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error: --out {out}: no run of s has finished there")
    assert said.out == ""
    assert (list(out.iterdir()) if made else out.exists()) in ([], False)


def test_all_files_hold_what_is_finished_there(sweep_file, tmp_path, capsys):
    out = tmp_path / "out"
    run_ablation(sweep_file, "--out", out, "--seeds", 3)
    capsys.readouterr()
    for args in (["--seeds", 1], ["--seeds", 10, 11], ["--collect"]):
        run_ablation(sweep_file, "--out", out, *args)
        seeds = "1, 2" if "1" in map(str, args) else "0, 1, 2" if 10 in args else "1, 2, 10, 11"
        assert f"with seeds {seeds} of earlier calls" in capsys.readouterr().out
        content = json.loads((out / "results.json").read_text())
        found = [(r["point"], str(r["seed"])) for r in content["runs"]]
        assert found == [(r["point"], r["seed"]) for r in rows(out)]
        with (out / "curves.csv").open() as file:
            assert {(r["point"], r["seed"]) for r in csv.DictReader(file)} == set(found)
        assert [row["seeds"] for row in content["rows"]] == [len(found) // 2] * 2


def test_runs_of_several_commits_are_named(sweep_file, tmp_path, capsys):
    out = tmp_path / "out"
    run_ablation(sweep_file, "--out", out)
    assert "version" not in capsys.readouterr().err
    path = out / "x=1" / "seed_0" / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "commit": "0123456789"}))
    run_ablation(sweep_file, "--out", out)
    note = r"he runs are of 2 versions of the code: 0123456789 \(1 run\), \S+ \(1 run\)"
    assert re.fullmatch(f"warning: t{note}\n", capsys.readouterr().err)
    assert re.search(f"\n\nT{note}\\.\n$", (out / "table.md").read_text())
    assert re.search(f"<p>T{note}\\.</p>", (out / "comparison.html").read_text())


def test_the_commit_is_that_at_the_start_of_the_run(sweep_file, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(
        "lit_reason.report.ablation.commit", lambda: "end" if calls(out) else "start"
    )
    run_ablation(sweep_file, "--out", out, "--jobs", 2)
    assert [row["commit"] for row in rows(out)] == ["start", "start"]


def test_the_swept_file_and_the_hash_are_columns_of_their_own(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN.replace('args["a.x"]', 'args.get("a.x", 1)'))
    files = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    for file in files:
        file.write_text("a: 1")
    parameters = {"config": {"values": [str(file) for file in files]}}
    run_ablation(write_sweep(tmp_path / "s.yaml", parameters=parameters), "--out", tmp_path / "out")
    head = (tmp_path / "out" / "results.csv").read_text().splitlines()[0].split(",")
    assert len(set(head)) == len(head)
    assert [row["config"] for row in rows(tmp_path / "out")] == list(map(str, files))
    assert {row["config_hash"] for row in rows(tmp_path / "out")} == {""}


def test_results_of_an_earlier_release_are_read(sweep_file, tmp_path):
    out = tmp_path / "out"
    run_ablation(sweep_file, "--out", out)
    for path in out.glob("*/seed_0/result.json"):
        content = json.loads(path.read_text())
        assert content.pop("config_hash") == ""
        path.write_text(json.dumps({**content, "config": "abc"}))
    run_ablation(sweep_file, "--out", out, "--collect")
    assert [row["config_hash"] for row in rows(out)] == ["abc", "abc"]


@pytest.mark.parametrize("text", ["", '{"point": "x=1"', "[]", "null", "{}"])
def test_a_damaged_result_is_none(sweep_file, tmp_path, text):
    out = tmp_path / "out"
    run_ablation(sweep_file, "--out", out)
    (out / "x=1" / "seed_0" / "result.json").write_text(text)
    run_ablation(sweep_file, "--out", out)
    assert calls(out) == ["x=1", "x=2", "x=1"]


def test_a_damaged_command_and_damaged_numbers_of_papers_are_one_line(sweep_file, tmp_path, capsys):
    out = tmp_path / "out"
    run_ablation(sweep_file, "--out", out)
    papers = tmp_path / "papers.json"
    for text in ("{", '{"s": {"colour": 1}}', '{"s": 1}'):
        papers.write_text(text)
        with pytest.raises(SystemExit):
            run_ablation(sweep_file, "--out", out)
        assert f"error: {papers}: is not JSON with source" in capsys.readouterr().err
    (out / "x=1" / "seed_0" / "command.json").write_text("[")
    for args in ([], ["--collect"]):
        with pytest.raises(SystemExit):
            run_ablation(sweep_file, "--out", out, *args)
        folder = out / "x=1" / "seed_0"
        expected = f"error: {folder}/command.json: is damaged; remove {folder} to run it again\n"
        assert capsys.readouterr().err == expected


@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_a_missing_overlay_is_refused_before_anything_runs(sweep_file, tmp_path, capsys, dry):
    with pytest.raises(SystemExit) as stop:
        run_ablation(sweep_file, "--out", tmp_path / "out", "--config", "nope.yaml", *dry)
    assert stop.value.code == 2
    assert "error: config=nope.yaml: No such file or directory" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([1, 1], "--seeds 1 1: names seed 1 twice"),
        ([0, -2], "--seeds 0 -2: a seed must lie in [0, 4294967295]"),
        ([0, 2**32], "a seed must lie in"),
    ],
)
def test_seeds_that_cannot_be_are_refused(sweep_file, tmp_path, capsys, seeds, message):
    with pytest.raises(SystemExit):
        run_ablation(sweep_file, "--out", tmp_path / "out", "--dry-run", "--seeds", *seeds)
    assert message in capsys.readouterr().err


def test_a_folder_of_something_else_is_left_alone(sweep_file, tmp_path, capsys):
    mine = tmp_path / "out" / "x=1" / "seed_0" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    result = {"point": "x=1", "seed": 0, "status": "finished"}
    mine.with_name("result.json").write_text(json.dumps(result))
    with pytest.raises(SystemExit):
        run_ablation(sweep_file, "--out", tmp_path / "out")
    assert "is no run of an ablation; choose --out" in capsys.readouterr().err
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
    assert text != TRAIN
    (tmp_path / "train.py").write_text(text)
    out = tmp_path / "out"
    run_ablation(sweep_file, "--out", out, "--jobs", 2)
    assert [row["point"] for row in rows(out)] == ["x=1", "x=2"]
    run_ablation(sweep_file, "--out", out, "--collect")
    assert calls(out).count("x=1") == 1
    assert "| x=1 | 1 " in capsys.readouterr().out.rsplit("val/accuracy after", 1)[1]


@contextmanager
def runner_at_work(sweep_file, out):
    """Another process, which waits for the second point."""
    command = [sys.executable, SCRIPT, sweep_file, "--out", out, "--", "--wait=2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    runner = subprocess.Popen([*map(str, command)], env=env, **pipes)
    try:
        until(lambda: calls(out)[-2:] == ["x=1", "x=2"])
        yield runner
    finally:
        runner.kill()
        runner.communicate()


def test_a_folder_has_one_runner_at_a_time(sweep_file, tmp_path, capsys):
    out = tmp_path / "out"
    args = [sweep_file, "--out", out, "--", "--wait=2"]
    with runner_at_work(sweep_file, out):
        before = (out / "results.csv").stat()
        with pytest.raises(SystemExit) as stop:
            run_ablation(*args)
        assert stop.value.code == 2
        assert f"error: --out {out}: another runner is at work there" in capsys.readouterr().err
        run_ablation(*args[:3], "--collect", *args[3:])  # looks, and leaves the runner's files
        assert "| x=1 | 1 " in capsys.readouterr().out
        assert (out / "results.csv").stat() == before
    (tmp_path / "train.py").write_text(TRAIN.replace('"wait"', '"none"'))
    run_ablation(*args)  # what a killed runner leaves is in nobody's way
    assert calls(out) == ["x=1", "x=2", "x=2"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)]
)
def test_the_child_ends_with_the_runner(sweep_file, tmp_path, number, code):
    out = tmp_path / "out"
    with runner_at_work(sweep_file, out) as runner:
        listed = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
        (child,) = map(int, listed)
        runner.send_signal(number)
        if code > 0:
            runner.send_signal(number)  # again, as of somebody who does not wait
        said = runner.communicate(timeout=20)[1]
        assert runner.returncode == code
        assert said.count("stopped; the same command continues with the runs") == (code > 0)
        assert "Traceback" not in said
        if code > 0:
            assert not alive(child)
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
