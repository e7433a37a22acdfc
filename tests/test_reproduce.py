"""The papers' own scale on eight GPUs (docs/reproduce.md): eight times a GPU's sizes are theirs."""

from pathlib import Path

import pytest

from lit_reason.report.sweep import read_sweep
from tests.test_ablations import ROOT, parser

TABLES = ["vapo_remove_one", "dapo_ladder", "vc_ppo_pretrain_steps", "vc_ppo_lambda_actor"]
OVERLAYS = ["configs/scale/qwen2.5_7b.yaml", "configs/scale/eight_gpus.yaml"]


def sizes(config):
    data, update = config.data, config.model["update"]
    minibatch, critics = update.minibatch_size, update.critic_minibatch_size
    return [data.groups_per_rollout, minibatch, critics or minibatch], data.group_size


@pytest.mark.parametrize("name", TABLES)
def test_eight_gpus_take_what_the_papers_take(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    sweep = read_sweep(Path("ablations", f"{name}.yaml"))
    for point in sweep.points():
        parsed = []
        for overlays in ([], OVERLAYS):
            command = sweep.arguments(point, 0, overlays)
            parsed.append(parser().parse_args(command[command.index("lit_reason") + 1 :]).fit)
        paper, ours = parsed
        (each, group), (whole, paper_group) = sizes(ours), sizes(paper)
        assert [8 * size for size in each] == whole
        assert group == paper_group
        assert (ours.trainer.strategy, ours.trainer.devices) == ("fsdp2", 8)
        assert ours.data.sampling == paper.data.sampling
        assert ours.model.backbone.init_args.path == "Qwen/Qwen2.5-7B"
