"""Importance weights in the policy term, for engines whose log-probs are not the trainer's."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from lit_reason.batch import Experience
from lit_reason.errors import ConfigError, ConfigWarning, require_float32
from lit_reason.functional import importance_weights


@dataclass(frozen=True)
class Correction:
    """Weighs the policy loss by the trainer's probability of a token over the engine's.

    Attributes:
        cap: C: larger ratios are cut.
        level: A ratio for each "token", or one for each response, the product ("sequence").
        cut: "truncate" makes ratios above `cap` equal to it; "mask" drops their tokens from the
            loss, which are still counted.
    """

    cap: float = 2.0
    level: Literal["token", "sequence"] = "token"
    cut: Literal["truncate", "mask"] = "truncate"

    def __post_init__(self) -> None:
        key = "model.policy.correction.cap"
        require_float32(key, self.cap, ", for example 2")
        if self.cap < 1:
            done = f"scaled down to {self.cap}" if self.cut == "truncate" else "dropped"
            warnings.warn(
                f"{key}={self.cap}: is below 1, so even tokens of the same probability in trainer "
                f"and engine are {done}; choose 1 or more, for example 2",
                ConfigWarning,
                stacklevel=3,
            )

    def weights(self, experience: Experience) -> Tensor:
        """(B, T) weights of the sampled tokens, 0 elsewhere.

        Raises:
            ConfigError: The engine does not say with what probability it drew.
        """
        rollout, old = experience.rollout, experience.old_logprobs
        if rollout.sampled_logprobs is None:
            raise ConfigError(
                "model.policy.correction: data.engine returns no log-probs; let it set "
                "Response.logprobs, or set the correction to null"
            )
        assert old is not None
        return importance_weights(
            old, rollout.sampled_logprobs, rollout.policy_mask, self.cap, self.level, self.cut
        )
