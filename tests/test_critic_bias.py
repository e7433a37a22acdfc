"""`scripts/critic_bias.py`: what it measures of finished runs, and its table."""

import csv
import json
import runpy
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "critic_bias.py"))


def finished_run(ablation, tokens, seed, shift=0.0):
    """What a run leaves behind whose policy changes after 15 rollouts."""
    point = next(p for p in ablation.points if tokens in p.values.values())
    folder = ablation.folder(point, seed)
    (folder / "run").mkdir(parents=True)
    (folder / "command.json").write_text(json.dumps(ablation.command(point, seed)))
    result = {"point": point.name, "seed": seed, "status": "finished"}
    (folder / "result.json").write_text(json.dumps(result))
    rows = []
    for i in range(30):
        curve = [0.5 + shift, 0.0, 0.0, -0.5] if 10 <= i <= 15 else [9.0, 9.0, None, 9.0]
        row = {"rollout": i, "phase": "joint", "value": {}, "explained_variance": []}
        rows.append({**row, "advantage": {"all": curve}, "calibration": {}, "lambda": {}})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "run" / "critic.jsonl").write_text(lines)
    text = "rollout,value/bias,val/length,val/value/explained_variance\n"
    for i in range(1, 31):
        text += f"{i},{-0.25 if 11 <= i <= 16 else 7},,\n"
        if i in (15, 30):
            text += f",,{50 - i - shift},{i / 30}\n"
    (folder / "run" / "metrics.csv").write_text(text)


@pytest.fixture
def out(tmp_path):
    for setting in SCRIPT["SETTINGS"]:
        ablation = SCRIPT["study"](setting, tmp_path, [0, 1], [])
        for seed in (0, 1):
            for tokens in ("last", "all"):
                finished_run(ablation, tokens, seed, 0.1 * seed if tokens == "last" else 0.0)
    return tmp_path


def test_finished_runs_are_measured_and_not_run_again(out, capsys):
    SCRIPT["main"](["--seeds", "0", "1", "--out", str(out)])
    with (out / "critic_bias.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["setting"], r["tokens"], r["seed"]) for r in rows] == [
        (setting, tokens, seed)
        for setting in ("short", "chatter", "default")
        for seed in "01"
        for tokens in ("last", "all")
    ]
    first = rows[0]
    assert [float(first[k]) for k in ("start", "early", "late", "spread")] == [0.5, 0.5, -0.5, 1]
    assert float(first["bias"]) == -0.25
    assert float(first["explained"]) == 0.5  # when the warm-up ends
    assert float(first["length_change"]) == -15
    assert first["accuracy_change"] == ""
    shown = capsys.readouterr().out
    assert "| short | mean advantage, first quarter | 0.550 [" in shown
    assert "| 0.500 [0.500, 0.500] | 0.050 [" in shown  # of both seeds alike; the difference


def test_intervals_are_students():
    interval = SCRIPT["interval"]
    assert interval([1.0, 2.0, 3.0]) == "2.000 [-0.484, 4.484]"
    assert interval([1.0]) == "1.000"
    assert interval([]) == "-"


def test_a_folder_with_other_results_is_refused_in_one_line(out, capsys):
    with pytest.raises(SystemExit) as stop:
        SCRIPT["main"](["--seeds", "0", "--out", str(out), "--", "--seed_everything=3"])
    assert stop.value.code == 2
    assert "holds the result of another command" in capsys.readouterr().err


def test_a_signal_ends_it_with_a_line_that_says_how_to_go_on(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "critic_bias.py", "--out", tmp_path / "out"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 60
        while not list(tmp_path.glob("out/*/*/*/log.txt")) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert said == "stopped; the same command continues with the runs that were under way\n"
