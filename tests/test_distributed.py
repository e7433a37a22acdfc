"""Two real processes that talk over gloo: losses, gradients, statistics and whole runs.

One pair of workers serves all tests of this file. A test sends both the name of a function here,
and each answers with what the function returned on its rank.
"""

import csv
import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback, Trainer

from lit_reason.backbones import Bundled, Pretrained
from lit_reason.cli import run
from lit_reason.functional import explained_variance, masked_whiten
from lit_reason.metrics import GroupMetrics
from lit_reason.networks import logits_head, policy_outputs
from lit_reason.rewards import Correctness
from lit_reason.sharding import gathered, parts, whole
from lit_reason.tasks import PlanCount
from scripts.export_hf import export
from tests import test_networks as architectures
from tests.conftest import ROOT, SMALL, config, demonstrations, tiny
from tests.ranks import LIMIT, Ranks
from tests.steps import (
    AGGREGATIONS,
    TERMS,
    Recorder,
    build,
    close,
    experience_of,
    shift_weights,
    step,
)
from tests.test_metrics import samples_of
from tests.test_scale import ON_A_CPU

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    sys.path.insert(0, str(ROOT))  # the workers import this module by its name
    pair = Ranks(tmp_path_factory.mktemp("ranks"))
    yield pair
    pair.stop()
    sys.path.remove(str(ROOT))


# ---- one optimizer step -------------------------------------------------------------------------


def two_ranks(module, strategy="ddp"):
    """Gives a module the trainer that a run on two devices has, and splits its networks."""
    module.trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        logger=False,
        enable_checkpointing=False,
    )
    if strategy == "fsdp2":
        names = ("data_parallel", "tensor_parallel")
        mesh = torch.distributed.init_device_mesh("cpu", (2, 1), mesh_dim_names=names)
        module.trainer.strategy._device_mesh = mesh
        for network in filter(None, (module.actor, module.critic, module.reference)):
            module.trainer.strategy.shard(network)
    return module


def prepared(terms, aggregation, checkpointing=False):
    """A module off its old policy, and the experience of 16 responses of 4 problems."""
    backbone = Bundled()
    backbone.gradient_checkpointing = checkpointing
    module = build(backbone, TERMS[terms], AGGREGATIONS[aggregation])
    experience = experience_of(module, demonstrations(backbone))
    shift_weights(module)
    return module, experience


def keep_rows(experience, case):
    """Leaves out the training tokens that a case does without."""
    rollout = experience.rollout
    for mask in (rollout.loss_mask, rollout.value_mask):
        if case == "one empty rank":
            mask[8:] = False
        if case == "both empty":
            mask[:] = False
    return experience


def term_of(network, terms):
    """The one term whose gradient is compared, or all of them."""
    return "all" if network == "critic" else terms


def parallel_steps(rank, cases):
    """The step of each case on this rank's half of the rows."""
    results = []
    for terms, aggregation, network, case, strategy in cases:
        module, experience = prepared(terms, aggregation, strategy == "fsdp2")
        half = keep_rows(experience, case)[torch.arange(8 * rank, 8 * rank + 8)]
        module = two_ranks(module, strategy)
        results.append(step(module, half, network, 4, term_of(network, terms)))
    return results


CASES = [
    *[(term, 0, "actor", "all rows") for term in TERMS],
    *[("all", a, "actor", "all rows") for a in range(1, len(AGGREGATIONS))],
    *[("all", a, "critic", "all rows") for a in range(len(AGGREGATIONS))],
    *[("all", a, "actor", "one empty rank") for a in range(len(AGGREGATIONS))],
    ("all", 0, "critic", "one empty rank"),
]
CASES = [(*case, "ddp") for case in CASES] + [
    (*case, "fsdp2") for case in CASES if case[0] == "all" and case[1] < 2
]


def name_of(case):
    return "-".join([case[0], type(AGGREGATIONS[case[1]]).__name__, *case[2:]])


@pytest.fixture(scope="module")
def steps(ranks):
    return dict(zip(CASES, zip(*ranks(parallel_steps, CASES), strict=True), strict=True))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_loss_and_gradient_of_two_ranks_are_those_of_all_rows(steps, case):
    terms, aggregation, network, rows, _ = case
    module, experience = prepared(terms, aggregation)
    term = term_of(network, terms)
    whole = step(module, keep_rows(experience, rows), network, 16, term)
    first, second = steps[case]
    close(whole, first)
    assert torch.equal(first[1], second[1])  # the ranks step alike, to the bit
    assert first[0] == second[0]


def sharded_scores(rank, name):
    """How far scores and gradients in shards are from those of the whole; two layers and a head."""
    batch, distances = architectures.rollout(architectures.PROMPTS, architectures.RESPONSES), []
    own = torch.tensor([rank])

    def score(actor, rows):
        out = policy_outputs(actor, batch[rows], 0.7, "grad", 3)
        (out.logprobs.sum() + out.entropy.sum()).backward()
        return out.logprobs.detach()[0, :4]

    plain = architectures.build(name)
    want = score(plain, own)
    plain.zero_grad()
    score(plain, torch.arange(2))
    module = SimpleNamespace(actor=architectures.build(name), critic=None, reference=None)
    got = score(two_ranks(module, "fsdp2").actor, own)
    distances.append((got - want).abs().max().item())
    with gathered(module.actor):  # the ranks call it more and less often
        for _ in range(1 + rank):
            again = policy_outputs(module.actor, batch[own], 0.7).logprobs.detach()[0, :4]
    distances.append((again - want).abs().max().item())
    pairs = zip(plain.parameters(), module.actor.parameters(), strict=True)
    distances += [(p.grad - whole(q.grad)).abs().max().item() for p, q in pairs]
    return max(distances), len(parts(module.actor)), logits_head(module.actor) is not None


@pytest.mark.parametrize("name", architectures.CONFIGS)
def test_fsdp2_scores_every_architecture_in_blocks_of_logits_as_one_process_does(ranks, name):
    for distance, gathered_parts, by_blocks in ranks(sharded_scores, name):
        assert distance < 1e-5
        assert gathered_parts == 3  # two layers and the rest
        assert by_blocks


def empty_step(rank):
    module, experience = prepared("all", 0)
    experience = keep_rows(experience, "both empty")
    learner = two_ranks(module).learners()["actor"]
    recorder = Recorder(learner.parameters)
    rows = [torch.arange(8 * rank, 8 * rank + 8)]
    return learner.update(experience, rows, recorder, torch.Tensor.backward), recorder.gradients


def test_a_mini_batch_without_a_token_on_any_rank_is_skipped_on_both(ranks):
    """B07 over ranks."""
    for stats, gradients in ranks(empty_step):
        assert stats == {"update/skipped_actor": 1}
        assert gradients is None


def nonfinite_step(rank):
    module, experience = prepared("policy", 0)
    if rank == 1:
        experience.advantages[0, 0] = float("nan")
    stats, gradients = step(two_ranks(module), experience, "actor", 16)
    return stats["update/nonfinite_actor"].item(), gradients


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_both(ranks):
    assert ranks(nonfinite_step) == [(1.0, None), (1.0, None)]


# ---- statistics ---------------------------------------------------------------------------------

SHARDS = {
    "both": ([1.0, 3.0, 100.0], [5.0, 7.0, 7.0], [2, 1]),
    "one empty": ([1.0, 3.0, 5.0], [9.0, 9.0, 9.0], [3, 0]),
}


def statistics(rank, case):
    reduce = two_ranks(build(Bundled())).reduce
    *values, valid = SHARDS[case]
    x = torch.tensor(values[rank])
    mask = torch.arange(3) < valid[rank]
    kept = x.clone()
    result = masked_whiten(x, mask, reduce=reduce), explained_variance(0.5 * x, x, mask, reduce)
    assert reduce(x).equal(torch.tensor(values[0]) + torch.tensor(values[1]))
    assert x.equal(kept)  # Lightning's own reduction writes into its argument
    return result


@pytest.mark.parametrize("case", SHARDS)
def test_i02_statistics_over_ranks_are_those_of_one_process(ranks, case):
    """I02: [1, 3] and [5], then all three on one rank and none on the other."""
    answers = ranks(statistics, case)
    got = torch.cat([a[0] for a in answers])
    valid = SHARDS[case][2]
    mask = torch.cat([torch.arange(3) < n for n in valid])
    want = torch.tensor([-1.224745, 0.0, 1.224745])
    torch.testing.assert_close(got[mask], want, atol=1e-6, rtol=0)
    assert (got[~mask] == 0).all()
    assert [a[1].item() for a in answers] == pytest.approx([0.75, 0.75])


def evaluation(rank, shares):
    """The metric over the problems of this rank, a row (index, source, statuses, classes) each."""
    metric = GroupMetrics(2, sources=("a", "b"))
    metric.update(samples_of(shares[rank]))
    return metric.compute()


PROBLEMS = [
    (4, 0, ["correct", "wrong"], [0, 1]),
    (7, 1, ["wrong", "wrong"], [1, 1]),
    (2, 0, ["no_answer", "correct"], [-1, 0]),
    (9, 1, ["timeout", "correct"], [1, 0]),
    (0, 0, ["correct", "correct"], [0, 0]),
]


@pytest.mark.parametrize("first", [[0, 2, 4], [3], [0, 1, 2, 3, 4], []], ids=str)
def test_i06_scores_and_intervals_of_two_ranks_are_those_of_all_problems(ranks, first):
    """I06: whichever rank has which problems, and if one has none."""
    shares = [[p for i, p in enumerate(PROBLEMS) if (i in first) == own] for own in (True, False)]
    whole = GroupMetrics(2, sources=("a", "b"))
    whole.update(samples_of(PROBLEMS))
    expected = whole.compute()
    assert expected["accuracy"] == 0.5
    assert expected["b/accuracy"] == 0.25
    assert expected["accuracy_low"] < 0.5 < expected["accuracy_high"]
    for answer in ranks(evaluation, shares):
        assert answer == expected


# ---- whole runs ---------------------------------------------------------------------------------


class Spy(Callback):
    """Keeps what this rank trained on."""

    def __init__(self):
        self.rollouts = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.rollouts.append(batch)


class Ranked(PlanCount):
    """Ranks from `mixed_from` on find every second response right, those before it none."""

    def __init__(self, n_max: int = 4, limit: int | None = None, mixed_from: int = 1):
        super().__init__(n_max=n_max, limit=limit)
        self.mixed_from, self.calls = mixed_from, 0
        if limit == 1:
            self.problems *= 2  # the same one for each rank

    def verify(self, prompt, response):
        self.calls += 1
        return torch.distributed.get_rank() >= self.mixed_from and self.calls % 2 == 0


class FirstRight(PlanCount):
    """Only the first problem is ever answered right."""

    def __init__(self, n_max: int = 4, split: str = "held_out", limit: int | None = None):
        super().__init__(n_max=n_max, split=split, limit=limit)

    def verify(self, prompt, response):
        return prompt.index == self[0].index


RUN = [
    *SMALL,
    "--trainer.devices=2",
    "--callbacks.samples=null",
    "--data.val_task.limit=5",
]


def fitted(rank, strategy, name, run_dir, *flags):
    """`fit` on this rank: parameters, optimizer steps, rollouts and the last evaluation."""
    spy, chosen = "--callbacks.spy=tests.test_distributed.Spy", f"--trainer.strategy={strategy}"
    cli = run(["fit", *tiny(name), *RUN, chosen, spy, *flags, f"--run_dir={run_dir}"])
    module, trainer = cli.model, cli.trainer
    assert trainer.world_size == 2
    rollouts = next(c for c in trainer.callbacks if isinstance(c, Spy)).rollouts
    return {
        "weights": {k: v.clone() for k, v in whole(module.state_dict()).items()},
        "steps": [
            {int(s["step"]) for s in o.state_dict()["state"].values()} for o in trainer.optimizers
        ],
        "rollouts": [{f.name: getattr(r, f.name) for f in fields(r)} for r in rollouts],
        "evaluation": module.last_evaluation,
    }


def metrics_of(run_dir):
    """The rows of `metrics.csv` that belong to rollouts, as numbers."""
    with (run_dir / "metrics.csv").open(newline="") as file:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    return [row for row in rows if "reward" in row]


def same_weights(first, second):
    assert first["weights"].keys() == second["weights"].keys()
    assert all(torch.equal(v, second["weights"][k]) for k, v in first["weights"].items())
    assert first["steps"] == second["steps"]


def starting_actor():
    return {f"actor.{k}": v for k, v in Bundled().actor().state_dict().items()}


def moved(weights):
    start = starting_actor()
    return any(not torch.equal(weights[k], start[k]) for k in start)


def over_ranks(answers, rollout, column):
    columns = [a["rollouts"][rollout][column].float() for a in answers]
    if columns[0].ndim == 2:  # the ranks pad to their own longest response
        columns = [c.sum(1) for c in columns]
    return torch.cat(columns)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_d04_ranks_that_disagree_on_survivors_stay_together(ranks, tmp_path, strategy):
    """D04: rank 0 draws only uniform groups, rank 1 only mixed ones."""
    flags = ["--data.task=tests.test_distributed.Ranked", "--data.max_rounds=2"]
    # so that ranks have different numbers of micro-batches
    flags += ["--model.update.micro_batch_tokens=120"]
    first, second = answers = ranks(fitted, strategy, "dapo", str(tmp_path / "run"), *flags)
    same_weights(first, second)
    assert first["steps"] == [{4}]  # 2 rollouts of 2 mini-batches
    assert moved(first["weights"])
    rows = metrics_of(tmp_path / "run")
    assert len(rows) == 2
    for i, row in enumerate(rows):
        assert row["groups/rounds"] == 2
        assert row["groups/kept"] == row["groups/filled"] == 2  # 0 and 4 of 4, on the average
        assert row["update/skipped_actor"] == 0
        trained = over_ranks(answers, i, "loss_mask")
        assert (trained[:16] == 0).all()
        assert (trained[16:] > 0).all()
        assert row["policy/tokens"] == trained.sum() / 2  # of each of the 2 mini-batches


def test_a_critic_that_sees_all_takes_as_many_steps_on_every_rank(ranks, tmp_path):
    """Rank 0 fills up with groups of no use to the policy, rank 1 has groups to spare."""
    flags = ["--data.task=tests.test_distributed.Ranked", "--data.max_rounds=2"]
    flags += ["--data.group_filter=DropUniform", "--data.critic_sees_all=true"]
    flags += ["--callbacks.value_warmup=null", "--data.rollouts_per_epoch=1"]
    first, second = answers = ranks(fitted, "ddp", "vapo", str(tmp_path / "run"), *flags)
    same_weights(first, second)
    assert first["steps"] == [{4}, {2}]  # the critic's rows are twice the actor's
    for answer in answers:
        assert answer["rollouts"][0]["critic_only"].sum() == 16
    row = metrics_of(tmp_path / "run")[0]
    total = sum(a["rollouts"][0]["response_mask"].sum() for a in answers)
    assert row["value/tokens"] == total / 4


def test_d01_a_rollout_without_signal_on_any_rank_is_skipped_on_both(ranks, tmp_path):
    flags = ["--data.task=tests.test_distributed.Ranked", "--data.task.mixed_from=2"]
    flags += ["--data.max_rounds=1", "--data.rollouts_per_epoch=1"]
    first, second = ranks(fitted, "ddp", "dapo", str(tmp_path / "run"), *flags)
    same_weights(first, second)
    assert first["steps"] == [set()]
    assert not moved(first["weights"])
    assert metrics_of(tmp_path / "run")[0]["update/skipped_actor"] == 1


class SpoiltOnOne(Correctness):
    """Gives nan to the first response of each group, on rank 1."""

    def __call__(self, prompt, responses, verdicts):
        values = super().__call__(prompt, responses, verdicts)
        return [math.nan, *values[1:]] if torch.distributed.get_rank() == 1 else values


def test_rewards_that_are_not_finite_on_one_rank_are_counted_on_both(ranks, tmp_path):
    flags = ["--data.rewards.correctness=tests.test_distributed.SpoiltOnOne"]
    first, second = ranks(fitted, "ddp", "grpo", str(tmp_path / "run"), *flags)
    same_weights(first, second)
    assert moved(first["weights"])
    rows = metrics_of(tmp_path / "run")
    assert [row["reward/nonfinite"] for row in rows] == [0.125, 0.125]  # of 0 and a quarter
    saved = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["nonfinite"] == {"actor": 0, "rewards": 2}


def test_vapo_with_warm_up_reduces_what_it_logs_and_counts_each_problem_once(ranks, tmp_path):
    """I06: 5 problems on 2 ranks, of which the first is right; the warm-up is the critic's."""
    flags = [
        "--callbacks.value_warmup.rollouts=1",
        "--model.advantage.whiten=true",
        "--data.val_task=tests.test_distributed.FirstRight",
        "--data.val_task.limit=5",
        "--callbacks.critic=CriticMonitor",
    ]
    first, second = answers = ranks(fitted, "ddp", "vapo", str(tmp_path / "run"), *flags)
    same_weights(first, second)
    assert first["steps"] == [{2}, {2}]  # the critic's moments start again after the warm-up
    assert moved(first["weights"])
    for answer in answers:
        assert answer["evaluation"]["val/accuracy"] == torch.tensor(0.2).item()
        assert answer["evaluation"]["val/pass_at_2"] == torch.tensor(0.2).item()
    rows = metrics_of(tmp_path / "run")
    assert [row["joint_phase"] for row in rows] == [0, 1]
    assert "loss/policy" not in rows[0]
    lines = (tmp_path / "run" / "critic.jsonl").read_text().splitlines()
    curves = [json.loads(line) for line in lines]  # of one rank, over both
    assert [row["phase"] for row in curves] == ["value_warmup", "joint"]
    for i, row in enumerate(rows):
        lengths = over_ranks(answers, i, "response_mask")
        assert row["response_length"] == pytest.approx(lengths.mean().item())
        assert row["response_length_max"] == lengths.max()
        assert row["response_length_min"] == lengths.min()
        assert sum(curves[i]["calibration"]["count"]) == lengths.sum()
        assert curves[i]["lambda"]["edges"][-1] == lengths.max()
        assert row["reward"] == pytest.approx(over_ranks(answers, i, "rewards").mean().item())
        assert row["accuracy"] == pytest.approx(over_ranks(answers, i, "correct").mean().item())
        assert row["value/tokens"] == lengths.sum() / 2


def test_i01_ranks_sample_differently_and_reproducibly(ranks, tmp_path):
    """I01: one and the same problem on both ranks."""
    flags = ["--data.task=tests.test_distributed.Ranked", "--data.task.limit=1"]
    flags += ["--data.sampling.temperature=1", "--data.rollouts_per_epoch=1"]
    flags += ["--trainer.limit_val_batches=0"]
    folders = [str(tmp_path / f"run{i}") for i in range(2)]
    once, again = (ranks(fitted, "ddp", "grpo", folder, *flags) for folder in folders)
    same_weights(*once)
    same_weights(once[0], again[0])
    first, second = (a["rollouts"][0] for a in once)
    assert (first["prompt_ids"] == second["prompt_ids"]).all()
    assert first["response_ids"].tolist() != second["response_ids"].tolist()
    for a, b in zip(once, again, strict=True):
        assert torch.equal(a["rollouts"][0]["response_ids"], b["rollouts"][0]["response_ids"])


def test_fsdp2_repeats_resumes_and_exports_and_trains_as_ddp_does(ranks, tmp_path):
    """I01 for shards too: the same problem on both ranks, other responses, the same again."""
    flags = ["--data.task=tests.test_distributed.Ranked", "--data.task.limit=1"]
    flags += ["--data.sampling.temperature=1.5", "--data.task.mixed_from=0"]
    flags += ["--data.rollouts_per_epoch=1", "--trainer.limit_val_batches=0"]
    flags += ["--callbacks.value_warmup.rollouts=1", "--callbacks.value_warmup.save=true"]
    flags += ["--callbacks.recorder=RolloutRecorder", "--callbacks.export=ExportPolicy"]
    go_on = ["--trainer.max_epochs=2", "--ckpt_path=last"]
    at_once = ranks(fitted, "fsdp2", "vapo", str(tmp_path / "once"), *flags, go_on[0])
    ranks(fitted, "fsdp2", "vapo", str(tmp_path / "halves"), *flags)
    shutil.copytree(tmp_path / "halves", tmp_path / "whole")
    halves = ranks(fitted, "fsdp2", "vapo", str(tmp_path / "halves"), *flags, *go_on)
    # the first rollout on shards, the second on whole weights
    other = ranks(fitted, "ddp", "vapo", str(tmp_path / "whole"), *flags, *go_on)
    same_weights(*at_once)
    same_weights(at_once[0], halves[0])
    assert moved(at_once[0]["weights"])
    assert other[0]["steps"] == at_once[0]["steps"] == [{2}, {2}]
    for name, weight in at_once[0]["weights"].items():
        # a step of Adam is 3e-4 even where the gradient is rounding error
        torch.testing.assert_close(other[0]["weights"][name], weight, atol=1e-5, rtol=0)
    drawn = [[r["response_ids"].tolist() for r in answer["rollouts"]] for answer in at_once]
    assert drawn[0][0] != drawn[1][0]
    for i in range(2):
        for continued in (halves, other):
            assert continued[i]["rollouts"][0]["response_ids"].tolist() == drawn[i][1]
    for name in ("critic/critic.safetensors", "rollouts_1.jsonl"):
        assert (tmp_path / "once" / name).stat().st_size > 1000
    files = [tmp_path / name / "checkpoints" / "last.ckpt" for name in ("whole", "once")]
    saved = [torch.load(file, weights_only=True) for file in files]
    shapes = [{k: v.shape for k, v in state["state_dict"].items()} for state in saved]
    assert shapes[0] == shapes[1]
    moments = [state["optimizer_states"][1]["state"] for state in saved]
    torch.testing.assert_close(*moments, atol=1e-6, rtol=0)
    export(files[1], tmp_path / "policy", tmp_path / "once" / "config.yaml")
    for folder in (tmp_path / "policy", tmp_path / "once" / "policy"):
        exported = Pretrained(str(folder)).actor().state_dict()
        for name, weight in exported.items():
            assert torch.equal(weight, at_once[0]["weights"][f"actor.{name}"])


LAUNCHED = {
    "ddp": ["-m", "lit_reason"],  # which starts the second rank itself
    "fsdp2": [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        "-m",
        "lit_reason",
    ],
}


@pytest.mark.parametrize("scale", LAUNCHED)
def test_the_overlays_run_from_the_command_line_and_under_torchrun(tmp_path, scale):
    files = [config("grpo.yaml"), config(f"scale/{scale}.yaml")]
    arguments = [*files, *ON_A_CPU, "--trainer.devices=2", "--data.rollouts_per_epoch=1"]
    done = subprocess.run(
        [sys.executable, *LAUNCHED[scale], "fit", *arguments, "--run_dir=run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = metrics_of(tmp_path / "run")
    assert row["rollout"] == 1
    assert row["update/skipped_actor"] < 1
    assert "sync_dist" not in done.stderr
