"""Cross-checks of a module's parts, made before any model is loaded."""

from __future__ import annotations

import math
import warnings
from collections.abc import Container, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lit_reason.advantages import GroupRelative
from lit_reason.critics import RM
from lit_reason.errors import (
    STILL,
    ConfigError,
    ConfigWarning,
    require_at_least_one,
    require_float32,
    warn_of_no_effect,
)
from lit_reason.restored import CHANGED, is_plain
from lit_reason.rewards import Correctness, Reward

if TYPE_CHECKING:
    from lit_reason.backbones import Backbone
    from lit_reason.callbacks import ValuePretraining
    from lit_reason.data import RolloutDataModule
    from lit_reason.filters import GroupFilter
    from lit_reason.module import ReasonModule

LENGTHS = ("total_iters", "T_max", "step_size")  # of torch's schedules, which checks none of them
FIT = "give the configuration it was written with, RUN_DIR/config.yaml"
OFF_POLICY = (
    "data.engine: its responses are not samples of the policy as it is, so they may train the "
    "critic only; add the callback ValuePretraining, or choose HFEngine"
)


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
    if module.old_logprobs == "engine" and getattr(module.policy, "correction", None) is not None:
        raise ConfigError(
            "model.policy.correction: compares the engine's log-probs with the trainer's, and "
            "model.old_logprobs=engine has no others; set it to trainer, or the correction to null"
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
    require_float32("model.kl_in_reward", module.kl_in_reward or None, ", or 0 for none")
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


def warn_of_rewards(rewards: Mapping[str, Reward], group_filter: GroupFilter | None) -> None:
    """Warns of terms that reward worse responses or cancel, and of a filter that fits none.

    Args:
        rewards: The terms, by name.
        group_filter: The filter, if there is one.
    """
    gains = {}
    for name, term in rewards.items():
        key = f"data.rewards.{name}"
        right, wrong = getattr(term, "right", 1), getattr(term, "wrong", 0)
        if isinstance(term, Correctness):
            gains[key] = term.weight * (right - wrong)
        if not term.directed or term.weight * (right - wrong) >= 0:
            continue
        said, fix = f"weight={term.weight:g}: negative", "set it above 0"
        if term.weight > 0:
            said, fix = f"right={right:g}: below wrong={wrong:g}", "exchange the two"
        text = f"{key}.{said}, so that {type(term).__name__} rewards the worse responses; {fix}"
        warnings.warn(text, ConfigWarning, stacklevel=2)
    if len(gains) > 1 and math.isclose(sum(gains.values()), 0, abs_tol=STILL):
        text = f"{', '.join(gains)}: cancel, so that the verdict does not count; set one to null"
        warnings.warn(text, ConfigWarning, stacklevel=2)
    reads = any(term.reads_verdicts for term in rewards.values())
    if group_filter is not None and group_filter.needs_verdicts and not reads:
        warnings.warn(
            f"data.group_filter={type(group_filter).__name__}: reads verdicts, and no term of "
            "data.rewards does; add Correctness, or set it to null",
            ConfigWarning,
            stacklevel=2,
        )


def check_samples(module: ReasonModule, data: RolloutDataModule) -> None:
    """Refuses responses of another policy where this one would train on them.

    Raises:
        ConfigError: No callback keeps the actor waiting for the whole run.
    """
    callbacks: list[Any] = module.trainer.callbacks  # type: ignore[attr-defined]
    waits = sum(getattr(callback, "actor_waits", 0) for callback in callbacks)
    total = (module.trainer.max_epochs or 0) * data.rollouts_per_epoch
    if not data.engine.on_policy and waits < max(total, 1):
        raise ConfigError(OFF_POLICY)
    if module.value is not None and module.backbone.critic_init == RM and not waits:
        raise ConfigError(
            "model.backbone.critic_init=rm: only a value warm-up teaches the outcome at the last "
            "token; add callbacks.value_warmup=ValueWarmup, or choose policy"
        )


def warn_of_sizes(module: ReasonModule, data: RolloutDataModule) -> None:
    """Warns of what a run of this length, or one without a critic, does not do."""
    if module.value is None:
        sees_all = {"data.critic_sees_all": data.critic_sees_all or None}
        warn_of_no_effect("without a critic", sees_all, "false")
        warn_of_no_critic(module.backbone, "without a critic")
    total = (module.trainer.max_epochs or 0) * data.rollouts_per_epoch
    if module.reference_refresh is not None and 0 < total < module.reference_refresh:
        warnings.warn(
            f"model.reference_refresh={module.reference_refresh}: the run has {total} rollouts, so "
            "the reference is never refreshed",
            ConfigWarning,
            stacklevel=2,
        )


def warn_of_no_critic(backbone: Backbone, why: str) -> None:
    """Warns of what a backbone would only do to a critic.

    Args:
        backbone: Of a module that has none.
        why: Ends the sentence "has no effect ...".
    """
    start, share = backbone.critic_init, getattr(backbone, "share", True)
    given = {"model.backbone.critic_init": None if start == "policy" else start}
    warn_of_no_effect(why, given, "policy")
    warn_of_no_effect(why, {"model.backbone.share": None if share else "false"}, "true")


def warn_of_demonstrations(data: RolloutDataModule, flags: Mapping[str, str]) -> None:
    """Warns of flags that change the demonstrations of a cold start only.

    Args:
        data: With the tasks.
        flags: The command line.
    """
    for name in ("task", "val_task"):
        keys = [f"data.{name}.{argument}" for argument in getattr(data, name).of_demonstrations]
        given = {key: flags[key] for key in keys if key in flags}
        warn_of_no_effect("outside cold_start", given, "its default")


def warn_of_frozen_policy(
    module: ReasonModule,
    stage: ValuePretraining,
    watched: bool,
    flags: Mapping[str, str],
    continued: bool = False,
) -> None:
    """Warns of what a run whose policy never trains does not read.

    Settings of the module stand in files for runs that train both networks, so that of them only
    the command line counts.

    Args:
        module: With the sizes of the updates.
        stage: What keeps the policy as it is.
        watched: A callback shows the advantages that nothing learns from.
        flags: The command line.
        continued: The policy is that of a checkpoint, which may be another one than the reference.
    """
    unread = ["policy", "terms", "actor_scheduler", "old_logprobs", "reference_refresh"]
    unread += ["advantage.lam_critic"]
    if not watched:
        unread += [f"advantage.{name}" for name in ("lam_policy", "alpha", "lambda_min", "whiten")]
    if module.update.critic_epochs is not None:
        unread.append("update.epochs")
    if module.kl_in_reward and not continued:
        unread.append("kl_in_reward")
    actor, critic = (module.optimizer_factories[name] for name in ("actor", "critic"))
    if actor is not critic:
        unread.append("actor_optimizer")
    given = {
        key: value
        for key, value in flags.items()
        if value != "null" and any(f"{key}.".startswith(f"model.{name}.") for name in unread)
    }
    warn_of_no_effect("while the policy never trains", given, "its default")
    usual = signature(type(stage).__init__).parameters["min_delta"].default
    if stage.patience is None and stage.min_delta != usual:
        rise = {"ValuePretraining.min_delta": stage.min_delta}
        warn_of_no_effect("without a patience", rise, str(usual))


def check_schedule(key: str, schedule: Any, steps: int) -> None:
    """Refuses a schedule that ends before the run does, or that has no length.

    Args:
        key: Where it is configured.
        schedule: A learning-rate schedule.
        steps: Those it will take; 0 if that is not known.

    Raises:
        ConfigError: It raises an error of its own after fewer, as `OneCycleLR` does; or a length is
            below 1, with which torch makes other rates than anybody means, or divides by it.
    """
    lengths = LENGTHS if type(schedule).__module__ == "torch.optim.lr_scheduler" else ()
    for name in lengths:
        if not getattr(schedule, name, 1) >= 1:
            raise ConfigError(f"{key}.{name}={getattr(schedule, name)}: must be at least 1")
    total = getattr(schedule, "total_steps", None)
    if isinstance(total, int) and total < steps:
        raise ConfigError(
            f"{key}.total_steps={total}: the run steps the schedule {steps} times; raise it to "
            f"{steps}, or shorten the run"
        )


def check_weights(
    given: Mapping[str, Any], own: Mapping[str, Tensor], fixed: Container[str] = ()
) -> None:
    """Refuses a checkpoint that leaves weights of a network as they were made, or fits another.

    Args:
        given: The weights in the checkpoint.
        own: Those of the networks.
        fixed: Names of those that a checkpoint need not bring; it need bring none of the reference.

    Raises:
        ConfigError: A network is missing, or a weight of one is, or is none of it.
    """
    held = {name.split(".")[0] for name in given}
    optional = "reference" not in held
    missing = sorted(
        name
        for name in own
        if name not in given
        and name not in fixed
        and not (optional and name.startswith("reference."))
    )
    for network in dict.fromkeys(name.split(".")[0] for name in missing):
        lacks = [name for name in missing if name.startswith(f"{network}.")]
        what = f"lacks {len(lacks)} weights of the {network}, like {lacks[0]}"
        raise ConfigError(f"ckpt_path: {what if network in held else f'holds no {network}'}; {FIT}")
    networks = {name.split(".")[0] for name in own}
    for name, weight in given.items():
        if name in own:
            _check_weight(name, weight, own[name])
        elif name.split(".")[0] in networks:
            raise ConfigError(f"ckpt_path: holds {name}, which the network lacks; {FIT}")
    if unused := sorted(held - networks - {"reference"}):
        text = f"ckpt_path: its {' and '.join(unused)} is not used by this configuration"
        warnings.warn(text, ConfigWarning, stacklevel=2)


def _check_weight(name: str, weight: Any, own: Tensor) -> None:
    if not isinstance(weight, Tensor) or not is_plain(weight):
        raise ConfigError(f"ckpt_path: its {name} is no plain tensor; {CHANGED}")
    if weight.dtype != own.dtype:
        raise ConfigError(f"ckpt_path: its {name} is {weight.dtype}, not {own.dtype}; {CHANGED}")
    if weight.shape != own.shape:
        raise ConfigError(
            f"ckpt_path: its {name} has the shape {tuple(weight.shape)}, not {tuple(own.shape)}; "
            f"{FIT}"
        )


def check_sizes(module: ReasonModule, data: RolloutDataModule) -> None:
    """Refuses batch sizes that do not divide, and groups too small for the estimator.

    Raises:
        ConfigError: The first such size.
    """
    module.update.check(data.groups_per_rollout * data.group_size)
    if module.old_logprobs == "engine" and (data.sampling.top_p < 1 or data.sampling.top_k):
        raise ConfigError(
            f"model.old_logprobs=engine: with data.sampling.top_p={data.sampling.top_p}, top_k="
            f"{data.sampling.top_k} the engine's log-probs are of another distribution than the "
            "trainer's; use 1 and 0, or choose trainer"
        )
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
