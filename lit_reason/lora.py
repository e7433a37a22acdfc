"""LoRA: actor, critic and reference as three views of one frozen base.

A view is a tree of modules of its own around the same parameters. Each network has its adapters in
its own tree, so that nothing is switched: neither the order of calls, nor a backward pass that
computes activations again, nor what the other network does can reach the wrong adapter.
"""

from __future__ import annotations

import copy
import warnings
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lit_reason.backbones import Backbone, prepare
from lit_reason.critics import CRITIC_FILE, RM, start_critic
from lit_reason.errors import ConfigError, require_at_least_one, require_float32, require_seed
from lit_reason.files import filling
from lit_reason.fingerprint import fingerprint
from lit_reason.networks import ValueModel, has_adapters, own_weights

KEY = "model.backbone"
ALL = "all-linear"


class LoRA(Backbone):
    """Trains adapters of low rank (arXiv 2106.09685) instead of the weights of another backbone.

    The base is frozen, held once, and in no checkpoint. The actor is the base with one set of
    adapters, the critic the base with another and a value head, the reference the base alone.
    Adapters start with B = 0, so that all three begin as the base.

    Args:
        base: The backbone that is adapted.
        r: Rank of the adapters.
        alpha: Their product is scaled by alpha / r.
        target_modules: "all-linear" for every linear layer but the head, or a list of names, such
            as [q_proj, v_proj].
        share: Whether the critic stands on the actor's base; false gives it a copy, which trains
            to the same numbers and takes the memory of one more base.
        critic_init: Where the critic starts: "policy" (the base, new adapters and a zero head),
            "rm" (see `Backbone`), or a folder that `ValuePretraining` or `ValueWarmup` saved of a
            LoRA run; with `share=false` also that of another critic, or a reward model, whose
            weights are then the critic's own frozen base.
        seed: Seed of the adapters' initial weights.
    """

    fixed_reference: ClassVar[bool] = True

    def __init__(
        self,
        base: Backbone,
        r: int = 16,
        alpha: float = 32.0,
        target_modules: str | list[str] = ALL,
        share: bool = True,
        critic_init: str = "policy",
        seed: int = 0,
    ) -> None:
        if find_spec("peft") is None:
            raise ConfigError(f"{KEY}=LoRA: needs peft; pip install 'lit-reason[lora]'")
        super().__init__(critic_init, base.gradient_checkpointing)
        require_at_least_one(KEY, r=r)
        require_seed(f"{KEY}.seed", seed)
        require_float32(f"{KEY}.alpha", alpha, f", for example {2 * r}")
        if isinstance(target_modules, str) and target_modules != ALL:
            target_modules = [target_modules]
        if not target_modules:
            raise ConfigError(f"{KEY}.target_modules=[]: adapts nothing; choose {ALL}")
        if isinstance(base, LoRA):
            raise ConfigError(f"{KEY}.base=LoRA: is adapted itself; choose Pretrained")
        if base.critic_init != "policy":
            raise ConfigError(
                f"{KEY}.base.critic_init={base.critic_init}: would have no effect; set "
                f"{KEY}.critic_init"
            )
        self.base, self.r, self.alpha, self.share, self.seed = base, r, float(alpha), share, seed
        self.target_modules = target_modules
        self._check_critic_init()

    # --- the networks -------------------------------------------------------------------------

    @cached_property
    def frozen(self) -> PreTrainedModel:
        """The base itself; it is never run, only viewed."""
        return self.base._build().requires_grad_(False)

    @cached_property
    def targets(self) -> list[str]:
        """Last names of the adapted layers.

        Raises:
            ConfigError: One of `target_modules` is no linear layer of the base.
        """
        decoder: Any = self.frozen.base_model
        linear = [n for n, m in decoder.named_modules() if isinstance(m, nn.Linear | Conv1D)]
        known = sorted({name.rpartition(".")[2] for name in linear})
        if self.target_modules == ALL:
            return known
        for target in self.target_modules:
            if not any(f".{name}".endswith(f".{target}") for name in linear):
                raise ConfigError(
                    f"{KEY}.target_modules={target}: no linear layer of {self.base}; choose of "
                    f"{', '.join(known)}"
                )
        return sorted(set(self.target_modules))

    def actor(self) -> PreTrainedModel:
        """The base with the policy's adapters."""
        actor = self._adapt(view(self.frozen), self.seed)
        prepare(actor, self.gradient_checkpointing)
        self._check_padding(actor)
        return actor

    def critic(self) -> ValueModel:
        """The base with the critic's adapters and the value head."""
        if self._starts_from_adapters:
            source = view(self.frozen) if self.share else self.base._build()
            decoder: Any = source.base_model
            critic = ValueModel(decoder)
        else:
            own = copy.copy(self.base)
            own.critic_init = self.critic_init
            critic = own.critic()
        base = fingerprint(critic.base)
        self.notes["critic_base"] = base
        self._adapt(critic.base, self.seed + 1)
        prepare(critic.base, self.gradient_checkpointing)
        critic.train()
        critic.notes = {**self.notes, "base": base}
        if self._starts_from_adapters:
            start_critic(critic, self.critic_init, self.tokenizer)
        return critic

    def reference(self) -> PreTrainedModel:
        """The base without adapters."""
        return view(self.frozen).eval()

    def _adapt(self, model: Any, seed: int) -> Any:
        """Puts adapters into the layers of a frozen model."""
        from peft import inject_adapter_in_model

        model.requires_grad_(False)
        with torch.random.fork_rng(), warnings.catch_warnings():
            # peft sets `fan_in_fan_out` for the layers of GPT-2 by itself, and says so
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            return inject_adapter_in_model(self.adapter_config(), model)

    def adapter_config(self, **more: Any) -> Any:
        """The `peft` configuration; no dropout, as the importance ratio must start at 1."""
        from peft import LoraConfig

        return LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,  # type: ignore[arg-type]
            target_modules=self.targets,
            lora_dropout=0.0,
            **more,
        )

    # --- what belongs together ----------------------------------------------------------------

    @cached_property
    def notes(self) -> dict[str, str]:
        """What the adapters of a checkpoint must agree with."""
        return {
            "r": str(self.r),
            "alpha": str(self.alpha),
            "target_modules": " ".join(self.targets),
            "base": fingerprint(self.frozen),
        }

    def describe(self) -> dict[str, str]:
        """See `Backbone.describe`."""
        return dict(self.notes)

    @property
    def _starts_from_adapters(self) -> bool:
        return self.critic_init in ("policy", RM) or _holds_adapters(self.critic_init)

    def _check_critic_init(self) -> None:
        if self.critic_init == "random":
            raise ConfigError(
                f"{KEY}.critic_init=random: a random base would stay random; choose 'policy'"
            )
        if self.share and not self._starts_from_adapters:
            raise ConfigError(
                f"{KEY}.critic_init={self.critic_init}: has a base of its own; choose 'policy' or "
                f"the critic of a LoRA run, or set {KEY}.share to false"
            )

    # --- what is the base's -------------------------------------------------------------------

    def _load_tokenizer(self) -> Any:
        return self.base.tokenizer

    def _load_config(self) -> PreTrainedConfig:
        return self.base.config

    def _own_eos(self) -> list[int]:
        return self.base.eos_ids

    def _build(self, random: bool = False) -> PreTrainedModel:
        return self.base._build(random)

    def __str__(self) -> str:
        return f"LoRA({self.base})"


def view(model: PreTrainedModel) -> PreTrainedModel:
    """Another tree of modules around the same parameters."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


def merged(actor: PreTrainedModel) -> PreTrainedModel:
    """A plain model with the weights that the adapters make of the base; a copy."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    actor = copy.deepcopy(actor)
    with torch.no_grad():
        for name, layer in list(actor.named_modules()):
            if isinstance(layer, BaseTunerLayer):
                layer.merge()
                actor.set_submodule(name, layer.get_base_layer())
    del actor.peft_config
    return actor


def save_adapters(actor: nn.Module, backbone: Backbone, folder: Path) -> None:
    """Writes the policy's adapters where `peft.PeftModel.from_pretrained` loads them.

    Args:
        actor: A policy with adapters.
        backbone: Where it came from.
        folder: Made if it does not exist; written whole or not at all.

    Raises:
        ConfigError: The policy has no adapters.
    """
    if not isinstance(backbone, LoRA) or not has_adapters(actor):
        raise ConfigError(f"{KEY}={type(backbone).__name__}: has no adapters to write")
    path = getattr(backbone.base, "path", None)
    config = backbone.adapter_config(
        task_type="CAUSAL_LM", base_model_name_or_path=path, inference_mode=True
    )
    weights = {
        f"base_model.model.{name.replace('.default', '')}": value.detach().contiguous()
        for name, value in own_weights(actor).items()
    }
    with filling(folder) as partial:
        config.save_pretrained(partial)
        save_file(weights, partial / "adapter_model.safetensors", {"format": "pt"})
        backbone.tokenizer.save_pretrained(partial)


def _holds_adapters(critic_init: str) -> bool:
    file = Path(critic_init).expanduser() / CRITIC_FILE
    if not file.is_file():
        return False
    try:
        with safe_open(file, "pt") as opened:
            return any(".lora_" in name for name in opened.keys())  # noqa: SIM118 (no mapping)
    except SafetensorError:  # reported where it is loaded
        return False
