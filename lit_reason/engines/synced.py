"""What engines with weights of their own have in common: they are sent the policy's, and probed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from lit_reason.batch import Group, Prompt, Response, RolloutBatch
from lit_reason.engines.weights import Named, policy_weights
from lit_reason.errors import ConfigError
from lit_reason.functional import masked_mean, zero_outside
from lit_reason.rollout import RolloutEngine, Sampling, check_responses
from lit_reason.verdict import Status, Verdict

PROBE = 32  # tokens of the probe's response
EXACT, ROUNDED = 1e-3, 0.05  # tolerances in float32 and in half precision, nats


class SyncedEngine(RolloutEngine):
    """Samples from a copy of the policy, which it is sent whenever the policy has changed.

    After each transfer every copy samples one short response, and the mean difference between its
    log-probabilities and the trainer's must not exceed `tolerance`: a copy that did not take the
    weights would sample from an old policy without a word.

    Args:
        tolerance: Largest mean |Δ log-prob| of the probe's tokens, in nats; null is 1e-3 where
            trainer and engine compute in float32, 0.05 otherwise.

    Attributes:
        context: Most tokens of prompt and response together that the copies take; `None` while it
            is not known.
    """

    context: int | None = None

    def __init__(self, tolerance: float | None = None) -> None:
        if tolerance is not None and not tolerance > 0:
            raise ConfigError(f"data.engine.tolerance={tolerance}: must be above 0, or null")
        self.tolerance = tolerance
        self.pushed: int | None = None  # the policy version of the copy

    def bind(self, module: Any) -> None:
        """See `RolloutEngine.bind`; whatever the stage does to the weights, they are sent anew."""
        super().bind(module)
        self.pushed = None

    def generate(
        self, prompts: Sequence[list[int]], samples: int, sampling: Sampling, seed: int
    ) -> list[list[Response]]:
        """See `RolloutEngine.generate`."""
        with torch.no_grad(), self._awake():
            self._check_room(max(map(len, prompts)), sampling.max_new_tokens)
            self._sync(prompts[0], sampling)
            return self._generate(prompts, samples, sampling, seed)

    # --- what an engine is --------------------------------------------------------------------

    @abstractmethod
    def _push(self, weights: Iterator[Named]) -> None:
        """Gives every copy the weights, and forgets what it has cached of others."""

    @abstractmethod
    def _generate(
        self, prompts: Sequence[list[int]], samples: int, sampling: Sampling, seed: int
    ) -> list[list[Response]]:
        """Samples from the copies as they are."""

    @abstractmethod
    def _sample_each(self, prompt: list[int], sampling: Sampling) -> list[Response]:
        """One response of each copy."""

    @property
    @abstractmethod
    def precision(self) -> str:
        """What the copies compute in: float32, bfloat16 or float16."""

    def _awake(self) -> AbstractContextManager[Any]:
        """Holds while the copies are needed."""
        return nullcontext()

    def _check_room(self, prompt: int, budget: int) -> None:
        """Refuses what vLLM would cut off without a word, so that the budget was another."""
        if self.context is not None and prompt + budget > self.context:
            raise ConfigError(
                f"data.engine={type(self).__name__}: takes {self.context} tokens, and a prompt of "
                f"{prompt} and max_new_tokens={budget} are more; lower it, or {self._more_room}"
            )

    _more_room = "give the engine a longer context"

    # --- from trainer to engine ---------------------------------------------------------------

    def _sync(self, prompt: list[int], sampling: Sampling) -> None:
        version = self.module.policy_version
        if self.pushed == version:
            return
        self._push(policy_weights(self.module.actor))
        # the whole distribution, as the trainer scores it, at the temperature that is trained
        budget = min(PROBE, sampling.max_new_tokens)
        probe = Sampling(sampling.temperature or 1.0, max_new_tokens=budget)
        responses = self._sample_each(prompt, probe)
        vocabulary = self.module.backbone.config.get_text_config().vocab_size
        counts = 1, len(responses)
        check_responses(type(self).__name__, [responses], counts, probe, vocabulary)
        apart = self._apart(prompt, responses, probe.temperature)
        if not apart <= self._tolerance:
            raise ConfigError(
                f"data.engine.tolerance={self._tolerance:g}: after the weights of rollout {version}"
                f" were sent, log-probs of {type(self).__name__} are {apart:.3g} from the "
                "trainer's; the engine did not take them, or has another temperature or precision: "
                f"{self._advice}"
            )
        self.pushed = version

    _advice = "set data.engine.dtype=float32 to find out, or raise the tolerance"

    @property
    def _tolerance(self) -> float:
        if self.tolerance is not None:
            return self.tolerance
        trainer = str(self.module.trainer.precision)
        exact = self.precision == "float32" and trainer.startswith("32")
        return EXACT if exact else ROUNDED

    def _apart(self, prompt: list[int], responses: list[Response], temperature: float) -> float:
        """Mean |Δ log-prob| of the response that is furthest from the trainer's."""
        count = len(responses)
        group = Group(
            Prompt(0, "", ""), prompt, responses, [Verdict(Status.UNJUDGED)] * count, [0.0] * count
        )
        pad = self.module.backbone.tokenizer.pad_token_id
        batch = RolloutBatch.from_groups([group], pad, temperature=temperature)
        batch = batch.to(self.module.device)
        with self.module.trainer.precision_plugin.forward_context():
            own = self.module.score(self.module.actor, batch).logprobs
        assert batch.sampled_logprobs is not None
        apart = zero_outside((own - batch.sampled_logprobs).abs(), batch.response_mask)
        return float(masked_mean(apart, batch.response_mask, dim=1).max())
