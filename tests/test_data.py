"""Online rollout: which prompts, which groups, whose weights, whose turn."""

import copy
import warnings

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback, Trainer

from lit_reason.advantages import GAE, GroupRelative
from lit_reason.backbones import Bundled
from lit_reason.batch import Prompt, Response
from lit_reason.data import RolloutDataModule
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.filters import DropUniform
from lit_reason.learner import Update
from lit_reason.loaders import RolloutLoader
from lit_reason.metrics import GroupMetrics
from lit_reason.module import ReasonModule
from lit_reason.objectives import ClippedSurrogate, KLToReference, PositiveExampleLM, ValueLoss
from lit_reason.rewards import Correctness, SoftOverlong
from lit_reason.rollout import HFEngine, RolloutEngine, Sampling
from lit_reason.scores import Samples
from lit_reason.tasks import PlanCount, Task


class Numbered(Task):
    """Problem i asks `i=`; a response is right if it ends in 1."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return Prompt(index, f"{index}=", f"gold {index}")

    def verify(self, prompt, text):
        return text.endswith("1")


class Scripted(RolloutEngine):
    """Answers problem i with the verdicts `kinds[i]`; every response is unlike any other."""

    def __init__(self, kinds):
        self.kinds, self.calls, self.drawn = kinds, [], 0

    def generate(self, prompts, samples, sampling, seed):
        tokenizer = self.module.backbone.tokenizer
        indices = [int(tokenizer.decode(ids).rstrip("=")) for ids in prompts]
        self.calls.append((indices, seed))
        return [[self.answer(tokenizer, i, n) for n in range(samples)] for i in indices]

    def answer(self, tokenizer, index, n):
        self.drawn += 1
        right = self.kinds[index][n % len(self.kinds[index])]
        text = f"{index}+{self.drawn}{'(' * (self.drawn % 5)}={int(right)}"
        return Response((*tokenizer(text)["input_ids"], tokenizer.eos_token_id), text, False)


MIXED, RIGHT, WRONG = (True, False), (True,), (False,)


@pytest.fixture(scope="module")
def policy():
    return Bundled()


def module_of(policy, critic=False, terms=None, **kwargs):
    estimator, value = (GAE(), ValueLoss()) if critic else (GroupRelative(), None)
    kwargs.setdefault("update", Update(1, 4, 4))
    kwargs.setdefault("actor_optimizer", lambda p: torch.optim.AdamW(p, lr=1e-2))
    return ReasonModule(policy, estimator, ClippedSurrogate(), value, terms, **kwargs)


def data_of(kinds, **kwargs):
    settings = {
        "task": Numbered(len(kinds)),
        "rewards": {"correctness": Correctness()},
        "engine": Scripted(kinds),
        "group_filter": DropUniform(),
        "groups_per_rollout": 2,
        "group_size": 4,
        "max_rounds": 3,
        "sampling": Sampling(max_new_tokens=40),
        "val_samples": 2,
        "seed": 0,
    }
    return RolloutDataModule(**{**settings, **kwargs})


def trainer_of(**kwargs):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(
        accelerator="cpu",
        num_sanity_val_steps=0,
        enable_model_summary=False,
        **{**quiet, "max_epochs": 1, "limit_val_batches": 0, **kwargs},
    )


@pytest.fixture(scope="module")
def sampler(policy):
    """A module whose weights no test changes."""
    return module_of(policy)


def attach(data, module):
    """Sets a data module up beside a module, outside of `fit`."""
    trainer = trainer_of()
    trainer.strategy.connect(module)
    module.trainer = data.trainer = trainer
    module.configure_model()
    data.setup("fit")
    return data


class Log(Callback):
    """Keeps every batch and what was logged for it."""

    def __init__(self):
        self.batches, self.rows = [], []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.batches.append(batch)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.rows.append({k: float(v) for k, v in trainer.callback_metrics.items()})


def run(data, module, **kwargs):
    log = Log()
    trainer_of(callbacks=[log], **kwargs).fit(module, datamodule=data)
    return log


def weights(network):
    return copy.deepcopy(network.state_dict())


def same(a, b):
    return all(torch.equal(a[key], b[key]) for key in a)


# --- dynamic sampling -----------------------------------------------------------------------------


@pytest.mark.parametrize("critic", [False, True])
@pytest.mark.parametrize("kind", [RIGHT, WRONG], ids=["all right", "all wrong"])
def test_when_nothing_survives_the_actor_is_left_alone_and_the_run_goes_on(policy, kind, critic):
    """D01: exactly max_rounds rounds, a full batch, a counted skip, and the next rollout.

    §11 wants an error after the last round; D01 calls that the fault: all work would be lost.
    """
    data = data_of([kind] * 6, rollouts_per_epoch=3)
    terms = {"kl": KLToReference(0.5), "positive_lm": PositiveExampleLM(0.5)}
    module = module_of(policy, critic, terms)
    module.configure_model()
    before = weights(module.actor)
    log = run(data, module)
    assert len(data.engine.calls) == 3 * 3
    assert same(before, weights(module.actor))
    assert module.policy_version == 3
    for batch, row in zip(log.batches, log.rows, strict=True):
        assert len(batch) == 2 * 4
        assert not batch.loss_mask.any()
        assert not batch.value_mask.any()
        assert row["update/skipped_actor"] == 1
        assert (row["groups/rounds"], row["groups/filled"], row["groups/kept"]) == (3, 2, 0)
        assert row["groups/dropped"] == 6
        assert row["groups/dropped_all_right"] == (6 if kind is RIGHT else 0)
        assert row["groups/dropped_all_wrong"] == (6 if kind is WRONG else 0)
        if critic:
            assert row["update/skipped_critic"] == 1


def test_a_skipped_update_does_not_move_the_schedule(policy):
    """D09: the learning rate follows updates."""
    data = data_of([WRONG] * 6, rollouts_per_epoch=2)
    module = module_of(
        policy, actor_scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5)
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*lr_scheduler.step.*before.*")
        run(data, module)
    assert module.lr_schedulers().get_last_lr() == [1e-2]
    data = data_of([MIXED] * 6, rollouts_per_epoch=2)
    module = module_of(
        policy, actor_scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5)
    )
    run(data, module)
    assert module.lr_schedulers().get_last_lr() == [0.25e-2]


@pytest.mark.parametrize("critic", [False, True])
def test_what_only_fills_the_batch_changes_no_gradient_of_the_actor(policy, critic):
    """A batch with one kept and one filled group updates the actor as the kept group alone."""
    results = []
    for groups in (1, 2):
        data = data_of(
            [MIXED, WRONG],
            groups_per_rollout=groups,
            groups_per_round=2,
            max_rounds=1,
            rollouts_per_epoch=1,
        )
        module = module_of(
            policy,
            critic,
            update=Update(1, 4 * groups, 4),
            actor_optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        )
        log = run(data, module)
        assert log.rows[0]["groups/filled"] == groups - 1
        results.append(weights(module.actor))
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=1e-5)
    assert not same(results[0], weights(policy.actor()))


@given(
    kinds=st.lists(st.sampled_from([MIXED, RIGHT, WRONG]), min_size=1, max_size=9),
    groups=st.integers(1, 4),
    per_round=st.integers(1, 5),
    rounds=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_refilling_keeps_the_first_mixed_groups_whole_and_loses_no_row(
    policy, sampler, kinds, groups, per_round, rounds
):
    """D02, D03, D07: exactly N groups where there are enough, in order, every row its own."""
    assume(per_round * rounds >= groups)
    data = data_of(kinds, groups_per_rollout=groups, groups_per_round=per_round, max_rounds=rounds)
    attach(data, sampler)
    tokenizer = policy.tokenizer
    for _ in range(2):
        data.engine.calls.clear()
        batch = data.rollout()
        drawn = [i for indices, _ in data.engine.calls for i in indices]
        mixed = [i for i in drawn if kinds[i] is MIXED]
        uniform = [i for i in drawn if kinds[i] is not MIXED]
        kept = mixed[:groups]
        expected = [*kept, *uniform[: groups - len(kept)]]
        assert batch.prompt_index.view(-1, 4)[:, 0].tolist() == expected
        # it stopped as soon as it could, and not before
        assert len(data.engine.calls) == rounds or len(mixed) >= groups
        before = [i for indices, _ in data.engine.calls[:-1] for i in indices]
        assert sum(kinds[i] is MIXED for i in before) < groups
        stats = batch.stats
        total = stats["groups/kept"] + stats["groups/dropped"] + stats["groups/surplus"]
        assert total == stats["groups/rounds"] * per_round == len(drawn)

        texts = [
            tokenizer.decode(ids[mask].tolist(), skip_special_tokens=True)
            for ids, mask in zip(batch.response_ids, batch.response_mask, strict=True)
        ]
        assert len(set(texts)) == len(texts)
        for row, text in enumerate(texts):
            index = int(batch.prompt_index[row])
            right = text.endswith("1")
            assert text.startswith(f"{index}+")
            prompt = batch.prompt_ids[row][batch.prompt_mask[row]]
            assert tokenizer.decode(prompt.tolist()) == f"{index}="
            assert bool(batch.correct[row]) == right
            assert float(batch.rewards[row]) == (1.0 if right else -1.0)
            assert int(batch.lengths[row]) == len(text) + 1
            assert int(batch.group_ids[row]) == row // 4
            trains = row // 4 < len(kept)
            assert torch.equal(batch.loss_mask[row], batch.response_mask[row] & trains)
            assert torch.equal(batch.value_mask[row], batch.loss_mask[row])


def test_prompts_that_run_out_while_refilling_begin_their_next_pass(sampler):
    """D02: five prompts, three of them mixed; the accepted groups are all used."""
    kinds = [MIXED, MIXED, MIXED, RIGHT, WRONG]
    data = data_of(kinds, groups_per_rollout=4, max_rounds=10)
    attach(data, sampler)
    batch = data.rollout()
    drawn = [i for indices, _ in data.engine.calls for i in indices]
    assert sorted(drawn[:5]) == [0, 1, 2, 3, 4]
    assert len(drawn) == 8
    used = batch.prompt_index.view(-1, 4)[:, 0].tolist()
    assert set(used[:3]) == {0, 1, 2}
    assert batch.stats["groups/filled"] == 0


def test_without_a_filter_every_group_trains_in_one_round(sampler):
    """D03."""
    unfiltered = {"group_filter": None, "max_rounds": None, "groups_per_rollout": 4}
    data = data_of([MIXED, WRONG, WRONG, WRONG], **unfiltered)
    attach(data, sampler)
    batch = data.rollout()
    assert len(data.engine.calls) == 1
    assert len(batch) == 16
    assert torch.equal(batch.loss_mask, batch.response_mask)
    assert "groups/rounds" not in batch.stats


@pytest.mark.parametrize("critic", [False, True])
def test_d03_one_mixed_group_of_four_is_refilled_or_trains_by_its_own_tokens(policy, critic):
    kinds = [MIXED, WRONG, RIGHT, WRONG]
    step = {"critic": critic, "actor_optimizer": lambda p: torch.optim.SGD(p, lr=0.1)}
    once = {"groups_per_round": 4, "max_rounds": 1, "rollouts_per_epoch": 1}
    ends = []
    for groups in (4, 1):
        module = module_of(policy, update=Update(1, 4 * groups, 4), **step)
        log = run(data_of(kinds, groups_per_rollout=groups, **once), module)
        (batch,) = log.batches
        trains = batch.prompt_index[batch.loss_mask.any(1)]
        assert trains.tolist() == [0] * 4
        assert (log.rows[0]["groups/kept"], log.rows[0]["groups/dropped"]) == (1, 3)
        ends.append(weights(module.actor))
    torch.testing.assert_close(ends[0], ends[1], atol=1e-6, rtol=1e-5)

    module = module_of(policy, update=Update(1, 16, 4), **step)
    refilled = {**once, "max_rounds": 4}
    log = run(data_of(kinds, groups_per_rollout=4, **refilled), module)
    (batch,) = log.batches
    assert batch.loss_mask.any(1).all()
    assert batch.prompt_index.tolist() == [0] * 16
    assert (log.rows[0]["groups/kept"], log.rows[0]["groups/dropped"]) == (4, 12)
    assert (log.rows[0]["groups/rounds"], log.rows[0]["groups/filled"]) == (4, 0)


class ByTurn(Scripted):
    """Answers the n-th prompt that is drawn with `kinds[n]`, and begins again after the last."""

    def generate(self, prompts, samples, sampling, seed):
        turns = [self.drawn // samples + i for i in range(len(prompts))]
        decode = self.module.backbone.tokenizer.decode
        problems = [int(decode(ids).rstrip("=")) for ids in prompts]
        self.calls.append((problems, seed))
        script, self.kinds = self.kinds, {}
        for problem, turn in zip(problems, turns, strict=True):
            self.kinds[problem] = script[turn % len(script)]
        tokenizer = self.module.backbone.tokenizer
        groups = [[self.answer(tokenizer, i, n) for n in range(samples)] for i in problems]
        self.kinds = script
        return groups


def test_d07_of_three_groups_of_two_the_first_and_third_keep_their_rows(sampler):
    """Rounds of three groups, two refills, and the sixth kept group cut off."""
    kinds = [MIXED, WRONG, MIXED]
    sizes = {"group_size": 2, "groups_per_rollout": 5, "groups_per_round": 3}
    data = data_of([MIXED] * 9, engine=ByTurn(kinds), **sizes)
    batch = attach(data, sampler).rollout()
    drawn = [problem for problems, _ in data.engine.calls for problem in problems]
    assert (len(data.engine.calls), sorted(drawn)) == (3, list(range(9)))
    # the first round alone keeps the rows 0, 1, 4, 5 of its six
    rows = [0, 1, 4, 5, 6, 7, 10, 11, 12, 13]
    decode = sampler.backbone.tokenizer.decode
    for place, row in enumerate(rows):
        problem, right = drawn[row // 2], row % 2 == 0
        text = f"{problem}+{row + 1}{'(' * ((row + 1) % 5)}={int(right)}"
        assert decode(batch.response_ids[place][batch.response_mask[place]][:-1]) == text
        assert decode(batch.prompt_ids[place][batch.prompt_mask[place]]) == f"{problem}="
        assert int(batch.prompt_index[place]) == problem
        assert int(batch.lengths[place]) == len(text) + 1
        assert (bool(batch.correct[place]), float(batch.rewards[place])) == (right, 2 * right - 1)
        assert int(batch.group_ids[place]) == place // 2
    assert len(batch) == len(rows)


class OfLengths(Scripted):
    """Four wrong answers of 4, 7, 10 and 14 tokens to each problem."""

    def answer(self, tokenizer, index, n):
        text = f"{index}" + "+" * ((4, 7, 10, 14)[n] - 3) + "0"
        return Response((*tokenizer(text)["input_ids"], tokenizer.eos_token_id), text, False)


def test_d06_a_group_of_four_wrong_answers_is_dropped_whatever_their_lengths(sampler):
    length = SoftOverlong(10, weight=1.0)
    data = data_of(
        [WRONG] * 4,
        engine=OfLengths([WRONG] * 4),
        rewards={"correctness": Correctness(), "length": length},
        sampling=Sampling(max_new_tokens=14),
    )
    batch = attach(data, sampler).rollout()
    assert batch.rewards[:4].tolist() == pytest.approx([-1.0, -1.3, -1.6, -2.0])
    assert batch.stats["groups/kept"] == 0
    assert batch.stats["groups/dropped_all_wrong"] == 6


@pytest.mark.parametrize(("kind", "dropped"), [(WRONG, "all_wrong"), (RIGHT, "all_right")])
def test_the_filter_reads_the_verdict_and_not_the_shaped_reward(sampler, kind, dropped):
    """D06: length penalties make a group that is all wrong, or all right, look mixed."""
    data = data_of(
        [kind] * 4,
        rewards={"correctness": Correctness(), "length": SoftOverlong(0.9, weight=1.0)},
        sampling=Sampling(max_new_tokens=12),
    )
    attach(data, sampler)
    batch = data.rollout()
    assert len(set(batch.rewards.view(-1, 4)[0].tolist())) > 1
    assert batch.stats["groups/kept"] == 0
    assert batch.stats[f"groups/dropped_{dropped}"] == 6


def test_progress_counts_updates_and_not_rounds_of_generation(policy):
    """D09: half of the groups are dropped, the run is as long as configured."""
    kinds = [MIXED, WRONG] * 10
    data = data_of(kinds, groups_per_round=4, rollouts_per_epoch=2, max_rounds=10)
    module = module_of(policy)
    log = run(data, module, max_epochs=2)
    assert module.policy_version == len(log.rows) == 4
    assert [row["rollout"] for row in log.rows] == [1, 2, 3, 4]
    assert len(data.engine.calls) == sum(row["groups/rounds"] for row in log.rows) > 4


# --- prompts --------------------------------------------------------------------------------------


@given(size=st.integers(1, 12), world=st.integers(1, 4), passes=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_one_pass_hands_out_every_prompt_once_over_all_ranks(sampler, size, world, passes):
    """E03: whatever the number of processes; each pass in another order."""
    if size < world:
        return
    orders = [[] for _ in range(passes)]
    for rank in range(world):
        data = attach(data_of([MIXED] * size, groups_per_round=1), sampler)
        data.shard = lambda rank=rank: (rank, world)
        share = len(range(rank, size, world))
        for turn in range(passes):
            orders[turn] += [data._next_prompts()[0][0].index for _ in range(share)]
    for order in orders:
        assert sorted(order) == list(range(size))
    if size > 6 and world == 1 and passes > 1:
        assert orders[0] != orders[1]


@pytest.mark.parametrize("stop", range(8))
def test_the_prompt_cursor_continues_where_it_was(sampler, stop):
    """E02, E03: the prompts after a resumption are those of the run that was not interrupted."""
    kinds = [MIXED, WRONG, MIXED, RIGHT, MIXED, MIXED, WRONG]
    whole = attach(data_of(kinds, max_rounds=5), sampler)
    for _ in range(8):
        whole.rollout()
    first = attach(data_of(kinds, max_rounds=5), sampler)
    for _ in range(stop):
        first.rollout()
    second = attach(data_of(kinds, max_rounds=5), sampler)
    second.load_state_dict(first.state_dict())
    for _ in range(8 - stop):
        second.rollout()
    prompts = [[indices for indices, _ in data.engine.calls] for data in (first, second, whole)]
    assert prompts[0] + prompts[1] == prompts[2]


def test_another_seed_gives_another_order_of_prompts(sampler):
    orders = []
    for seed in (0, 0, 1):
        data = attach(data_of([MIXED] * 20, groups_per_round=20, seed=seed), sampler)
        orders.append([p.index for p, _ in data._next_prompts()])
    assert orders[0] == orders[1] != orders[2]


def test_fewer_problems_than_processes_are_refused(sampler):
    data = data_of([MIXED] * 2)
    data.shard = lambda: (0, 3)
    with pytest.raises(ConfigError, match=r"data\.task: 2 problems for 3 processes"):
        attach(data, sampler)


def test_settings_of_a_filter_that_is_not_there_are_warned_of():
    with pytest.warns(ConfigWarning, match=r"data\.max_rounds=3: has no effect without data"):
        data_of([MIXED], group_filter=None)
    with pytest.warns(ConfigWarning, match=r"data\.groups_per_round=3: has no effect"):
        data_of([MIXED], group_filter=None, max_rounds=None, groups_per_round=3)


def test_held_out_problems_are_left_out_of_training_or_warned_of(sampler):
    data = data_of([MIXED] * 4, val_task=Numbered(3))
    attach(data, sampler)
    assert [prompt.index for prompt, _ in data.prompts] == [3]
    data = data_of([MIXED] * 4, val_task=Numbered(3), remove_overlap=False)
    with pytest.warns(ConfigWarning, match=r"3 of 3 problems of data\.val_task .*also in data"):
        attach(data, sampler)
    assert len(data.prompts) == 4
    data = data_of([MIXED] * 4)  # validating on the task itself is a choice
    attach(data, sampler)
    assert len(data.prompts) == 4


# --- whose weights, which seeds -------------------------------------------------------------------


class Remembering(HFEngine):
    """Generates as `HFEngine` does, and remembers the weights it generated with."""

    def generate(self, prompts, samples, sampling, seed):
        self.weights = weights(self.module.actor)
        self.seeds = [*getattr(self, "seeds", []), seed]
        return super().generate(prompts, samples, sampling, seed)


def real_data(cls=RolloutDataModule, **kwargs):
    settings = {
        "task": PlanCount(n_max=3),
        "rewards": {"correctness": Correctness()},
        "engine": Remembering(),
        "groups_per_rollout": 2,
        "group_size": 4,
        "rollouts_per_epoch": 3,
        "sampling": Sampling(max_new_tokens=24),
        "seed": 0,
    }
    return cls(**{**settings, **kwargs})


class WeightsAtUpdate(Log):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        super().on_train_batch_start(trainer, module, batch, batch_idx)
        assert same(weights(module.actor), trainer.datamodule.engine.weights)
        self.versions = [*getattr(self, "versions", []), batch.policy_version]


def test_every_rollout_is_generated_by_the_weights_it_trains(policy):
    """A loader that runs ahead of the update makes every rollout one step stale."""
    log = WeightsAtUpdate()
    data, module = real_data(), module_of(policy)
    before = policy.actor().state_dict()
    trainer_of(callbacks=[log], max_epochs=2).fit(module, datamodule=data)
    assert log.versions == [0, 1, 2, 3, 4, 5]
    assert not same(before, weights(module.actor))
    assert len(set(data.engine.seeds)) == 6


class Unsized(RolloutDataModule):
    """Hands out a loader without a length, from which Lightning fetches one batch ahead."""

    def train_dataloader(self):
        class Loader:
            def __iter__(self):
                return iter(loader)

        loader = RolloutLoader(self)
        return Loader()


def test_a_loader_without_a_length_would_be_caught(policy):
    with pytest.raises(RuntimeError, match="rollout of policy 0 reached policy 1: the loader ran"):
        trainer_of().fit(module_of(policy), datamodule=real_data(Unsized))


def test_sampling_seeds_differ_by_rank_and_position_and_repeat(sampler):
    """I01: no two ranks, rollouts or rounds draw alike, and a rerun draws the same."""
    data = attach(data_of([MIXED] * 4), sampler)

    def seeds():
        found = {}
        for rank in range(4):
            data.shard = lambda rank=rank: (rank, 4)
            for version in range(20):
                for turn in range(5):
                    found[rank, version, turn] = data.sampling_seed(version, turn)
        return found

    first = seeds()
    assert len(set(first.values())) == len(first)
    assert seeds() == first
    data.seed = 1
    assert not set(seeds().values()) & set(first.values())


def test_two_ranks_sample_different_responses_to_one_prompt(sampler):
    """I01."""
    responses = []
    for rank in (0, 1, 0):
        data = real_data(task=Numbered(2), engine=HFEngine(), groups_per_rollout=1, group_size=8)
        attach(data, sampler)
        data.shard = lambda rank=rank: (rank, 2)
        data.prompts = [data.prompts[0]] * 2
        responses.append(data.rollout().response_ids)
    assert responses[0].shape != responses[1].shape or not torch.equal(*responses[:2])
    assert torch.equal(responses[0], responses[2])


# --- evaluation -----------------------------------------------------------------------------------


def test_evaluation_draws_alike_every_time_and_not_like_training(sampler):
    data = real_data(val_samples=3, val_groups_per_batch=4, val_task=PlanCount("held_out", n_max=3))
    attach(data, sampler)
    first = list(data.val_dataloader())
    torch.manual_seed(5)
    data.rollout()
    again = list(data.val_dataloader())
    assert len(first) > 1
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.response_ids, b.response_ids)
    assert len(set(data.engine.seeds)) == 1 + len(first)
    index = torch.cat([batch.prompt_index for batch in first]).view(-1, 3)[:, 0]
    assert index.tolist() == list(range(len(data.val_task)))


def evaluate(data, world, k):
    """Validation as `world` processes would do it, and the metric over all of them."""
    metrics, sizes = [], []
    for rank in range(world):
        data.shard = lambda rank=rank: (rank, world)
        metric = GroupMetrics(k)
        batches = list(data.val_dataloader())
        sizes.append([len(batch) for batch in batches])
        for batch in batches:
            metric.update(Samples.of(batch, k))
        metrics.append(metric)
    assert all(size == sizes[0] for size in sizes)  # every rank generates as often
    total = GroupMetrics(k)
    for metric in metrics:
        for name in ("scores", "index", "source"):
            getattr(total, name).extend(getattr(metric, name))
    total._update_count = 1  # as torchmetrics does when it gathers from processes
    return total


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("per_batch", [1, 2, 64])
def test_rows_that_only_fill_up_a_rank_are_not_counted(sampler, world, per_batch):
    """I06: five problems, the first one right, give 0.2 on any number of processes."""
    data = data_of([RIGHT, WRONG, WRONG, WRONG, WRONG], val_groups_per_batch=per_batch)
    attach(data, sampler)
    metric = evaluate(data, world, k=2)
    assert sorted(torch.cat(metric.index).tolist()) == list(range(5))
    assert metric.compute()["accuracy"] == pytest.approx(0.2)


# --- settings that cannot work --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups_per_rollout": 0}, r"data\.groups_per_rollout=0: must be at least 1"),
        ({"group_size": 0}, r"data\.group_size=0"),
        ({"groups_per_round": 0}, r"data\.groups_per_round=0"),
        ({"max_rounds": 0}, r"data\.max_rounds=0"),
        ({"rollouts_per_epoch": 0}, r"data\.rollouts_per_epoch=0"),
        ({"val_samples": 0}, r"data\.val_samples=0"),
        ({"val_groups_per_batch": 0}, r"data\.val_groups_per_batch=0"),
        ({"val_pass_k": [1, 4]}, r"data\.val_pass_k=\[1, 4\]: .* data\.val_samples=2"),
        ({"val_pass_k": [0]}, r"data\.val_pass_k=\[0\]: each must lie between 1 and"),
        ({"group_size": 1}, r"data\.group_size=1: data\.group_filter=DropUniform .*at least 2"),
        ({"groups_per_round": 1, "max_rounds": 1}, r"groups_per_round=1: .*choose at least 2"),
        ({"rewards": {"correctness": None}}, r"data\.rewards"),
        ({"sampling": Sampling(temperature=0)}, r"data\.sampling\.temperature=0: .*choose 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        data_of([MIXED], **settings)


def test_sampling_that_is_not_trained_is_not_silent():
    for setting in ({"top_p": 0.9}, {"top_k": 5}):
        with pytest.warns(ConfigWarning, match=r"importance ratios are biased; use 1 and 0"):
            data_of([MIXED], sampling=Sampling(**setting))
