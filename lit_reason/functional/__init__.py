r"""Pure tensor functions: the equations of the papers, one function each.

No modules, no configuration, no logging. Every mask is boolean with True = counts; every
statistic is float32 or better; bad input raises ``ValueError`` naming the argument and its shape.
To see what its tensors hold a call waits for the device once (:func:`explained_variance` twice),
and not at all inside :func:`unchecked_values`.

Advantages (`advantages`)
    * :func:`outcome_to_tokens`: reward on the last token, DeepSeekMath Eq. 2
    * :func:`kl_penalised_rewards`: k1 in the reward, DeepSeekMath Eq. 2
    * :func:`gae`: GAE Eq. 16, VAPO Eq. 3
    * :func:`length_adaptive_lambda`: VAPO Eq. 4-5

What advantages are made of (`critic`)
    * :func:`advantage_parts`, :func:`reward_share`: rewards and critic, apart
    * :func:`effective_horizon`: how far λ looks, VAPO Eq. 4

Group-relative advantages (`groups`)
    * :func:`group_relative`: GRPO 4.1.2, DAPO Eq. 9, Dr. GRPO
    * :func:`group_relative_process`: GRPO 4.1.3

Per-token losses (`losses`)
    * :func:`clipped_surrogate`, :func:`clip_masks`: PPO Eq. 7, DAPO Eq. 8, dual clip
    * :func:`value_loss`: VC-PPO Algorithm 1
    * :func:`kl_k1`, :func:`kl_k2`, :func:`kl_k3`: Schulman's estimators; k3 = DeepSeekMath Eq. 4
    * :func:`nll`: VAPO Eq. 9

Aggregation (`aggregation`)
    * :func:`token_weights`, :func:`token_mean`: DAPO Eq. 8, VAPO Eq. 8
    * :func:`sequence_weights`, :func:`sequence_mean`: DeepSeekMath Eq. 3
    * :func:`prompt_weights`, :func:`prompt_mean`: DAPO Eq. 8 per prompt
    * :func:`constant_weights`, :func:`constant_mean`: Dr. GRPO
    * :func:`aggregate`: weighted sum over a global count; independent of the split

Engines apart from the trainer (`mismatch`)
    * :func:`importance_weights`: truncated and masked importance sampling

Masked statistics (`masked`)
    * :func:`zero_outside`, :func:`masked_sum`, :func:`masked_mean`: the masking primitives
    * :func:`masked_whiten`: batch-level advantage normalisation
    * :func:`explained_variance`: quality of the critic, VC-PPO 4.1

Tokens (`tokens`)
    * :func:`position_ids`, :func:`response_mask`: positions and masks, never from the pad id
    * :func:`last_token`, :func:`relative_position`: where a token stands in its response
    * :func:`logprobs_and_entropy`, :func:`hidden_logprobs_and_entropy`: chunked scoring

Length rewards (`rewards`)
    * :func:`soft_overlong`: DAPO Eq. 13
    * :func:`kimi_length`: Kimi k1.5

Evaluation (`evaluation`)
    * :func:`mean_at_k`, :func:`pass_at_k`, :func:`majority_at_k`: avg@k, Codex Eq. 1, cons@k
    * :func:`majority_of_classes`: cons@k of many problems at once
    * :func:`bootstrap_interval`: percentile bootstrap over problems

Checks (`_checks`)
    * :func:`unchecked_values`: leaves out the checks of what tensors hold
"""

from lit_reason.functional._checks import unchecked_values
from lit_reason.functional.advantages import (
    gae,
    kl_penalised_rewards,
    length_adaptive_lambda,
    outcome_to_tokens,
)
from lit_reason.functional.aggregation import (
    WeightsAndCount,
    aggregate,
    constant_mean,
    constant_weights,
    prompt_mean,
    prompt_weights,
    sequence_mean,
    sequence_weights,
    token_mean,
    token_weights,
)
from lit_reason.functional.critic import advantage_parts, effective_horizon, reward_share
from lit_reason.functional.evaluation import (
    bootstrap_interval,
    majority_at_k,
    majority_of_classes,
    mean_at_k,
    pass_at_k,
)
from lit_reason.functional.groups import group_relative, group_relative_process
from lit_reason.functional.losses import (
    clip_masks,
    clipped_surrogate,
    kl_k1,
    kl_k2,
    kl_k3,
    nll,
    value_loss,
)
from lit_reason.functional.masked import (
    Reduce,
    explained_variance,
    masked_mean,
    masked_sum,
    masked_whiten,
    zero_outside,
)
from lit_reason.functional.mismatch import Cut, Level, importance_weights
from lit_reason.functional.rewards import kimi_length, soft_overlong
from lit_reason.functional.tokens import (
    EntropyMode,
    hidden_logprobs_and_entropy,
    last_token,
    logprobs_and_entropy,
    position_ids,
    relative_position,
    response_mask,
)

__all__ = [
    "Cut",
    "EntropyMode",
    "Level",
    "Reduce",
    "WeightsAndCount",
    "advantage_parts",
    "aggregate",
    "bootstrap_interval",
    "clip_masks",
    "clipped_surrogate",
    "constant_mean",
    "constant_weights",
    "effective_horizon",
    "explained_variance",
    "gae",
    "group_relative",
    "group_relative_process",
    "hidden_logprobs_and_entropy",
    "importance_weights",
    "kimi_length",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "kl_penalised_rewards",
    "last_token",
    "length_adaptive_lambda",
    "logprobs_and_entropy",
    "majority_at_k",
    "majority_of_classes",
    "masked_mean",
    "masked_sum",
    "masked_whiten",
    "mean_at_k",
    "nll",
    "outcome_to_tokens",
    "pass_at_k",
    "position_ids",
    "prompt_mean",
    "prompt_weights",
    "relative_position",
    "response_mask",
    "reward_share",
    "sequence_mean",
    "sequence_weights",
    "soft_overlong",
    "token_mean",
    "token_weights",
    "unchecked_values",
    "value_loss",
    "zero_outside",
]
