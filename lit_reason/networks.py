"""The two networks and their forward passes over a rollout: policy log-probs and state values."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from lit_reason.batch import RolloutBatch, trim
from lit_reason.functional import logprobs_and_entropy, position_ids

Entropy = Literal["none", "detached", "grad"]


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
    """

    def __init__(self, base: PreTrainedModel) -> None:
        super().__init__()
        self.base = base
        self.head = nn.Linear(base.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, **inputs: Tensor) -> Tensor:
        """(B, S) values of the states after each input token, in float32."""
        hidden = self.base(use_cache=False, **inputs).last_hidden_state
        with torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden.float(), self.head.weight, self.head.bias).squeeze(-1)


def policy_outputs(
    actor: nn.Module,
    rollout: RolloutBatch,
    temperature: float = 1.0,
    entropy: Entropy = "none",
    chunk: int | None = None,
) -> PolicyOutputs:
    """Scores the sampled tokens with `actor`.

    Prompt logits are never computed: only the T + 1 last positions are asked for.

    Args:
        actor: A causal language model.
        rollout: B rows.
        temperature: The sampling temperature; log-probs are those of the sampled distribution.
        entropy: "none", "detached" (for the log) or "grad" (for the entropy bonus).
        chunk: Positions per block of the vocabulary reduction; see `logprobs_and_entropy`.
    """
    inputs, keep = _inputs(rollout)
    logits = actor(use_cache=False, logits_to_keep=keep + 1, **inputs).logits[:, :-1]
    ids = rollout.response_ids[:, :keep]
    logprobs, h = logprobs_and_entropy(logits, ids, temperature, entropy=entropy, chunk=chunk)
    return PolicyOutputs(_widen(logprobs, rollout), None if h is None else _widen(h, rollout))


def state_values(critic: nn.Module, rollout: RolloutBatch) -> Tensor:
    """(B, T) float32: V(s_t) before each sampled token; 0 on padding."""
    inputs, keep = _inputs(rollout)
    return _widen(critic(**inputs)[:, -keep - 1 : -1], rollout)


def _inputs(rollout: RolloutBatch) -> tuple[dict[str, Tensor], int]:
    first, keep = trim(rollout)
    ids = torch.cat([rollout.prompt_ids[:, first:], rollout.response_ids[:, :keep]], dim=1)
    mask = torch.cat([rollout.prompt_mask[:, first:], rollout.response_mask[:, :keep]], dim=1)
    # positions are passed because not every architecture infers them from a left-padded mask
    inputs = {"input_ids": ids, "attention_mask": mask.long(), "position_ids": position_ids(mask)}
    return inputs, keep


def _widen(x: Tensor, rollout: RolloutBatch) -> Tensor:
    width = rollout.response_mask.shape[1]
    x = F.pad(x, (0, width - x.shape[1]))
    return torch.where(rollout.response_mask, x, torch.zeros_like(x))
