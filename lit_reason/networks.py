"""The two networks and their forward passes over a rollout: policy log-probs and state values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lit_reason.batch import RolloutBatch, trim
from lit_reason.cache import growing_cache, is_recurrent
from lit_reason.functional import (
    hidden_logprobs_and_entropy,
    logprobs_and_entropy,
    position_ids,
    zero_outside,
)

Entropy = Literal["none", "detached", "grad"]
Head: TypeAlias = Callable[[Tensor], Tensor]
Result = TypeVar("Result")
BLOCK = 2**23  # logits that may exist at once, 32 MiB in float32 ...
LEAST = 256  # ... but no fewer positions, each block costs a gradient of the whole head
_heads: WeakKeyDictionary[nn.Module, Head | None] = WeakKeyDictionary()


class PolicyOutputs(NamedTuple):
    """What the actor says about the sampled tokens.

    Attributes:
        logprobs: (B, T) float32, log π(o_t | q, o_<t) at the sampling temperature; 0 on padding.
        entropy: (B, T) float32, entropy of π(· | q, o_<t); `None` if not asked for.
    """

    logprobs: Tensor
    entropy: Tensor | None


class ValueModel(nn.Module):
    """A decoder with a scalar head: V(s_t) at the position whose next token is o_t.

    The head starts at zero, so that V ≡ 0 until it has seen a return, and is kept in float32.

    Args:
        base: A decoder without its language-model head.

    Attributes:
        notes: What its adapters, if it has any, can be loaded with; see `LoRA.describe`.
    """

    notes: dict[str, str]

    def __init__(self, base: PreTrainedModel) -> None:
        super().__init__()
        self.base, self.notes = base, {}
        self.head = nn.Linear(base.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, **inputs: Tensor) -> Tensor:
        """(B, S) values of the states after each input token, in float32."""
        hidden = self.base(use_cache=False, **inputs).last_hidden_state
        with torch.autocast(hidden.device.type, enabled=False):
            return self.head(hidden.float()).squeeze(-1)


@torch.no_grad()
def reads_padding(actor: Any) -> bool:
    """Whether what a recurrent network says of a row changes with the padding before it.

    Attention does not read what is masked; a state has to be kept from it, and not every
    architecture does that (a bias makes something of masked inputs again).

    Args:
        actor: A causal language model; not run if it has no recurrent layers.
    """
    layers = growing_cache(actor.config).layers
    if not (actor._is_stateful or any(map(is_recurrent, layers))):
        return False
    embeddings = actor.get_input_embeddings()
    ids = torch.arange(9, device=embeddings.weight.device).view(3, 3) % embeddings.num_embeddings
    ids = ids.repeat(1, 4)
    mask = torch.ones_like(ids)
    mask[:, :-3] = 0

    def logits(start: int) -> Tensor:
        seen = mask[:, start:]
        rows = {"input_ids": ids[:, start:], "position_ids": position_ids(seen)}
        return actor(attention_mask=seen, use_cache=False, **rows).logits[:, -3:].float()

    with evaluating(actor):
        alone, padded = logits(9), logits(0)
    # every row must differ: rounding may send a token of one to another expert
    return bool((padded - alone).abs().amax((1, 2)).min() > 1e-3 * alone.std())


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Puts a network into evaluation mode, and each of its modules back into its own."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def has_adapters(network: nn.Module) -> bool:
    """Whether a network is a frozen base with LoRA adapters."""
    return any(".lora_" in name for name, _ in network.named_parameters())


def base_weights(network: nn.Module) -> dict[str, Tensor]:
    """The weights that no file of the run holds: with LoRA those of the base, none otherwise."""
    if not has_adapters(network):
        return {}
    head = "head." if isinstance(network, ValueModel) else ".lora_"
    state = network.state_dict()
    return {n: w for n, w in state.items() if ".lora_" not in n and not n.startswith(head)}


def own_weights(network: nn.Module) -> dict[str, Tensor]:
    """The weights that are a network's own: all, or with LoRA those that are not its base's."""
    base = base_weights(network)
    return {name: w for name, w in network.state_dict().items() if name not in base}


def broken_weight(weights: Mapping[str, Any]) -> str | None:
    """The name of the first tensor that is not finite; `None` if all are.

    Example:
        >>> broken_weight({"a": torch.ones(2), "b": torch.tensor([1.0, torch.nan])})
        'b'
    """
    tensors = ((name, w) for name, w in weights.items() if isinstance(w, Tensor))
    return next((name for name, w in tensors if not bool(w.isfinite().all())), None)


def policy_outputs(
    actor: nn.Module,
    rollout: RolloutBatch,
    temperature: float = 1.0,
    entropy: Entropy = "none",
    chunk: int | None = None,
) -> PolicyOutputs:
    """Scores the sampled tokens with `actor`.

    Prompt logits are never computed, and where logits are a function of the last hidden state (see
    `logits_head`), those of the response exist in blocks only, again in the backward pass.

    Args:
        actor: A causal language model.
        rollout: B rows.
        temperature: The sampling temperature; log-probs are those of the sampled distribution.
        entropy: "none", "detached" (for the log) or "grad" (for the entropy bonus).
        chunk: Positions whose logits exist at once; `None` takes 32 MiB of them, at least 256.
    """
    return through(actor, _policy_outputs, rollout, temperature, entropy, chunk)


def _policy_outputs(
    actor: nn.Module,
    rollout: RolloutBatch,
    temperature: float,
    entropy: Entropy,
    chunk: int | None,
) -> PolicyOutputs:
    inputs, keep = _inputs(rollout)
    ids = rollout.response_ids[:, :keep]
    head = logits_head(actor)
    if head is not None:
        hidden = actor.base_model(use_cache=False, **inputs).last_hidden_state  # type: ignore[operator]
        vocab = actor.get_output_embeddings().weight.shape[0]  # type: ignore[operator]
        size = chunk or max(BLOCK // vocab, LEAST)
        logprobs, h = hidden_logprobs_and_entropy(
            hidden[:, -keep - 1 : -1], head, ids, temperature, entropy, size
        )
    else:
        # the last state predicts nothing that was sampled; it is scored all the same, since the
        # backward pass of a slice would copy the gradient of all logits
        logits = actor(use_cache=False, logits_to_keep=keep + 1, **inputs).logits
        ids = nn.functional.pad(ids, (0, 1))
        logprobs, h = logprobs_and_entropy(logits, ids, temperature, entropy, chunk)
        logprobs, h = logprobs[:, :-1], None if h is None else h[:, :-1]
    return PolicyOutputs(_widen(logprobs, rollout), None if h is None else _widen(h, rollout))


def through(network: nn.Module, function: Callable[..., Result], *args: Any) -> Result:
    """`function(network, *args)`, inside the network's forward pass if it is sharded.

    A function that calls parts of a network would pass by the hooks of the whole, in which FSDP2
    gathers embeddings and head.
    """
    run = getattr(network, "run_inside", None)
    return function(network, *args) if run is None else run(function, *args)


def logits_head(actor: nn.Module) -> Head | None:
    """What makes logits (N, V) of the last hidden states (N, H) of `actor`, or `None`.

    Its output embeddings where these are all, and what its `forward` does around them where it
    scales or caps the logits. `None` where the states reach the head otherwise. A network that is
    to be sharded must be asked before, and keeps its answer.
    """
    if actor not in _heads:
        _heads[actor] = _find_head(actor)
    return _heads[actor]


class _Layers(nn.Module):
    """Stands in for the layers of a model: passes on the states it is given as embeddings."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Output:
        return _Output(inputs_embeds)

    @property
    def decoder(self) -> _Layers:  # what OPT and its like call themselves
        return self


class _Output:
    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, item: int) -> Tensor:
        return (self.last_hidden_state,)[item]

    def __getattr__(self, name: str) -> None:
        return None  # caches, attentions, router logits: whatever an architecture may have


@torch.no_grad()
def _find_head(actor: nn.Module) -> Head | None:
    if not isinstance(actor, PreTrainedModel) or actor.base_model is actor:
        return None
    head: Any = actor.get_output_embeddings()
    if type(getattr(head, "weight", None)) is not nn.Parameter:  # none, or sharded
        return None
    view = copy.copy(actor)  # the actor's own head and settings around no layers
    view._modules = {**actor._modules, actor.base_model_prefix: _Layers()}

    def around(states: Tensor) -> Tensor:
        # without the hooks that the actor has, or gets when it is sharded
        return view.forward(inputs_embeds=states[None], use_cache=False).logits[0]

    seen: list[Tensor] = []
    vocab, width = head.weight.shape
    like = {"dtype": head.weight.dtype, "device": head.weight.device}
    states = torch.linspace(-9.0, 9.0, 3 * width, **like).view(3, width)
    scores = torch.linspace(-99.0, 99.0, 3 * vocab, **like).view(3, vocab)

    def replace(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        seen.append(inputs[0][0])
        return scores[None] if len(seen) == 1 else scores[None, 1:2]

    hook = head.register_forward_hook(replace)
    try:
        logits, middle = around(states), around(states[1:2])
    except (AttributeError, TypeError):  # reads more of its layers than their output
        return None
    finally:
        hook.remove()
    if not (torch.equal(seen[0], states) and torch.equal(logits[1:2], middle)):
        return None
    return head if torch.equal(logits, scores) else around


def state_values(critic: nn.Module, rollout: RolloutBatch) -> Tensor:
    """(B, T) float32: V(s_t) before each sampled token; 0 on padding."""
    return values_and_after(critic, rollout)[0]


def values_and_after(critic: nn.Module, rollout: RolloutBatch) -> tuple[Tensor, Tensor]:
    """Values of the states of a rollout, the one behind its last token included.

    Returns:
        (B, T) float32, V(s_t) before each sampled token and 0 on padding; and (B,) float32, V of
        the state after the last one.
    """
    inputs, keep = _inputs(rollout)
    values = critic(**inputs)[:, -keep - 1 :]
    after = values.gather(1, rollout.lengths[:, None]).squeeze(1)
    return _widen(values[:, :-1], rollout), after


def _inputs(rollout: RolloutBatch) -> tuple[dict[str, Tensor], int]:
    first, keep = trim(rollout)
    ids = torch.cat([rollout.prompt_ids[:, first:], rollout.response_ids[:, :keep]], dim=1)
    mask = torch.cat([rollout.prompt_mask[:, first:], rollout.response_mask[:, :keep]], dim=1)
    # positions are passed because not every architecture infers them from a left-padded mask
    inputs = {"input_ids": ids, "attention_mask": mask.long(), "position_ids": position_ids(mask)}
    return inputs, keep


def _widen(x: Tensor, rollout: RolloutBatch) -> Tensor:
    width = rollout.response_mask.shape[1]
    x = nn.functional.pad(x, (0, width - x.shape[1]))
    return zero_outside(x, rollout.response_mask)
