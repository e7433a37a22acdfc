"""Cross-checks of a module's parts, made before any model is loaded."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from lit_reason.advantages import GroupRelative
from lit_reason.errors import ConfigError, ConfigWarning, require_at_least_one, warn_of_no_effect

if TYPE_CHECKING:
    from lit_reason.data import RolloutDataModule
    from lit_reason.module import ReasonModule


def check_parts(module: ReasonModule) -> None:
    """Refuses parts that do not fit together, and parts that would have no effect.

    Raises:
        ConfigError: The first such part.
    """
    _check_slots(module)
    _check_critic(module)
    _check_reference(module)
    if module.policy.aggregation is None:
        raise ConfigError(
            "model.policy.aggregation=null: the policy term needs one, for example TokenMean"
        )
    for name in module.terms:
        if name in ("policy", "value", "loss"):
            raise ConfigError(
                f"model.terms.{name}: the name is taken; choose another, like my_{name}"
            )
        if not name.isidentifier():
            raise ConfigError(f"model.terms.{name}: use letters, digits and _ in a name")


def _check_slots(module: ReasonModule) -> None:
    """Refuses loss terms that do not read what their place gives them."""
    actors = {"policy": module.policy, **{f"terms.{k}": t for k, t in module.terms.items()}}
    for key, term in actors.items():
        if term.network != "actor":
            raise ConfigError(
                f"model.{key}={type(term).__name__}: a loss of the critic; set it as model.value"
            )
    if module.value is not None and module.value.network != "critic":
        raise ConfigError(
            f"model.value={type(module.value).__name__}: a loss of the actor; choose ValueLoss"
        )
    if not module.policy.uses_advantages:
        raise ConfigError(
            f"model.policy={type(module.policy).__name__}: does not use the advantages; choose "
            "ClippedSurrogate, and set it as one of model.terms"
        )


def _check_critic(module: ReasonModule) -> None:
    estimator = type(module.advantage).__name__
    if module.advantage.needs_critic and module.value is None:
        raise ConfigError(
            f"model.value=null: model.advantage={estimator} needs a critic; set model.value to "
            "ValueLoss, or model.advantage to GroupRelative"
        )
    if module.value is not None and not module.advantage.needs_critic:
        raise ConfigError(
            f"model.value={type(module.value).__name__}: would have no effect, model.advantage="
            f"{estimator} uses no critic; set model.value to null"
        )


def _check_reference(module: ReasonModule) -> None:
    require_at_least_one("model", logprob_chunk=module.logprob_chunk)
    if not 0 <= module.kl_in_reward < math.inf:
        raise ConfigError(
            f"model.kl_in_reward={module.kl_in_reward}: must be finite and at least 0; a "
            "negative penalty would reward divergence from the reference"
        )
    every = module.reference_refresh
    if every is None:
        return
    if every < 1:
        raise ConfigError(f"model.reference_refresh={every}: must be at least 1 rollout, or null")
    if module.backbone.fixed_reference:
        raise ConfigError(
            f"model.reference_refresh={every}: the reference of model.backbone="
            f"{type(module.backbone).__name__} is the frozen base and cannot follow the actor; "
            "set it to null"
        )
    if not module.needs_reference:
        raise ConfigError(
            f"model.reference_refresh={every}: would have no effect without a reference; add a "
            "KLToReference term, set model.kl_in_reward, or set it to null"
        )


def _warn_of_late_refresh(module: ReasonModule, data: RolloutDataModule) -> None:
    total = (module.trainer.max_epochs or 0) * data.rollouts_per_epoch
    if module.reference_refresh is not None and 0 < total < module.reference_refresh:
        warnings.warn(
            f"model.reference_refresh={module.reference_refresh}: the run has {total} rollouts, so "
            "the reference is never refreshed",
            ConfigWarning,
            stacklevel=2,
        )


def check_sizes(module: ReasonModule, data: RolloutDataModule) -> None:
    """Refuses batch sizes that do not divide, and groups too small for the estimator.

    Raises:
        ConfigError: The first such size.
    """
    if module.value is None:
        sees_all = {"data.critic_sees_all": data.critic_sees_all or None}
        warn_of_no_effect("without a critic", sees_all)
    module.update.check(data.groups_per_rollout * data.group_size)
    _warn_of_late_refresh(module, data)
    if data.group_size == 1 and isinstance(module.advantage, GroupRelative):
        raise ConfigError(
            "data.group_size=1: model.advantage=GroupRelative compares the responses of a group, "
            "and one response has advantage 0; choose at least 2"
        )
    steps = [name for name, term in data.rewards.items() if term.per_token]
    if steps and module.kl_in_reward and isinstance(module.advantage, GroupRelative):
        raise ConfigError(
            f"model.kl_in_reward={module.kl_in_reward}: with the per-token reward {steps[0]!r}, "
            "GroupRelative reads judged steps only and would drop the penalty elsewhere; "
            "set it to 0 and add a KLToReference term"
        )
