"""The loss terms of the actor and the critic.

A term gives a loss for every token and the tokens it counts; the `Learner` weighs, normalises and
sums. One normaliser for each term and optimizer step, over all micro-batches and ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from torch import Tensor

from lit_reason.aggregation import Aggregation, TokenMean
from lit_reason.batch import Experience
from lit_reason.correction import Correction
from lit_reason.errors import ConfigError, require_float32
from lit_reason.functional import (
    clip_masks,
    clipped_surrogate,
    kl_k1,
    kl_k2,
    kl_k3,
    nll,
    value_loss,
)


class LossTerm(ABC):
    """One term of a network's loss, `coef * aggregate(loss(...), mask(...))`.

    Args:
        coef: Weight of the term; 0 is refused, drop the term instead.
        aggregation: How token losses become one number; `None` takes that of the policy term.
    """

    network: ClassVar[str] = "actor"  # whose outputs it reads: "actor" or "critic"
    uses_advantages: ClassVar[bool] = True  # a policy term must
    needs_reference: ClassVar[bool] = False
    needs_entropy: ClassVar[bool] = False

    def __init__(self, coef: float = 1.0, aggregation: Aggregation | None = None) -> None:
        require_float32(f"{type(self).__name__}.coef", coef, "; set the term to null for none")
        self.coef = coef
        self.aggregation = aggregation

    def mask(self, experience: Experience) -> Tensor:
        """(B, T) bool: the tokens this term counts."""
        return experience.rollout.loss_mask

    @abstractmethod
    def loss(self, experience: Experience, outputs: Any) -> Tensor:
        """(B, T): the loss of each token, minimised.

        Args:
            experience: Rows of the mini-batch.
            outputs: `PolicyOutputs` for the actor; (B, T) values for the critic.
        """

    def stats(self, experience: Experience, outputs: Any) -> dict[str, Tensor]:
        """Per-token quantities (B, T) to log, averaged over `mask`."""
        return {}


class ClippedSurrogate(LossTerm):
    r"""PPO's clipped surrogate with separate bounds (clip-higher, DAPO Eq. 8).

    .. math:: -\min(r_t A_t, \mathrm{clip}(r_t, 1 - \varepsilon_{low}, 1 + \varepsilon_{high}) A_t)

    Args:
        clip_low: ε_low.
        clip_high: ε_high; equal to ε_low in PPO and GRPO, larger in DAPO and VAPO.
        dual_clip: Upper bound c on the loss of a token with A < 0, as a multiple of |A|; `None`
            leaves it unbounded, as in the papers.
        aggregation: How token losses become one number; `None` is `TokenMean`.
        correction: Weighs each token's loss by the trainer's probability over the engine's, up to a
            cap; `None` does not. Of use where the engine computes otherwise than the trainer.
    """

    def __init__(
        self,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        dual_clip: float | None = None,
        aggregation: Aggregation | None = None,
        correction: Correction | None = None,
    ) -> None:
        super().__init__(1.0, aggregation or TokenMean())
        if not (0 < clip_low <= 1 and clip_high > 0):
            raise ConfigError(
                f"model.policy.clip_low={clip_low}, clip_high={clip_high}: need 0 < clip_low <= 1 "
                "and clip_high > 0; for example 0.2 and 0.28"
            )
        require_float32("model.policy.clip_low", clip_low, ", for example 0.2")
        require_float32("model.policy.clip_high", clip_high, ", for example 0.28", unbounded=True)
        require_float32("model.policy.dual_clip", dual_clip, ", for example 3", unbounded=True)
        if dual_clip is not None and not dual_clip > 1:
            raise ConfigError(f"model.policy.dual_clip={dual_clip}: must be above 1, for example 3")
        self.clip_low, self.clip_high, self.dual_clip = clip_low, clip_high, dual_clip
        self.correction = correction

    def loss(self, experience: Experience, outputs: Any) -> Tensor:
        """See `LossTerm.loss`."""
        loss = clipped_surrogate(*self._inputs(experience, outputs))
        return loss if self.correction is None else loss * self.correction.weights(experience)

    def stats(self, experience: Experience, outputs: Any) -> dict[str, Tensor]:
        """Clip fractions by bound, mean ratio and the k3 estimate of KL(old ‖ new).

        With a correction also its mean weight, and the share of tokens whose ratio it cut.
        """
        inputs = self._inputs(experience, outputs)
        low, high, dual = clip_masks(*inputs)
        new, old = inputs[0].detach(), inputs[1]
        stats = {
            "clip_fraction_low": low.float(),
            "clip_fraction_high": high.float(),
            "ratio": (new - old).exp(),
            "approx_kl": kl_k3(old, new),
        }
        if self.dual_clip is not None:
            stats["clip_fraction_dual"] = dual.float()
        if self.correction is not None:
            weights = self.correction.weights(experience)
            cut = (weights == 0) | (weights == self.correction.cap)
            stats |= {"correction_weight": weights, "correction_cut": cut.float()}
        return stats

    def _inputs(self, experience: Experience, outputs: Any) -> tuple[Any, ...]:
        old, advantages = experience.old_logprobs, experience.advantages
        bounds = self.clip_low, self.clip_high, self.dual_clip
        return outputs.logprobs, old, advantages, *bounds


class ValueLoss(LossTerm):
    r"""Half the squared error to the return, optionally clipped around the old value.

    .. math:: \tfrac12 \max[(V - \hat R)^2, (\mathrm{clip}(V, V_{old} \pm c) - \hat R)^2]

    Args:
        clip: c; `None` for the plain error (VC-PPO Alg. 1). Never applied during value warm-up,
            where V has to move far.
        coef: Weight of the term.
        aggregation: How token losses become one number; `None` is `TokenMean`.
    """

    network = "critic"

    def __init__(
        self, clip: float | None = None, coef: float = 1.0, aggregation: Aggregation | None = None
    ) -> None:
        super().__init__(coef, aggregation or TokenMean())
        fix = ", or null for no clipping"
        require_float32("model.value.clip", clip, fix, unbounded=True)
        self.clip = clip

    def mask(self, experience: Experience) -> Tensor:
        """(B, T) bool: the tokens that train the critic."""
        return experience.rollout.value_mask

    def loss(self, experience: Experience, outputs: Any) -> Tensor:
        """See `LossTerm.loss`."""
        assert experience.returns is not None
        return value_loss(outputs, experience.returns, experience.values, self._clip(experience))

    def stats(self, experience: Experience, outputs: Any) -> dict[str, Tensor]:
        """Share of values at which the clipped branch holds."""
        clip = self._clip(experience)
        if clip is None or experience.values is None:
            return {}
        values, old, returns = outputs.detach(), experience.values, experience.returns
        clipped = values.clamp(old - clip, old + clip)
        return {"clip_fraction": ((clipped - returns) ** 2 > (values - returns) ** 2).float()}

    def _clip(self, experience: Experience) -> float | None:
        return None if experience.phase == "value_warmup" else self.clip


class KLToReference(LossTerm):
    """KL(π_θ ‖ π_ref) in the loss (GRPO Eq. 3-4 uses k3).

    Args:
        coef: β.
        estimator: Of the token's KL, with d = log π_ref - log π_θ: k1 = -d, k2 = d²/2,
            k3 = e^d - d - 1. The gradient of k1 has zero mean under the policy: as a loss it only
            adds noise, so it is for comparison.
        aggregation: How token losses become one number; `None` takes that of the policy term.
    """

    uses_advantages = False
    needs_reference = True

    def __init__(
        self,
        coef: float = 0.04,
        estimator: Literal["k1", "k2", "k3"] = "k3",
        aggregation: Aggregation | None = None,
    ) -> None:
        super().__init__(coef, aggregation)
        self.estimator = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}[estimator]

    def loss(self, experience: Experience, outputs: Any) -> Tensor:
        """See `LossTerm.loss`."""
        assert experience.ref_logprobs is not None
        return self.estimator(outputs.logprobs, experience.ref_logprobs)


class EntropyBonus(LossTerm):
    """Minus the entropy of the policy at each sampled position.

    Args:
        coef: Weight of the bonus.
        aggregation: How token losses become one number; `None` takes that of the policy term.
    """

    uses_advantages = False
    needs_entropy = True

    def __init__(self, coef: float = 0.001, aggregation: Aggregation | None = None) -> None:
        super().__init__(coef, aggregation)

    def loss(self, experience: Experience, outputs: Any) -> Tensor:
        """See `LossTerm.loss`."""
        return -outputs.entropy


class PositiveExampleLM(LossTerm):
    r"""Next-token loss on the correct responses (VAPO Eq. 9-10).

    .. math:: -\frac{\mu}{\sum_{o_i \in \mathcal T} |o_i|} \sum_{o_i \in \mathcal T} \sum_t
              \log \pi_\theta(o_{i,t})

    𝒯 holds the responses that the task judged correct, whatever their shaped reward. Without one
    in the mini-batch the term is exactly 0.

    Args:
        coef: μ.
    """

    uses_advantages = False
    needs_verdicts = True

    def __init__(self, coef: float = 0.1) -> None:
        super().__init__(coef, TokenMean())

    def mask(self, experience: Experience) -> Tensor:
        """(B, T) bool: training tokens of correct responses."""
        rollout = experience.rollout
        return rollout.loss_mask & rollout.correct[:, None]

    def loss(self, experience: Experience, outputs: Any) -> Tensor:
        """See `LossTerm.loss`."""
        return nll(outputs.logprobs)
