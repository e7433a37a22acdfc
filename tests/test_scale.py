"""The overlays of `configs/scale` for GPUs: parsed over every algorithm, run on a CPU in small."""

import pytest
import yaml

from lit_reason.__main__ import main
from lit_reason.cli import run
from tests.conftest import CONFIGS, SMALL, config
from tests.test_configs import ALGORITHMS

SCALES = ["single_gpu", "ddp", "fsdp2"]
ON_A_CPU = [
    "--model.backbone=Bundled",
    "--data.task=PlanCount",
    "--data.val_task=PlanCount",
    "--data.val_task.split=held_out",
    *SMALL,
    "--model.update.micro_batch_tokens=512",
    "--data.val_sampling.max_new_tokens=32",
    "--data.max_prompt_length=null",
    "--data.group_size=4",
    "--trainer.accelerator=cpu",
]


def parsed(capsys, *names):
    with pytest.raises(SystemExit) as stop:
        main(["fit", *map(config, names), "--print_config"])
    assert stop.value.code == 0
    return yaml.safe_load(capsys.readouterr().out)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("scale", SCALES)
def test_an_overlay_fits_every_algorithm(algorithm, scale, capsys):
    plain = yaml.safe_load((CONFIGS / f"{algorithm}.yaml").read_text())
    got = parsed(capsys, f"{algorithm}.yaml", f"scale/{scale}.yaml")
    update, data = got["model"]["update"], got["data"]
    rollout = data["groups_per_rollout"] * data["group_size"]
    assert rollout % update["minibatch_size"] == 0
    assert update["critic_minibatch_size"] is None
    assert data["group_size"] == plain["data"]["group_size"]
    assert got["model"]["policy"]["class_path"].endswith(plain["model"]["policy"]["class_path"])
    assert got["trainer"]["precision"] == "bf16-mixed"
    assert got["trainer"]["strategy"] == {"single_gpu": "auto"}.get(scale, scale)
    assert got["model"]["backbone"]["init_args"]["gradient_checkpointing"]


def test_the_overlay_of_one_gpu_runs_on_a_cpu_in_bfloat16():
    files = [config("vapo.yaml"), config("scale/single_gpu.yaml")]
    flags = ["--callbacks.value_warmup.rollouts=1", "--run_dir=run"]
    cli = run(["fit", *files, *ON_A_CPU, *flags])
    assert cli.trainer.precision == "bf16-mixed"
    assert cli.model.policy_version == 2
    assert cli.model.stepped == {"actor", "critic"}
