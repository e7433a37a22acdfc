"""`scripts/benchmark.py`, run as a user would, without the other library."""

import json
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_the_benchmark_measures_every_stage_of_its_own_contenders(tmp_path):
    args = ["--cases", "b", "--contenders", "dapo", "dapo_rescored", "vapo", "--rounds", "1"]
    args += ["--max-new-tokens", "12", "--clock", "cpu", "--out", str(tmp_path / "report.json")]
    script = str(ROOT / "scripts" / "benchmark.py")
    subprocess.run([sys.executable, script, *args], check=True, cwd=ROOT, timeout=300)
    (result,) = json.loads((tmp_path / "report.json").read_text())["cases"].values()
    medians = result["medians"]
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
