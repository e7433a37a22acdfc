"""Metrics files: monotone over resumption, and every other logger without an account."""

import csv
import importlib
import json
from pathlib import Path

import pytest
import yaml

from lit_reason.callbacks.samples import COLUMNS
from lit_reason.cli import run
from lit_reason.errors import ConfigError
from lit_reason.jsonl import append_rows
from lit_reason.loggers import MetricsFile
from lit_reason.report.history import read_run
from lit_reason.report.wandb_files import read_offline
from tests.conftest import SMALL, fit, tiny
from tests.test_cold_start import ARGS

COLD_START = [*ARGS, "--trainer.max_epochs=1"]


def rows_of(run_dir):
    with (run_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def log(run_dir, *rows):
    logger = MetricsFile(str(run_dir))
    for step, values in rows:
        logger.log_metrics(values, step)
        logger.save()
    return logger


def steps(run_dir):
    return [int(row["step"]) for row in rows_of(run_dir)]


LOGS_ONCE = """
from lightning.pytorch import Callback

class LogsOnce(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.log("mine/every", float(batch_idx), batch_size=1)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == 0:
            self.log("mine/once", 1.0, batch_size=1)
        self.log("mine/epoch", 1.0, on_step=False, on_epoch=True, batch_size=1)
"""


@pytest.mark.parametrize("subcommand", ["fit", "cold_start"])
def test_what_one_rollout_logs_does_not_stand_for_the_next(subcommand, monkeypatch, tmp_path):
    """As `entropy/correct` of a rollout without a correct response."""
    monkeypatch.syspath_prepend(tmp_path)
    Path("logs_once.py").write_text(LOGS_ONCE)
    own = [*tiny("grpo"), *SMALL] if subcommand == "fit" else COLD_START
    run([subcommand, *own, "--callbacks.x=logs_once.LogsOnce", "--run_dir=run"])
    rows = [row for row in rows_of(Path("run")) if row["mine/every"]]
    assert [row["mine/every"] for row in rows] == ["0.0", "1.0"]
    assert [row["mine/once"] for row in rows] == ["1.0", ""]
    assert "1.0" in [row["mine/epoch"] for row in rows_of(Path("run"))]
    assert read_run(Path("run")).get("mine/once").values == [1.0]


def test_a_row_is_on_disk_as_soon_as_it_is_logged(tmp_path):
    logger = MetricsFile(str(tmp_path))
    for step in range(3):
        logger.log_metrics({"reward": step}, step)
        logger.save()
        assert steps(tmp_path) == list(range(step + 1))
    assert {p.name for p in tmp_path.iterdir()} == {"metrics.csv"}


@pytest.mark.parametrize("added", [b"\xff\xfe\n", b"1" * 200_000 + b"\n"], ids=["bytes", "cell"])
def test_a_file_that_is_not_as_the_run_wrote_it_is_one_line(tmp_path, added):
    log(tmp_path, (0, {"reward": 1}))
    path = tmp_path / "metrics.csv"
    path.write_bytes(path.read_bytes() + added)
    with pytest.raises(ConfigError, match=r"metrics\.csv: is not as the run wrote it .*move it"):
        log(tmp_path, (1, {"reward": 1}))


@pytest.mark.parametrize("resumed", [0, 2, 3, 5])
def test_a_resumed_file_replaces_the_rows_that_are_written_again(tmp_path, resumed):
    """G08: strictly monotone, whatever the earlier run had written after its checkpoint."""
    log(tmp_path, *[(i, {"reward": i}) for i in range(5)])
    log(tmp_path, *[(i, {"reward": 10 + i, "new": 1}) for i in range(resumed, 10)])
    assert steps(tmp_path) == list(range(10))
    rewards = [float(row["reward"]) for row in rows_of(tmp_path)]
    assert rewards == [i if i < resumed else 10 + i for i in range(10)]
    assert [row["new"] for row in rows_of(tmp_path)] == [""] * resumed + ["1"] * (10 - resumed)


@pytest.mark.parametrize("after", [{"reward": 2}, {"reward": 2, "more": 5}])
def test_a_row_written_in_advance_is_there_once_and_whole(tmp_path, after):
    logger = log(tmp_path, (0, {"reward": 1}), (1, {"reward": 2}))
    logger.experiment.expect_again()
    for step, values in ((1, after), (1, {"val/accuracy": 0.5}), (2, {"reward": 3})):
        logger.log_metrics(values, step)
        logger.save()
    assert steps(tmp_path) == [0, 1, 1, 2]
    more = [row.get("more", "") for row in rows_of(tmp_path)]
    assert more == ["", str(after.get("more", "")), "", ""]


def test_new_keys_join_the_file_and_old_rows_stay(tmp_path):
    log(tmp_path, (0, {"reward": 1}), (1, {"reward": 2, "val/accuracy": 0.5}), (2, {"other": 3}))
    rows = rows_of(tmp_path)
    assert rows[0] == {"step": "0", "reward": "1", "val/accuracy": "", "other": ""}
    assert rows[1]["val/accuracy"] == "0.5"
    assert rows[2]["other"] == "3"


def test_a_last_row_that_was_cut_off_is_dropped(tmp_path):
    log(tmp_path, (0, {"reward": 1}), (1, {"reward": 2}))
    path = tmp_path / "metrics.csv"
    text = path.read_text()
    header = text.splitlines()[0].split(",")
    cut = "," * header.index("step") if header[0] != "step" else "x"
    path.write_text(text + cut)
    log(tmp_path, (2, {"reward": 3}))
    assert steps(tmp_path) == [0, 1, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_names_the_file(tmp_path):
    logger = log(tmp_path, (0, {"reward": 1}))
    for name in ("metrics.csv", "samples.jsonl"):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"cannot be written \(No space left on device\); make room"):
        logger.log_metrics({"reward": 2}, 1)
    with pytest.raises(OSError, match=r"samples\.jsonl"):
        append_rows(tmp_path / "samples.jsonl", [{"rollout": 0}])


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """One run with every logger at once."""
    folder = tmp_path_factory.mktemp("loggers")
    overlay = folder / "loggers.yaml"
    wandb = {
        "class_path": "WandbLogger",
        "init_args": {"offline": True, "project": "test", "save_dir": str(folder / "run")},
    }
    tensorboard = {
        "class_path": "TensorBoardLogger",
        "init_args": {"save_dir": str(folder / "run" / "tensorboard")},
    }
    overlay.write_text(yaml.safe_dump({"trainer": {"logger": [wandb, tensorboard]}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        every = "--callbacks.samples.every_n_rollouts=1"
        run = fit(*tiny("grpo"), *SMALL, f"--config={overlay}", every, run_dir=str(folder / "run"))
        importlib.import_module("wandb").finish()  # as when the process ends
        return run


@pytest.mark.slow
def test_tensorboard_and_the_metrics_file_hold_the_same_numbers(logged):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = logged.rglob("events.out.tfevents.*")
    board = EventAccumulator(str(events))
    board.Reload()
    for key in ("reward", "response_length", "val/accuracy"):
        written = [float(row[key]) for row in rows_of(logged) if row[key]]
        assert [e.value for e in board.Scalars(key)] == pytest.approx(written), key


@pytest.mark.slow
def test_the_sample_table_reaches_wandb_without_an_account(logged):
    tables = [p for p in logged.rglob("*.table.json") if "samples" in p.name]
    contents = [json.loads(path.read_text()) for path in tables]
    assert contents
    assert all(table["columns"] == list(COLUMNS) for table in contents)
    lines = (logged / "samples.jsonl").read_text().splitlines()
    written = [row for table in contents for row in table["data"]]
    assert sorted(map(str, written)) == sorted(
        str(list(json.loads(line).values())) for line in lines
    )


@pytest.mark.slow
def test_an_offline_run_of_wandb_reads_as_the_run_folder_does(logged):
    (file,) = {path.resolve() for path in logged.rglob("run-*.wandb")}
    offline, run = read_offline(file.parent), read_run(logged)
    for key in ("reward", "response_length", "val/accuracy"):
        assert offline.get(key).rollouts == run.get(key).rollouts, key
        assert offline.get(key).values == pytest.approx(run.get(key).values), key
