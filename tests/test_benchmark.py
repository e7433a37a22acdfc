"""`scripts/benchmark.py`, run as a user would, without the other library."""

import json
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

SCRIPT = str(ROOT / "scripts" / "benchmark.py")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--rounds 0", "argument --rounds: 0 is not at least 1"),
        ("--max-new-tokens -1", "argument --max-new-tokens: -1 is not at least 1"),
        (
            "--cases c --smollm2 nowhere",
            "--smollm2=nowhere: holds no model; write one with",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_line(args, message):
    command = [sys.executable, SCRIPT, *args.split(), "--contenders", "dapo"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2
    assert f"benchmark.py: error: {message}" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_the_benchmark_measures_every_stage_of_its_own_contenders(tmp_path):
    args = ["--cases", "b", "--contenders", "dapo", "dapo_rescored", "vapo", "--rounds", "1"]
    args += ["--max-new-tokens", "12", "--rows", "16", "--tokens", "600"]
    args += ["--clock", "cpu", "--out", str(tmp_path / "report.json")]
    subprocess.run([sys.executable, SCRIPT, *args], check=True, cwd=ROOT, timeout=300)
    (result,) = json.loads((tmp_path / "report.json").read_text())["cases"].values()
    sizes, medians = result["sizes"], result["medians"]
    assert (sizes["max_new_tokens"], sizes["rows"], sizes["tokens"]) == (12, 16, 600)
    assert list(medians) == ["dapo", "dapo_rescored", "vapo"]
    for row in medians.values():
        stages = [row[stage] for stage in ("rollout", "scoring", "update")]
        assert min(stages) > 0
        assert sum(stages) == pytest.approx(row["step"], rel=0.02)
        assert 0 < row["update_share_of_peak"] < 1
    assert medians["dapo_rescored"]["scoring"] > 2 * medians["dapo"]["scoring"]
    assert medians["vapo"]["update"] > medians["dapo"]["update"]


@pytest.mark.slow
def test_the_profile_says_where_a_step_goes():
    script = str(ROOT / "scripts" / "benchmark_profile.py")
    command = [sys.executable, script, "a"]
    out = subprocess.run(
        command, check=True, cwd=ROOT, timeout=300, capture_output=True, text=True
    ).stdout
    shares = [float(x) for x in re.findall(r"(\d+\.\d)% ", out)]
    assert len(shares) == 8
    assert all(0 < share < 100 for share in shares)
    assert int(re.search(r"([\d,]+) calls of modules", out)[1].replace(",", "")) > 1000
    assert all(float(x) > 0 for x in re.findall(r"(\d+) GFLOP/s in the products", out))
