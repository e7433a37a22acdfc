"""Every configuration in `configs/` runs through the command line at the smallest size."""

import csv
import json
import warnings

import pytest
import torch
import yaml

from lit_reason.__main__ import main
from lit_reason.cli import run
from lit_reason.rollout import Sampling
from tests.conftest import CONFIGS, SMALL, config, fit, tiny

ALGORITHMS = ["ppo", "grpo", "dapo", "vc_ppo", "vapo"]
WARMED = ("vc_ppo", "vapo")


def arguments(name):
    warmup = ["--callbacks.value_warmup.rollouts=1"] if name in WARMED else []
    return [*tiny(name), *SMALL, *warmup]


def metrics(run_dir):
    with (run_dir / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{k: float(v) for k, v in row.items() if v} for row in rows]


def train_rows(run_dir):
    return [row for row in metrics(run_dir) if "reward" in row]


def test_the_folder_holds_exactly_the_configurations_tested_here():
    found = {str(p.relative_to(CONFIGS)) for p in CONFIGS.rglob("*.yaml")}
    expected = {f"{a}.yaml" for a in ALGORITHMS}
    expected |= {"scale/tiny.yaml", "quickstart.yaml", "cold_start.yaml"}
    # tested in test_data_configs.py, test_value_pretraining.py, test_lora.py and test_scale.py
    elsewhere = {name for name in found if name.startswith("data/")}
    elsewhere |= {"smollm2.yaml", "value_pretrain.yaml", "scale/lora.yaml"}
    elsewhere |= {f"scale/{name}.yaml" for name in ("single_gpu", "ddp", "fsdp2")}
    # tested in test_ablations.py and test_reproduce.py
    elsewhere |= {
        name
        for name in found
        if name.startswith(("scale/miniature.", "scale/qwen2.5", "scale/eight_gpus."))
    }
    assert found == expected | elsewhere


@pytest.mark.parametrize("name", ALGORITHMS)
def test_fit_then_validate_test_and_predict(name, capsys):
    run_dir = fit(*arguments(name), "--model.actor_optimizer.lr=3e-3")
    rows = train_rows(run_dir)
    assert [row["rollout"] for row in rows] == [1, 2]
    check_that_the_parts_acted(name, rows)
    assert "val/accuracy" in capsys.readouterr().out
    checkpoint = run_dir / "checkpoints" / "last.ckpt"
    torch.load(checkpoint, weights_only=True)
    if name in ("grpo", "vc_ppo"):  # no critic, and no other parts than VAPO's: as the others
        return
    saved = [f"--config={run_dir / 'config.yaml'}", f"--ckpt_path={checkpoint}"]
    before = (run_dir / "metrics.csv").read_text()
    for subcommand in ("validate", "test"):
        main([subcommand, *saved])
        assert "accuracy" in capsys.readouterr().out
    main(["predict", *saved])
    lines = (run_dir / "predictions.jsonl").read_text().splitlines()
    assert len(lines) == 6 * 2
    assert set(json.loads(lines[0])) >= {"prompt", "response", "reward", "correct"}
    assert (run_dir / "metrics.csv").read_text() == before


def check_that_the_parts_acted(name, rows):
    """Each part of an algorithm reports itself, and only there."""
    keys = set().union(*rows)
    critic = name in ("ppo", "vc_ppo", "vapo")
    assert ("value/explained_variance" in keys) == ("loss/value" in keys) == critic
    assert ("gae/lambda_mean" in keys) == critic
    assert ("groups/kept" in keys) == ("groups/dropped" in keys) == (name == "dapo")
    assert ("reward/soft_overlong" in keys) == (name == "dapo")
    assert ("loss/kl" in keys) == (name == "grpo")
    assert ("positive_lm/tokens" in keys) == (name == "vapo")
    assert [row["joint_phase"] for row in rows] == [float(name not in WARMED), 1.0]
    joint = rows[-1]
    assert {"policy/clip_fraction_low", "policy/clip_fraction_high", "entropy"} <= set(joint)
    if name == "vapo":
        assert joint["gae/lambda_min"] < joint["gae/lambda_max"]


def test_later_config_files_win_and_keep_their_siblings(tmp_path):
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("model: {advantage: {init_args: {lam_critic: 0.7}}}\n")
    run_dir = fit(*arguments("vc_ppo"), f"--config={overlay}")
    saved = yaml.safe_load((run_dir / "config.yaml").read_text())
    advantage = saved["model"]["advantage"]
    assert advantage["class_path"] == "lit_reason.advantages.GAE"
    assert advantage["init_args"]["lam_critic"] == 0.7
    assert advantage["init_args"]["lam_policy"] == 0.95
    assert not [key for key in saved["model"] if "." in key]


def test_another_class_takes_the_arguments_of_the_former_away(capsys):
    """Also those that it takes too, set or not; the same class by its whole name keeps them."""
    optimizer = "--model.actor_optimizer=transformers.Adafactor"
    for flag in (optimizer, "--model.advantage=lit_reason.advantages.GAE"):
        with pytest.raises(SystemExit):
            main(["fit", config("quickstart.yaml"), flag, "--print_config"])
        model = yaml.safe_load(capsys.readouterr().out)["model"]
        if flag == optimizer:
            arguments = model["actor_optimizer"]["init_args"]
            assert (arguments["lr"], arguments["eps"]) == (None, [1e-30, 1e-3])
        assert model["advantage"]["init_args"]["alpha"] == 0.5


def test_the_command_line_wins_over_files_before_it_and_loses_to_files_after_it():
    late = [*SMALL, "--data.seed=3"]
    first = fit("--data.seed=7", *tiny("grpo"), *SMALL, run_dir="a")
    last = fit(*tiny("grpo"), *late, run_dir="b")
    for run_dir, seed in ((first, 7), (last, 3)):
        saved = yaml.safe_load((run_dir / "config.yaml").read_text())
        assert saved["data"]["seed"] == seed
    third = fit(*tiny("grpo"), *late, f"--config={first / 'config.yaml'}", "--run_dir=c")
    saved = yaml.safe_load((third / "config.yaml").read_text())
    assert saved["data"]["seed"] == 7


def test_evaluation_samples_as_training_does_where_nothing_else_is_said():
    flags = ["--data.val_sampling.temperature=0", "--data.val_samples=1", "--run_dir=run"]
    cli = run(["fit", *tiny("grpo"), *SMALL, "--data.sampling.top_p=1.0", *flags])
    assert cli.datamodule.val_sampling == Sampling(temperature=0, max_new_tokens=32)
    assert cli.datamodule.sampling == Sampling(temperature=1.0, max_new_tokens=32)


def test_the_critic_is_optimized_as_the_actor_where_nothing_else_is_said():
    actor = ["--model.actor_optimizer=torch.optim.SGD", "--model.actor_optimizer.lr=0.25"]
    cli = run(["fit", *tiny("ppo"), *SMALL, *actor, "--run_dir=run"])
    critic, actor = cli.trainer.optimizers
    assert [type(o).__name__ for o in (critic, actor)] == ["SGD", "SGD"]
    assert critic.param_groups[0]["lr"] == actor.param_groups[0]["lr"] == 0.25
    assert critic.param_groups[0]["params"][0] is not actor.param_groups[0]["params"][0]


def test_numbers_without_a_dot_in_the_mantissa_are_numbers(tmp_path):
    overlay = tmp_path / "lr.yaml"
    overlay.write_text(
        "model: {actor_optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 1e-6}}}\n"
    )
    run_dir = fit(*arguments("grpo"), f"--config={overlay}", "--model.policy.clip_low=5e-1")
    saved = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert saved["model"]["actor_optimizer"]["init_args"]["lr"] == 1e-6
    assert saved["model"]["policy"]["init_args"]["clip_low"] == 0.5


def test_the_saved_configuration_repeats_the_run(tmp_path):
    first = fit(*arguments("vapo"))
    main(["fit", f"--config={first / 'config.yaml'}", "--run_dir=again"])
    unlike = {"time/rollout", "tokens_per_second"}
    for a, b in zip(metrics(first), metrics(tmp_path / "again"), strict=True):
        assert {k: v for k, v in a.items() if k not in unlike} == {
            k: v for k, v in b.items() if k not in unlike
        }


def test_a_callback_is_dropped_or_swept_by_one_flag():
    run_dir = fit(*arguments("vapo"), "--callbacks.value_warmup=null", "--callbacks.entropy=null")
    rows = train_rows(run_dir)
    assert [row["joint_phase"] for row in rows] == [1.0, 1.0]
    assert "entropy" not in rows[0]


@pytest.mark.filterwarnings("ignore:none of the 2 rollouts trained")
def test_a_callback_is_added_by_one_flag_and_the_others_stay():
    # seven tokens cut most responses
    args = ["--callbacks.overlong=OverlongFilter", "--data.sampling.max_new_tokens=7"]
    rows = train_rows(fit(*arguments("vapo"), *args))
    assert all(row["overlong/masked"] == row["truncated"] > 0 for row in rows)
    assert "entropy" in rows[0]
    assert rows[0]["joint_phase"] == 0.0


def test_the_cold_start_runs_through_the_same_entry_point(tmp_path):
    small = ["--trainer.max_epochs=1", "--data.batches_per_epoch=2", "--data.batch_size=4"]
    main(["cold_start", config("cold_start.yaml"), *small, "--run_dir=cold"])
    policy = tmp_path / "cold" / "policy"
    assert {p.name for p in policy.iterdir()} >= {"model.safetensors", "tokenizer.json"}
    backbone = f"--model.backbone={{class_path: Pretrained, init_args: {{path: {policy}}}}}"
    assert train_rows(fit(*arguments("grpo"), backbone))


def warned(*args):
    """What is said of arguments that do not apply, while a run is configured."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(SystemExit, match="0"):
            main(["fit", *tiny("grpo"), *SMALL, *args, "--dry_run=true"])
    return [str(w.message) for w in caught if "does not apply" in str(w.message)]


def test_arguments_that_went_with_their_class_are_warned_of():
    sgd = "--model.actor_optimizer=torch.optim.SGD"
    rate, nesterov = "--model.actor_optimizer.lr=1e-4", "--model.actor_optimizer.betas=[0.9, 0.95]"
    (said,) = warned(rate, sgd)
    assert said == (
        "model.actor_optimizer.lr=1e-4: was given before model.actor_optimizer=torch.optim.SGD and "
        "does not apply, it is 0.001; give it after the class, or leave it out"
    )
    (rate_line, betas_line) = warned(rate, nesterov, sgd)
    assert betas_line == (
        "model.actor_optimizer.betas=[0.9, 0.95]: was given before model.actor_optimizer="
        "torch.optim.SGD and does not apply; give it after the class, or leave it out"
    )
    assert rate_line == said


def test_arguments_that_apply_are_not_warned_of():
    adam = "--model.actor_optimizer=torch.optim.AdamW"
    inner = "--model.actor_optimizer.init_args.lr=1e-4"
    betas = "--model.actor_optimizer.betas=[0.9,0.950]"
    sgd = "--model.actor_optimizer=torch.optim.SGD"
    assert warned(betas, adam, "--model.actor_optimizer.amsgrad=TRUE") == []
    assert warned(sgd, inner, "--model.actor_optimizer.dampening=0", sgd) == []
