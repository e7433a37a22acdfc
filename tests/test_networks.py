"""Forward passes over a rollout, on small random models of several architectures."""

from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
)

from lit_reason.batch import Group, Prompt, Response, RolloutBatch
from lit_reason.networks import ValueModel, logits_head, policy_outputs, state_values
from lit_reason.rollout import HFEngine, Sampling
from lit_reason.verdict import Verdict

VOCAB = 40
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    # absolute positions, tied embeddings
    "gpt2": GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=512,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "llama": LlamaConfig(**SMALL, num_key_value_heads=2),  # rotary positions, a head of its own
    # the following do something to the logits after the head
    "gemma2": Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=8, final_logit_softcapping=0.5),
    "cohere": CohereConfig(**SMALL, num_key_value_heads=2, logit_scale=0.25),
    "granite": GraniteConfig(**SMALL, num_key_value_heads=2, logits_scaling=3.0),
    # and this one calls a part of its layers
    "opt": OPTConfig(**SMALL, ffn_dim=48, word_embed_proj_dim=32, dropout=0.0),
}
PLAIN = ("gpt2", "llama", "opt")


def build(name, cls=AutoModelForCausalLM):
    torch.manual_seed(0)
    model = cls.from_config(CONFIGS[name]).train()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.05 * torch.randn_like(p)
    return model


@pytest.fixture(scope="module", params=CONFIGS)
def actor(request):
    return build(request.param)


def rollout(prompts, responses, **extra):
    groups = [
        Group(Prompt(i, "", ""), p, [Response(tuple(r), "", False)], [Verdict.of(True)], [1.0])
        for i, (p, r) in enumerate(zip(prompts, responses, strict=True))
    ]
    return RolloutBatch.from_groups(groups, 0, **extra)


PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 9, 8, 7]]
RESPONSES = [[11, 12, 13, 2], [21, 22, 23, 24, 25, 2]]


def definition(actor, prompt, response, temperature=1.0):
    """Log-probs and entropies of one response on its own, from all logits in float64."""
    logits = actor(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1].double()
    logp = torch.log_softmax(logits / temperature, -1)
    chosen = logp.gather(1, torch.tensor(response)[:, None])[:, 0]
    return chosen.float(), -(logp.exp() * logp).sum(-1).float()


@pytest.mark.parametrize("chunk", [None, 3])
def test_scores_equal_the_definition_row_by_row_with_gradients(actor, chunk):
    """C01, F03: a row padded on both sides has the log-probs it has alone."""
    batch = rollout(PROMPTS, RESPONSES)
    out = policy_outputs(actor, batch, 0.7, "grad", chunk)
    alone = [definition(actor, p, r, 0.7) for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    weights = torch.linspace(-1, 1, 10)
    for i, (logprobs, entropy) in enumerate(alone):
        n = len(RESPONSES[i])
        torch.testing.assert_close(out.logprobs[i, :n], logprobs, atol=2e-6, rtol=0)
        torch.testing.assert_close(out.entropy[i, :n], entropy, atol=2e-6, rtol=0)
    assert (out.logprobs[0, 4:] == 0).all()
    assert (out.entropy[0, 4:] == 0).all()
    mask = batch.response_mask
    ours = (out.logprobs[mask] * weights).sum() + (out.entropy[mask] * weights.flip(0)).sum()
    theirs = (torch.cat([a[0] for a in alone]) * weights).sum()
    theirs = theirs + (torch.cat([a[1] for a in alone]) * weights.flip(0)).sum()
    parameters = list(actor.parameters())
    for got, want in zip(
        torch.autograd.grad(ours, parameters), torch.autograd.grad(theirs, parameters), strict=True
    ):
        torch.testing.assert_close(got, want, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("name", PLAIN)
def test_c01_left_padding_changes_neither_values_nor_greedy_responses(name):
    """C01: one prompt and response alone, and beside a prompt that is 7 tokens longer."""
    critic = ValueModel(build(name, AutoModel))
    torch.nn.init.normal_(critic.head.weight)
    both, alone = rollout(PROMPTS, RESPONSES), rollout(PROMPTS[:1], RESPONSES[:1])
    assert (~both.prompt_mask[0]).sum() == 7
    values = state_values(critic, alone)
    torch.testing.assert_close(state_values(critic, both)[:1, :4], values, atol=2e-6, rtol=1e-6)
    hidden = critic.base(torch.tensor([PROMPTS[0] + RESPONSES[0]])).last_hidden_state
    want = critic.head(hidden)[0, 2:6, 0]  # from the last prompt token to the one before the end
    torch.testing.assert_close(values[0], want, atol=2e-6, rtol=1e-6)

    engine = HFEngine()
    tokenizer = SimpleNamespace(pad_token_id=0, decode=lambda ids, **_: [""] * len(ids))
    precision = SimpleNamespace(forward_context=torch.no_grad)
    engine.bind(
        SimpleNamespace(
            actor=build(name),
            device=torch.device("cpu"),
            backbone=SimpleNamespace(tokenizer=tokenizer, eos_ids=[2]),
            trainer=SimpleNamespace(precision_plugin=precision),
            wants_sampled_entropy=False,
        )
    )
    greedy = Sampling(temperature=0.0, max_new_tokens=12)
    beside = engine.generate(PROMPTS, 1, greedy, seed=0)
    for i in range(2):
        assert beside[i][0].ids == engine.generate(PROMPTS[i : i + 1], 1, greedy, seed=0)[0][0].ids


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_done_to_the_logits_is_part_of_the_head(name):
    actor = build(name)
    # the answer does not come from the weights: nothing is small enough to pass for linear
    with torch.no_grad():
        for p in actor.parameters():
            p *= 1e-3
    head = logits_head(actor)
    assert (head is actor.get_output_embeddings()) == (name in PLAIN)
    ids = torch.tensor([[5, 6, 7]])
    states = actor.base_model(ids).last_hidden_state[0]
    torch.testing.assert_close(head(states), actor(ids).logits[0], atol=1e-9, rtol=1e-5)


def test_a_model_that_mixes_positions_after_its_layers_has_no_head():
    class Smoothing(LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits.cumsum(1)
            return out

    actor, batch = Smoothing(CONFIGS["llama"]), rollout(PROMPTS[:1], RESPONSES[:1])
    assert logits_head(actor) is None
    ids = torch.cat([batch.prompt_ids, batch.response_ids], dim=1)
    logits = actor(ids, logits_to_keep=5).logits[:, :-1]
    want = logits.log_softmax(-1).gather(2, batch.response_ids[..., None])[..., 0]
    torch.testing.assert_close(policy_outputs(actor, batch).logprobs, want, atol=2e-6, rtol=0)


def test_f03_the_head_sees_response_positions_only(actor):
    """A prompt of 500 tokens and a response of 4: as from all logits."""
    batch = rollout([[3 + i % 30 for i in range(500)]], RESPONSES[:1])
    logits_head(actor)  # the probe of the first call is not what is measured
    seen = []
    head = actor.get_output_embeddings()
    hook = head.register_forward_hook(lambda m, i, o: seen.append(o.shape[:-1].numel()))
    found = policy_outputs(actor, batch).logprobs
    hook.remove()
    assert sum(seen) in (4, 5)
    ids = torch.cat([batch.prompt_ids, batch.response_ids], 1)
    whole = actor(ids).logits[:, -5:-1].log_softmax(-1)
    want = whole.gather(2, batch.response_ids[..., None])[..., 0]
    assert found.shape == (1, 4)
    torch.testing.assert_close(found, want, atol=1e-6, rtol=0)


def test_logits_exist_in_blocks_and_again_in_the_backward_pass(actor):
    seen = []
    batch = rollout(PROMPTS, RESPONSES)
    logits_head(actor)
    head = actor.get_output_embeddings()
    hook = head.register_forward_hook(lambda m, i, o: seen.append(o.shape[:-1].numel()))
    out = policy_outputs(actor, batch, chunk=5)
    assert seen == [5, 5, 2]
    out.logprobs.sum().backward()
    hook.remove()
    assert sorted(seen[3:]) == [2, 5, 5]


@pytest.mark.parametrize("chunk", [None, 3])
def test_b15_scores_without_and_with_gradients_are_the_same_bits(actor, chunk):
    batch = rollout(PROMPTS, RESPONSES)
    for precision in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16):
            with torch.no_grad():
                old = policy_outputs(actor, batch, 0.9, "detached", chunk).logprobs
            new = policy_outputs(actor, batch, 0.9, "none", chunk).logprobs
            assert new.dtype == torch.float32
            assert torch.equal(old, new)


class Stub(torch.nn.Module):
    """A causal model given by a function from ids to logits."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, input_ids, logits_to_keep, **_):
        return SimpleNamespace(logits=self.function(input_ids)[:, -logits_to_keep:])


def test_b13_the_previous_position_predicts_a_token():
    """B13: logits of 20 on (token + 1) mod 8."""
    stub = Stub(lambda ids: 20.0 * torch.nn.functional.one_hot((ids + 1) % 8, 8).float())
    out = policy_outputs(stub, rollout([[0, 1]], [[2, 3, 4]]))
    assert out.logprobs.shape == (1, 3)
    assert (out.logprobs > -1e-6).all()


@pytest.mark.parametrize(
    ("temperature", "want"), [(1.0, -0.40761), (0.5, -0.14293), (2.0, -0.68027), (0.0, -0.40761)]
)
def test_c07_scores_at_the_sampling_temperature(temperature, want):
    """C07: logits [2, 1, 0], token 0; at 0 (greedy evaluation) the score is finite."""
    stub = Stub(lambda ids: torch.tensor([2.0, 1.0, 0.0]).expand(*ids.shape, 3))
    out = policy_outputs(stub, rollout([[1]], [[0]]), temperature)
    torch.testing.assert_close(out.logprobs, torch.tensor([[want]]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("width", [5, 50])
@pytest.mark.parametrize("peaked", [False, True])
def test_b25_entropy_is_that_of_response_states(width, peaked):
    """B25: uniform over 8 tokens, or so on response states only; ln 8 whatever the padding."""
    batch = rollout([[1, 1, 3], [3]], [[4, 5], [6, 7, 6, 7, 2]])
    pad = (0, width - 5)
    batch.response_ids = torch.nn.functional.pad(batch.response_ids, pad)
    batch.response_mask = torch.nn.functional.pad(batch.response_mask, pad)
    top = torch.tensor([20.0 * peaked, *[0.0] * 7])
    stub = Stub(lambda ids: torch.where((ids == 1)[..., None], top, torch.zeros(())))
    entropy = policy_outputs(stub, batch, entropy="detached").entropy
    assert entropy.shape == (2, width)
    mean = entropy.sum() / batch.response_mask.sum()
    assert mean.item() == pytest.approx(2.0794415, abs=1e-6)


def test_f04_without_a_reader_no_entropy_and_as_a_metric_no_gradient(actor):
    batch = rollout(PROMPTS, RESPONSES)
    assert policy_outputs(actor, batch).entropy is None
    out = policy_outputs(actor, batch, entropy="detached")
    assert out.logprobs.requires_grad
    assert not out.entropy.requires_grad
