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
from lit_reason.backbones import Pretrained
from lit_reason.cli import run
from lit_reason.errors import ConfigError
from lit_reason.run_dir import choose_run_dir, claim
from tests.conftest import SMALL, fails, fit, tiny

VAPO = [*tiny("vapo"), *SMALL, "--callbacks.value_warmup.rollouts=1"]


def rows_of(run_dir):
    with (Path(run_dir) / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


# --- bad input ------------------------------------------------------------------------------------


@pytest.fixture
def no_model(monkeypatch):
    """Mistakes must be found before a model is loaded."""

    def build(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(Pretrained, "_build", build)


FLAGS = [
    # unknown keys
    ("--model.advantage.alhpa=1", r"model\.advantage\.alhpa=1: no such key; .*advantage\.alpha\?"),
    ("--data.group_sise=3", r"data\.group_sise=3: no such key; did you mean data\.group_size\?"),
    ("--trainer.max_epoch=3", r"trainer\.max_epoch=3: no such key; .*trainer\.max_epochs\?"),
    ("--callbacks.entropy.postions=1", r"callbacks\.entropy\.postions=1: .*entropy\.positions\?"),
    ("--model.terms.positive_lm.ceof=1", r"terms\.positive_lm\.ceof=1: .*positive_lm\.coef\?"),
    # wrong types
    ("--data.group_size=many", r"data\.group_size=many: expected int"),
    ("--model.advantage.alpha=None", r"model\.advantage\.alpha=None: expected float, or null"),
    ("--model.actor_optimizer.lr=fast", r"model\.actor_optimizer\.lr=fast: expected float"),
    ("--data.task.split=dev", r"data\.task\.split=dev: choose one of train, held_out"),
    ("--data.group_size", r"data\.group_size: no value given; write --data\.group_size=VALUE"),
    ("quickstart", r"quickstart: not an option; write --KEY=VALUE"),
    # classes
    ("--model.advantage=GEA", r"model\.advantage=GEA: no class GEA; choose one of GAE, GroupRel"),
    ("--callbacks.mine=Mine", r"callbacks\.mine=Mine: no class Mine; choose one of EntropyMonitor"),
    ("--trainer.logger=Wandb", r"trainer\.logger=Wandb: no class Wandb; .*WandbLogger"),
    ("--model.actor_optimizer=torch.optim.AdamV", r"AdamV: no class .*torch\.optim\.AdamW"),
    # sizes
    (
        "--model.update.minibatch_size=7",
        r"minibatch_size=7 does not divide .*one of 1, 2, 4, 8, 16",
    ),
    ("--model.update.micro_batch_size=3", r"micro_batch_size=3 does not divide .*of 1, 2, 4, 8$"),
    ("--callbacks.value_warmup.rollouts=0", r"callbacks\.value_warmup\.rollouts=0: must be at lea"),
    # combinations
    (
        "--model.value=null",
        r"model\.value=null: model\.advantage=GAE needs a critic; set .*ValueLo",
    ),
    ("--model.kl_in_reward=-0.1", r"model\.kl_in_reward=-0\.1: must be at least 0"),
    ("--model.terms.positive_lm.coef=-1", r"PositiveExampleLM\.coef=-1\.0: must be above 0"),
    # the Trainer
    ("--trainer.precision=bf16-true", r"trainer\.precision=bf16-true: .*32-true or bf16-mixed"),
    ("--trainer.gradient_clip_val=1", r"gradient_clip_val=1.*set model\.update\.max_grad_norm=1"),
    ("--trainer.accumulate_grad_batches=2", r"accumulate_grad_batches=2: .*micro_batch_size"),
    ("--trainer.max_steps=9", r"trainer\.max_steps=9: .*trainer\.max_epochs"),
    ("--trainer.accelerator=quantum", r"trainer: .*accelerator='quantum'.*cpu"),
    # files and limits
    ("--ckpt_path=none.ckpt", r"ckpt_path=none\.ckpt: no such file; checkpoints are in RUN_DIR"),
    (
        "--data.sampling.max_new_tokens=99999",
        r"data\.task: a prompt of \d+ tokens .*max_new_tokens",
    ),
]


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(("flag", "message"), FLAGS, ids=[flag for flag, _ in FLAGS])
def test_a_mistake_on_the_command_line_is_one_line(flag, message, capsys):
    line = fails(capsys, "fit", *VAPO, flag, "--run_dir=run")
    assert re.search(message, line), line
    assert not list(Path().rglob("run/*"))  # so that the next try is not refused


FILES = [
    ("data: {group_sise: 3}", r"data\.group_sise=3: no such key; did you mean data\.group_size\?"),
    ("data: {sampling: {temprature: 1}}", r"data\.sampling\.temprature=1: .*temperature\?"),
    (
        "model: {advantage: {class_path: GAE, init_args: {alhpa: 0.5}}}",
        r"model\.advantage\.alhpa=0\.5: no such key; did you mean model\.advantage\.alpha\?",
    ),
    (
        "model: {terms: {kl: {class_path: KLToReference, init_args: {ceof: 1}}}}",
        r"model\.terms\.kl\.ceof=1: no such key; did you mean model\.terms\.kl\.coef\?",
    ),
    (
        "callbacks: {entropy: {class_path: EntropyMonitor, init_args: {postions: 1}}}",
        r"callbacks\.entropy\.postions=1: .*callbacks\.entropy\.positions\?",
    ),
    ("data: {group_size: many}", r"data\.group_size=many: expected int"),
    (
        "model: {advantage: {class_path: GAE, init_args: {alpha: big}}}",
        r"model\.advantage\.alpha=big: expected float, or null",
    ),
    (
        "callbacks: {value_warmup: {class_path: ValueWarmup, init_args: {rollouts: 0}}}",
        r"callbacks\.value_warmup\.rollouts=0: must be at least 1",
    ),
    (
        "data: {group_filter: {class_path: Drop}}",
        r"data\.group_filter=Drop: no class .*DropUniform",
    ),
    ("callbacks: {entropy: Monitor}", r"callbacks\.entropy=Monitor: no class .*EntropyMonitor"),
    ("model: {backbone: null}", r"model\.backbone: not set"),
    ("", r"config=overlay\.yaml: is empty; it must map keys to values"),
    ("model: {a: [1\n  b: }", r"config=overlay\.yaml: not valid YAML in line 2"),
    ("data: {group_size: 4}\ndata: {max_rounds: 8}\n", r"line 2, .*the key data stands twice"),
    (b"\xff\xfe\x00", r"config=overlay\.yaml: not a text file"),
]


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(("content", "message"), FILES, ids=[str(content) for content, _ in FILES])
def test_a_mistake_in_a_file_is_one_line_with_its_full_key(content, message, capsys):
    content = content if isinstance(content, bytes) else content.encode()
    Path("overlay.yaml").write_bytes(content)
    line = fails(capsys, "fit", *VAPO, "--config=overlay.yaml", "--run_dir=run")
    assert re.search(message, line), line
    assert not list(Path().rglob("run/*"))


def test_a_command_without_a_configuration_or_with_another_name(capsys):
    assert "model.backbone, model.advantage" in fails(capsys, "fit")
    line = fails(capsys, "train", *VAPO)
    assert re.search(r"subcommand train: .*fit, validate, test, predict, cold_start", line)


def test_group_relative_advantages_of_single_responses_are_refused(capsys):
    sizes = ["--data.groups_per_rollout=16", "--data.group_size=1"]
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, *sizes)
    assert re.search(r"data\.group_size=1: model\.advantage=GroupRelative .*at least 2", line)
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, "--model.value=ValueLoss")
    assert re.search(
        r"model\.value=ValueLoss: would have no effect.*set model\.value to null", line
    )
    steps = ["--data.rewards.steps=StepCorrectness", "--model.kl_in_reward=0.1"]
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, *steps)
    assert re.search(r"model\.kl_in_reward=0\.1: .*'steps'.*add a KLToReference term", line)


BUGS = """
from lit_reason.advantages import Advantages, GroupRelative
from lit_reason.rewards import Reward

class Boom(Reward):
    def __call__(self, prompt, responses, verdicts):
        return {}["key"]

class Flat(GroupRelative):
    def __call__(self, rollout, rewards, values):
        return Advantages(rewards.sum(dim=1), None, {})
"""


def test_a_mistake_in_a_users_own_part_is_one_line_with_its_place(capsys, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_bugs.py").write_text(BUGS)
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, "--data.rewards.x=my_bugs.Boom")
    assert re.search(r"data\.rewards\.x: Boom raised KeyError: 'key' \(at my_bugs\.py:7\)", line)
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, "--model.advantage=my_bugs.Flat")
    assert re.search(r"model\.advantage=Flat: returned advantages of shape \(16,\), expected", line)


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
