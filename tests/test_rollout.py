"""Sampling: masks from lengths, the trained distribution, the same tokens as the library."""

import copy
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPT2Config,
    Lfm2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen3NextConfig,
)

from lit_reason.advantages import GAE, GroupRelative
from lit_reason.backbones import Bundled, Pretrained, character_tokenizer
from lit_reason.batch import Group, Prompt, RolloutBatch
from lit_reason.cache import GrowingLayer, growing_cache
from lit_reason.decoding import Sampled
from lit_reason.errors import ConfigError
from lit_reason.module import ReasonModule
from lit_reason.networks import policy_outputs, state_values
from lit_reason.objectives import ClippedSurrogate, ValueLoss
from lit_reason.rollout import HFEngine, Sampling, generation_config
from lit_reason.tasks.plan_count import ALPHABET
from lit_reason.verdict import Verdict
from tests.conftest import ready

VOCABULARY = 3 + len(ALPHABET)
IDS = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": VOCABULARY,
    **IDS,
}
ARCHITECTURES = {
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=512, **IDS
    ),
    "llama": LlamaConfig(**LLAMA),
    "mistral": MistralConfig(**LLAMA, sliding_window=8),
    "lfm2": Lfm2Config(**LLAMA, layer_types=["conv", "full_attention"]),
    "qwen3_next": Qwen3NextConfig(
        **LLAMA,
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "mamba": MambaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=8,
        tie_word_embeddings=False,
        **IDS,
    ),
}


def save_model(folder, config, scale=8.0, **generation):
    """A random model whose next-token distributions are neither flat nor certain."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config))
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(scale)
    model.generation_config = GenerationConfig(**{**IDS, **generation})
    model.save_pretrained(folder)
    character_tokenizer(ALPHABET).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def module(request, tmp_path_factory):
    folder = save_model(tmp_path_factory.mktemp("model"), ARCHITECTURES[request.param])
    attn = "eager" if request.param == "mamba" else "sdpa"
    return build(Pretrained(folder, attn=attn))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return build(Pretrained(save_model(tmp_path_factory.mktemp("llama"), ARCHITECTURES["llama"])))


@pytest.fixture(scope="module")
def bundled():
    return build(Bundled())


def build(backbone):
    return ready(ReasonModule(backbone, GAE(), ClippedSurrogate(), ValueLoss()))


def sample(module, prompts, samples=1, seed=0, micro_batch_size=64, **sampling):
    engine = HFEngine(micro_batch_size)
    engine.bind(module)
    sampling = {"max_new_tokens": 24, **sampling}
    return engine.generate(prompts, samples, Sampling(**sampling), seed)


def encode(module, *texts):
    return [module.backbone.tokenizer(text)["input_ids"] for text in texts]


def batch_of(module, prompts, groups, temperature=1.0):
    built = [
        Group(
            Prompt(i, "", ""),
            ids,
            answers,
            [Verdict.of(False)] * len(answers),
            [float(i)] * len(answers),
        )
        for i, (ids, answers) in enumerate(zip(prompts, groups, strict=True))
    ]
    pad = module.backbone.tokenizer.pad_token_id
    return RolloutBatch.from_groups(built, pad, temperature=temperature)


# --- masks and truncation -------------------------------------------------------------------------


class Scripted(nn.Module):
    """Stands in for the actor: generates given rows, padded as `decode` pads them."""

    def __init__(self, rows, pad_id):
        super().__init__()
        self.rows, self.pad_id = rows, pad_id
        self.config, self.generation_config = LlamaConfig(**LLAMA), GenerationConfig()

    def generate(self, ids, attention_mask, **_):
        self.mask = attention_mask
        width = max(map(len, self.rows))
        out = [row + [self.pad_id] * (width - len(row)) for row in self.rows]
        return Sampled(torch.tensor(out), torch.zeros(len(out), width), None)


def scripted(rows, prompt, eos=(2,), pad=2, budget=4):
    tokenizer = character_tokenizer("abcdefghij")
    tokenizer.pad_token = tokenizer.eos_token = tokenizer.convert_ids_to_tokens(pad)
    actor = Scripted(rows, pad)
    module = SimpleNamespace(
        actor=actor,
        backbone=SimpleNamespace(tokenizer=tokenizer, eos_ids=list(eos)),
        device=torch.device("cpu"),
        trainer=Trainer(accelerator="cpu", logger=False, enable_checkpointing=False),
        wants_sampled_entropy=False,
    )
    responses = sample(module, [prompt], samples=len(rows), max_new_tokens=budget)
    return responses[0], batch_of(module, [prompt], responses), actor


def test_the_sampled_end_token_trains_though_it_is_the_pad_token():
    """C02."""
    (first, _), batch, _ = scripted([[7, 8, 2], [7, 7, 7, 7, 7]], [5, 6], budget=5)
    assert first.ids == (7, 8, 2)
    assert first.length == 3
    assert batch.response_mask[0].tolist() == [True, True, True, False, False]
    assert batch.lengths.tolist() == [3, 5]


def test_end_tokens_inside_the_prompt_end_nothing():
    """C03: a chat template ends turns with the end token."""
    (cut, ended), batch, actor = scripted([[7, 7, 7], [7, 2]], [5, 2, 6, 2, 9], budget=3)
    assert (cut.truncated, ended.truncated) == (True, False)
    assert actor.mask.all()
    assert batch.prompt_mask.all()
    assert batch.prompt_ids.tolist() == [[5, 2, 6, 2, 9]] * 2


@pytest.mark.parametrize(
    ("rows", "truncated"),
    [
        ([[7, 7, 7, 2], [7, 7, 7, 7], [7, 2]], [False, True, False]),
        ([[7, 7, 2], [7, 2]], [False, False]),
    ],
)
def test_truncated_means_no_end_token_within_the_budget(rows, truncated):
    """C05: neither the length nor the width of the batch decides."""
    responses, batch, _ = scripted(rows, [5, 6], budget=4)
    assert [r.truncated for r in responses] == batch.truncated.tolist() == truncated
    assert [r.length for r in responses] == [len(row) for row in rows]


def test_an_empty_response_is_one_token_and_scored():
    """C18."""
    (empty, _), batch, _ = scripted([[2], [7, 8, 2]], [5, 6])
    assert (empty.ids, empty.text, empty.truncated) == ((2,), "", False)
    assert batch.response_mask.tolist() == [[True, False, False], [True, True, True]]
    batch.rewards = torch.tensor([1.0, -1.0])
    rewards = torch.zeros(2, 3)
    rewards[0, 0], rewards[1, 2] = 1.0, -1.0
    assert GroupRelative()(batch, rewards, None).advantages.isfinite().all()


def test_the_batch_holds_the_sampled_tokens_and_not_a_re_encoding():
    """C15: two pieces whose text is a single token of its own."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE({"<eos>": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")]))
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>")
    tokenizer.pad_token = "<eos>"
    assert tokenizer("ab")["input_ids"] == [3]
    module = SimpleNamespace(
        actor=Scripted([[1, 2, 0]], 0),
        backbone=SimpleNamespace(tokenizer=tokenizer, eos_ids=[0]),
        device=torch.device("cpu"),
        trainer=Trainer(accelerator="cpu", logger=False, enable_checkpointing=False),
        wants_sampled_entropy=False,
    )
    groups = sample(module, [[3]])
    assert groups[0][0].text == "ab"
    assert batch_of(module, [[3]], groups).response_ids.tolist() == [[1, 2, 0]]


def test_every_end_token_of_the_model_ends_a_response(tmp_path):
    """P30: the tokenizer's end token and those of the generation settings."""
    folder = save_model(tmp_path, ARCHITECTURES["llama"], scale=1.0, eos_token_id=[1, 5, 9])
    module = build(Pretrained(folder))
    assert module.backbone.eos_ids == [1, 5, 9]
    (group,) = sample(module, encode(module, "max(1,2)+3="), samples=64)
    for response in group:
        assert not {1, 5, 9} & set(response.ids[:-1])
        assert response.truncated == (response.ids[-1] not in {1, 5, 9})
    assert {r.ids[-1] for r in group} >= {1, 5, 9}


# --- the sampled distribution is the trained one --------------------------------------------------


def first_token_counts(module, prompt, samples, **sampling):
    (group,) = sample(
        module, [prompt], samples=samples, micro_batch_size=samples, max_new_tokens=1, **sampling
    )
    return torch.bincount(torch.tensor([r.ids[0] for r in group]), minlength=VOCABULARY)


def scored(module, prompt, temperature):
    """Log-probs of every first token, from the forward pass that training uses."""
    from lit_reason.batch import Response

    answers = [Response((i,), "", truncated=True) for i in range(VOCABULARY)]
    batch = batch_of(module, [prompt], [answers], temperature)
    with torch.no_grad():
        return policy_outputs(module.actor, batch, temperature).logprobs[:, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_of_samples_agree_with_the_scored_log_probs(llama, temperature):
    """C07: the temperature is in both."""
    prompt = encode(llama, "max(1,2)+3=")[0]
    n = 4096
    counts = first_token_counts(llama, prompt, n, temperature=temperature)
    expected = scored(llama, prompt, temperature).exp()
    assert expected.sum() == pytest.approx(1, abs=1e-5)
    common = expected * n >= 5
    chi = ((counts - n * expected) ** 2 / (n * expected))[common].sum()
    # 5 standard deviations above the mean of the chi-squared distribution
    freedom = float(common.sum() - 1)
    assert freedom >= 4
    assert chi < freedom + 5 * (2 * freedom) ** 0.5


def test_generation_settings_of_the_checkpoint_do_not_leak(tmp_path):
    """C08, C09: a checkpoint that asks for near-greedy sampling with penalties."""
    leaks = {
        "do_sample": True,
        "temperature": 0.01,
        "top_k": 1,
        "top_p": 0.1,
        "repetition_penalty": 5.0,
        "min_new_tokens": 1,
        "suppress_tokens": [4, 5, 6, 7],
        "no_repeat_ngram_size": 1,
    }
    folder = save_model(tmp_path, ARCHITECTURES["llama"], scale=1.0, **leaks)
    module = build(Pretrained(folder))
    own = copy.deepcopy(module.actor.generation_config.to_dict())
    assert own["repetition_penalty"] == 5.0
    prompt = encode(module, "max(4,5)+6=")[0]
    counts = first_token_counts(module, prompt, 2048)
    expected = 2048 * scored(module, prompt, 1.0).exp()
    torch.testing.assert_close(counts.float(), expected, rtol=0, atol=float(6 * 2048**0.5))
    assert (counts > 0).all()
    assert module.actor.generation_config.to_dict() == own


def test_nucleus_and_top_k_cut_the_distribution_where_asked(llama):
    prompt = encode(llama, "max(1,2)+3=")[0]
    logprobs = scored(llama, prompt, 1.0)
    counts = first_token_counts(llama, prompt, 512, top_k=3)
    assert set(counts.nonzero().flatten().tolist()) == set(logprobs.topk(3).indices.tolist())
    ordered = logprobs.exp().sort(descending=True)
    inside = int((ordered.values.cumsum(0) < 0.6).sum()) + 1
    counts = first_token_counts(llama, prompt, 512, top_p=0.6)
    assert set(counts.nonzero().flatten().tolist()) <= set(ordered.indices[:inside].tolist())


def test_every_setting_that_shapes_the_distribution_is_stated():
    config = generation_config(Sampling(temperature=0.7, max_new_tokens=5), [1], 0)
    assert (config.do_sample, config.temperature, config.top_k, config.top_p) == (True, 0.7, 0, 1.0)
    assert config.repetition_penalty == 1.0
    greedy = generation_config(Sampling(temperature=0), [1], 0)
    assert not greedy.do_sample


def test_greedy_takes_the_likeliest_token_every_time(module):
    (prompt,) = encode(module, "max(3,4)+2=")
    (group,) = sample(module, [prompt], samples=2, temperature=0, max_new_tokens=12)
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(12):
            ids.append(int(module.actor(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == 1:
                break
    assert [list(r.ids) for r in group] == [ids[len(prompt) :]] * 2


# --- padding, cache, modes ------------------------------------------------------------------------


PROMPTS = ("max(1,2)+3=", "min(0,1)+10=", "7+4=", "max(9,8)+12=1")


def test_left_padding_changes_no_generation_log_prob_or_value(module):
    """C01: alone, and beside longer prompts."""
    prompts = encode(module, *PROMPTS)
    assert len({len(p) for p in prompts}) > 2
    together = sample(module, prompts, temperature=0)
    alone = [sample(module, [p], temperature=0)[0] for p in prompts]
    assert together == alone

    batch = batch_of(module, prompts, together)
    with torch.no_grad():
        logprobs = policy_outputs(module.actor, batch).logprobs
        nn.init.normal_(module.critic.head.weight, generator=torch.Generator().manual_seed(0))
        values = state_values(module.critic, batch)
        for i, prompt in enumerate(prompts):
            single = batch_of(module, [prompt], [alone[i]])
            n = single.lengths[0]
            for both, one in (
                (logprobs, policy_outputs(module.actor, single).logprobs),
                (values, state_values(module.critic, single)),
            ):
                torch.testing.assert_close(both[i, :n], one[0, :n], atol=1e-4, rtol=0)
                assert not both[i, n:].any()


def test_log_probs_are_those_of_an_unpadded_forward_pass(module):
    """B13: the logits before a token score it."""
    prompts = encode(module, *PROMPTS)
    groups = sample(module, prompts, samples=3)
    batch = batch_of(module, prompts, groups)
    with torch.no_grad():
        outputs = policy_outputs(module.actor, batch, entropy="detached")
        rows = [(p, r) for p, group in zip(prompts, groups, strict=True) for r in group]
        for i, (prompt, response) in enumerate(rows):
            full = module.actor(torch.tensor([[*prompt, *response.ids]])).logits[0]
            dist = full[len(prompt) - 1 : -1].log_softmax(-1)
            own = dist.gather(1, torch.tensor(response.ids)[:, None])[:, 0]
            entropy = -(dist.exp() * dist).sum(-1)
            torch.testing.assert_close(outputs.logprobs[i, : len(own)], own, atol=1e-4, rtol=0)
            torch.testing.assert_close(outputs.entropy[i, : len(own)], entropy, atol=1e-4, rtol=0)


def test_the_growing_cache_gives_the_tokens_of_the_librarys(module):
    """Over more than two of its blocks."""
    (ids,) = encode(module, PROMPTS[0])
    rows = torch.tensor([ids, ids[::-1]])
    never = [VOCABULARY]
    settings = generation_config(Sampling(max_new_tokens=2 * GrowingLayer.block + 20), never, 0)
    out = []
    for cache in (growing_cache(module.actor.config), None):
        torch.manual_seed(3)
        module.actor.eval()
        kwargs = {} if cache is None else {"cache": cache}
        with torch.no_grad():
            out.append(
                module.actor.generate(
                    rows,
                    attention_mask=torch.ones_like(rows),
                    generation_config=settings,
                    output_logits=True,
                    return_dict_in_generate=True,
                    **kwargs,
                )
            )
        module.actor.train()
    assert torch.equal(out[0].sequences, out[1].sequences)
    torch.testing.assert_close(
        torch.stack(out[0].logits), torch.stack(out[1].logits), atol=1e-5, rtol=1e-5
    )
    assert out[0].sequences.shape[1] == len(ids) + 2 * GrowingLayer.block + 20


def test_the_growing_cache_copies_only_when_a_block_is_full():
    layer = GrowingLayer()
    steps = 3 * layer.block
    rooms = set()
    keys = torch.randn(1, 2, steps, 4)
    for i in range(steps):
        k, v = layer.update(keys[:, :, i : i + 1], -keys[:, :, i : i + 1])
        rooms.add(k.untyped_storage().data_ptr())
        assert k.shape[-2] == layer.get_seq_length() == i + 1
    assert torch.equal(k, keys)
    assert torch.equal(v, -keys)
    assert len(rooms) <= 3


def test_a_prompt_is_read_once_and_ended_responses_leave_the_batch(bundled):
    """The work is that of the tokens: not of the group size, nor of the longest response."""
    shapes = []
    hook = bundled.actor.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    prompts = encode(bundled, *PROMPTS[:2])
    groups = sample(bundled, prompts, samples=8, max_new_tokens=64)
    hook.remove()
    lengths = torch.tensor([r.length for group in groups for r in group])
    assert lengths.min() < lengths.max() - 8
    assert shapes[0] == (2, max(map(len, prompts)))
    for step, (rows, width) in enumerate(shapes[1:], 1):
        running = int((lengths > step).sum())
        assert width == 1
        assert running <= rows <= running + 2  # an eighth of 16


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_log_probs_of_the_engine_are_those_of_the_trainer(module, temperature):
    """Beside longer prompts, and after other responses have left the batch."""
    prompts = encode(module, *PROMPTS)
    groups = sample(module, prompts, samples=4, temperature=temperature)
    assert len({r.length for group in groups for r in group}) > 1
    batch = batch_of(module, prompts, groups, temperature)
    with torch.no_grad():
        expected = policy_outputs(module.actor, batch, temperature).logprobs
    rows = [r for group in groups for r in group]
    for row, response in zip(expected, rows, strict=True):
        assert len(response.logprobs) == response.length
        drawn = torch.tensor(response.logprobs)
        torch.testing.assert_close(drawn, row[: response.length], atol=1e-4, rtol=0)


def test_layers_that_do_not_attend_to_everything_keep_their_own_cache():
    layers = growing_cache(ARCHITECTURES["mistral"]).layers
    assert not any(isinstance(layer, GrowingLayer) for layer in layers)


def test_gradient_checkpointing_neither_changes_nor_survives_generation(llama):
    """C17: same tokens with the cache in use, and checkpointing again afterwards."""
    checkpointed = build(Pretrained(llama.backbone.path, gradient_checkpointing=True))
    prompts = encode(llama, *PROMPTS)
    lengths = []
    hook = checkpointed.actor.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    same = sample(checkpointed, prompts, temperature=0, max_new_tokens=32)
    hook.remove()
    assert same == sample(llama, prompts, temperature=0, max_new_tokens=32)
    assert lengths[1:] == [1] * (len(lengths) - 1)
    assert checkpointed.actor.training
    assert any(getattr(m, "gradient_checkpointing", False) for m in checkpointed.actor.modules())
    calls = []
    layer = checkpointed.actor.model.layers[0].mlp
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    batch = batch_of(llama, prompts, same)
    policy_outputs(checkpointed.actor, batch).logprobs.sum().backward()
    assert len(calls) == 2  # once forward, once recomputed


def test_generation_leaves_modes_gradients_and_random_numbers_as_they_were(bundled):
    before = torch.get_rng_state()
    (group,) = sample(bundled, encode(bundled, "max(1,2)+3="), samples=4)
    assert torch.equal(before, torch.get_rng_state())
    assert bundled.actor.training
    assert all(p.requires_grad and p.grad is None for p in bundled.actor.parameters())
    batch = batch_of(bundled, encode(bundled, "max(1,2)+3="), [group])
    batch.loss_mask &= False  # P7: what callbacks do must be allowed
    assert not batch.response_ids.is_inference()


@pytest.mark.parametrize("fails", [False, True])
def test_a_part_that_was_left_in_evaluation_mode_stays_in_it(bundled, fails):
    frozen = bundled.actor.model.layers[0]
    frozen.eval()

    def look(network, *_):
        assert not network.training
        if fails:
            raise KeyError("stop")

    hook = bundled.actor.register_forward_pre_hook(look)
    before = {name: module.training for name, module in bundled.actor.named_modules()}
    with pytest.raises(KeyError) if fails else nullcontext():
        sample(bundled, encode(bundled, "max(1,2)+3="))
    hook.remove()
    assert {name: module.training for name, module in bundled.actor.named_modules()} == before
    assert not frozen.training
    assert bundled.actor.training
    frozen.train()


def test_the_same_seed_gives_the_same_responses_and_another_seed_others(bundled):
    prompts = encode(bundled, *PROMPTS[:2])
    first = sample(bundled, prompts, samples=8, seed=1)
    torch.manual_seed(99)
    assert sample(bundled, prompts, samples=8, seed=1) == first
    assert sample(bundled, prompts, samples=8, seed=2) != first
    assert len({r.ids for r in first[0]}) > 1


@pytest.mark.parametrize("micro_batch_size", [1, 3, 64])
def test_responses_come_back_in_the_order_of_their_prompts(bundled, micro_batch_size):
    """Also where a micro-batch ends inside a group, and mixes prompts of unequal length."""
    prompts = encode(bundled, *PROMPTS)
    groups = sample(bundled, prompts, samples=2, micro_batch_size=micro_batch_size, temperature=0)
    assert [len(group) for group in groups] == [2] * 4
    for prompt, group in zip(prompts, groups, strict=True):
        assert group == [sample(bundled, [prompt], temperature=0)[0][0]] * 2


def test_generation_runs_in_the_trainers_precision(bundled):
    """P10: the loader runs outside the trainer's autocast."""
    seen = []
    hook = bundled.actor.register_forward_pre_hook(
        lambda *_: seen.append(
            (
                torch.is_autocast_enabled("cpu"),
                torch.is_grad_enabled(),
                torch.is_inference_mode_enabled(),
            )
        )
    )
    plain = bundled.trainer
    prompts = encode(bundled, PROMPTS[0])
    sample(bundled, prompts, max_new_tokens=1)
    bundled.trainer = Trainer(
        accelerator="cpu", precision="bf16-mixed", logger=False, enable_checkpointing=False
    )
    sample(bundled, prompts, max_new_tokens=1)
    hook.remove()
    bundled.trainer = plain
    assert seen == [(False, False, False), (True, False, False)]


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ({"temperature": -0.1}, "0 or at least"),
        ({"top_p": 0.0}, "above 0"),
        ({"top_p": 1.1}, "at most 1"),
        ({"top_k": -1}, "at least 0"),
        ({"max_new_tokens": 0}, "at least 1"),
    ],
)
def test_impossible_sampling_is_refused(setting, rule):
    (name,) = setting
    with pytest.raises(ConfigError, match=rf"sampling\.{name}=.*{rule}"):
        Sampling(**setting)
    with pytest.raises(ConfigError, match=r"data\.engine\.micro_batch_size=0"):
        HFEngine(0)
