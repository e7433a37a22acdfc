"""The command line: mistakes in one line, help, run folders, precision."""

import csv
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from lit_reason.__main__ import main
from lit_reason.cli import run
from lit_reason.errors import ConfigError
from lit_reason.run_dir import choose_run_dir, claim
from tests.conftest import SMALL, fails, fit, tiny

VAPO = [*tiny("vapo"), *SMALL, "--callbacks.value_warmup.rollouts=1"]


def rows_of(run_dir):
    with (Path(run_dir) / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


# --- help -----------------------------------------------------------------------------------------


def test_help_answers_soon_and_lists_exactly_the_subcommands():
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "lit_reason", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert time.perf_counter() - started < 8
    listed = re.findall(r"^  ([a-z_]+) {2,}\S", done.stdout, re.MULTILINE)
    assert listed == ["fit", "validate", "test", "predict", "cold_start"]


def test_subcommands_have_help_of_their_own_and_the_version_is_known(capsys):
    for subcommand in ("fit", "cold_start"):
        with pytest.raises(SystemExit) as stop:
            main([subcommand, "--help"])
        assert stop.value.code == 0
        assert "--config" in capsys.readouterr().out
    main(["--version"])
    assert re.fullmatch(r"lit_reason \d+\.\d+\.\d+\n", capsys.readouterr().out)
    main([])
    assert "subcommands:" in capsys.readouterr().out


def test_the_printed_configuration_is_one_that_runs(capsys):
    with pytest.raises(SystemExit):
        main(["fit", *VAPO, "--print_config"])
    printed = capsys.readouterr().out
    Path("printed.yaml").write_text(printed)
    assert yaml.safe_load(printed)["model"]["advantage"]["init_args"]["alpha"] is not None
    fit("--config=printed.yaml", "--trainer.fast_dev_run=true")


# --- run folders ----------------------------------------------------------------------------------


def test_the_first_free_folder_is_taken():
    for expected in ("000", "001"):
        main(["fit", *tiny("grpo"), *SMALL, "--trainer.fast_dev_run=true"])
        assert sorted(p.name for p in Path("runs").iterdir())[-1] == expected


def test_a_refused_run_leaves_no_folder_behind(capsys):
    fails(capsys, "fit", *VAPO, "--model.value=null")
    fails(capsys, "fit", *VAPO, "--model.update.minibatch_size=7")
    assert not list(Path("runs").iterdir())


def test_two_runs_cannot_claim_one_folder():
    claim("run", "a: 1", resumed=False)
    with pytest.raises(ConfigError, match=r"run_dir=run: already holds a run.*remove the folder"):
        claim("run", "a: 2", resumed=False)
    assert Path("run/config.yaml").read_text() == "a: 1"
    claim("run", "a: 3", resumed=True)
    assert Path("run/config.yaml").read_text() == "a: 3"


def test_a_folder_in_which_a_run_is_under_way_is_left_alone_until_that_ends(capsys):
    """Before and after that run has claimed it; a kill gives it back."""
    code = "from lit_reason.run_dir import hold; hold('run'); print(flush=True); input()"
    Path("run").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        args = ["fit", *tiny("grpo"), *SMALL, "--run_dir=run"]
        line = fails(capsys, *args)
        assert "run_dir=run: a run is under way in it; wait until it ends or stop it" in line
        Path("run/config.yaml").write_text("seed_everything: 0\n")
        assert fails(capsys, *args) == line
        Path("run/checkpoints").mkdir()
        torch.save({}, "run/checkpoints/last.ckpt")
        assert fails(capsys, *args, "--ckpt_path=last") == line
        other.kill()
    assert "already holds a run; choose another --run_dir, or continue it" in fails(capsys, *args)


def test_a_folder_that_cannot_be_written_is_refused(capsys):
    Path("file").write_text("")
    line = fails(capsys, "fit", *VAPO, "--run_dir=file/run")
    assert re.search(r"run_dir=file/run: cannot be written .*choose another --run_dir", line)


def test_a_folder_that_holds_a_run_is_only_continued():
    Path("run").mkdir()
    assert choose_run_dir("run", "fit", None) == "run"
    Path("run/config.yaml").write_text("")
    with pytest.raises(ValueError, match=r"run_dir=run: already holds a run; choose another --run"):
        choose_run_dir("run", "fit", None)
    assert choose_run_dir("run", "fit", "run/checkpoints/last.ckpt") == "run"
    for subcommand in ("validate", "test", "predict"):
        assert choose_run_dir("run", subcommand, None) == "run"


@pytest.mark.parametrize("name", ["a[/b]", "run[red]x", ":smile:"])
def test_a_folder_whose_name_looks_like_markup_is_shown_as_it_is(name, capsys):
    Path(name).parent.mkdir(exist_ok=True)
    run_dir = fit(*tiny("grpo"), *SMALL, run_dir=name)
    assert f"  {run_dir / 'config.yaml'}\n" in capsys.readouterr().out


# --- precision ------------------------------------------------------------------------------------


def test_bf16_mixed_trains_float32_weights():
    """P10: generation, scoring and update in bfloat16, with a first ratio of one."""
    cli = run(
        [
            "fit",
            *VAPO,
            "--trainer.precision=bf16-mixed",
            "--run_dir=run",
            "--callbacks.value_warmup=null",
            "--model.update.minibatch_size=16",
            "--data.rollouts_per_epoch=1",
        ]
    )
    for network in (cli.model.actor, cli.model.critic):
        assert {p.dtype for p in network.parameters()} == {torch.float32}
    (row,) = [row for row in rows_of("run") if row["reward"]]
    assert float(row["policy/ratio"]) == pytest.approx(1, abs=1e-6)
    assert float(row["policy/clip_fraction_high"]) == 0
    assert cli.model.policy_version == 1
