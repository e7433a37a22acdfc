"""Where the networks and the tokenizer come from.

`Pretrained` loads a model folder or hub id, `Bundled` the small cold-started policy that ships with
the package, `Scratch` a new decoder over a character alphabet (what the cold start trains).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from lit_reason.critics import check_critic_init, start_critic
from lit_reason.errors import ConfigError, require_at_least_one, require_seed
from lit_reason.gguf import check_gguf, plain_copy
from lit_reason.lists import as_list
from lit_reason.loading import load_model, reading
from lit_reason.networks import ValueModel, reads_padding
from lit_reason.tokenizer import tokenizer_class

ASSETS = Path(str(files("lit_reason") / "assets"))


class Backbone(ABC):
    """Builds the actor, the critic and the reference of a run, always with float32 weights.

    Args:
        critic_init: Where the critic starts: "policy" (the actor's weights and a zero head),
            "random" (fresh weights and a zero head), "rm" (as "policy", and what the value warm-up
            or pretraining of the run then teaches is the outcome at the last token alone, as a
            reward model is trained), a folder that `ValuePretraining` or `ValueWarmup` saved, or a
            reward model (folder or hub id of a sequence-classification model with one label, of
            the same architecture).
        gradient_checkpointing: Recompute activations in the backward pass to save memory.

    Attributes:
        fixed_reference: The reference cannot be given the actor's weights later in the run.
    """

    fixed_reference: ClassVar[bool] = False

    def __init__(self, critic_init: str = "policy", gradient_checkpointing: bool = False) -> None:
        check_critic_init(critic_init)
        self.critic_init = critic_init
        self.gradient_checkpointing = gradient_checkpointing

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, padding on the left, with an end token."""
        tokenizer = self._load_tokenizer()
        if tokenizer.eos_token_id is None:
            raise ConfigError(
                f"model.backbone={self}: its tokenizer has no end token, so no response could end; "
                "set eos_token in its tokenizer_config.json"
            )
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = "left"
        return tokenizer

    @cached_property
    def eos_ids(self) -> list[int]:
        """Every token that ends a response: the tokenizer's and the model's own.

        The model's own are those of its generation config, and where that names none those of its
        `config.json`.
        """
        return sorted({self.tokenizer.eos_token_id, *as_list(self._own_eos())})

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The model's configuration, every dropout set to zero.

        Dropout would make the log-probs of one batch differ between two passes, so that the
        importance ratio would not start at 1.
        """
        config = self._load_config()
        for part in {id(c): c for c in (config, config.get_text_config())}.values():
            for name, value in vars(part).items():
                if ("dropout" in name or "pdrop" in name) and isinstance(value, float):
                    setattr(part, name, 0.0)
        return config

    @property
    def context_length(self) -> int | None:
        """Most tokens of prompt and response together; `None` if the model sets no limit."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None)

    def actor(self) -> PreTrainedModel:
        """The trained policy."""
        model = self._build()
        prepare(model, self.gradient_checkpointing)
        self._check_padding(model)
        return model

    def critic(self) -> ValueModel:
        """The value network; see `critic_init`."""
        causal = self._build(random=self.critic_init == "random")
        base: Any = causal.base_model
        prepare(base, self.gradient_checkpointing)
        critic = ValueModel(base).train()
        start_critic(critic, self.critic_init, self.tokenizer)
        return critic

    def reference(self) -> PreTrainedModel:
        """The frozen starting policy."""
        return self._build().requires_grad_(False).eval()

    def describe(self) -> dict[str, str]:
        """What a checkpoint must agree with to hold weights for these networks.

        Nothing where it holds all of them.
        """
        return {}

    @abstractmethod
    def _load_tokenizer(self) -> Any: ...

    @abstractmethod
    def _load_config(self) -> PreTrainedConfig: ...

    @abstractmethod
    def _build(self, random: bool = False) -> PreTrainedModel: ...

    def _own_eos(self) -> int | list[int] | None:
        return None

    def _check_padding(self, actor: PreTrainedModel) -> None:
        """Refuses a policy whose log-probs would depend on the batch."""
        if reads_padding(actor):
            raise ConfigError(
                f"model.backbone={self}: a {type(actor).__name__} with its settings reads the "
                "padding before a prompt, and log-probs would depend on the batch; choose a model "
                "of another architecture"
            )

    def __str__(self) -> str:
        return type(self).__name__


def prepare(model: Any, gradient_checkpointing: bool) -> None:
    """Makes a network ready to train.

    Args:
        model: A `transformers` model.
        gradient_checkpointing: Recompute its activations in the backward pass.
    """
    # from_pretrained returns eval mode, where gradient checkpointing is off
    model.train()
    if gradient_checkpointing:
        # renamed in transformers 5
        old = "gradient_checkpointing_enable"
        enable = getattr(model, "activation_checkpointing_enable", None) or getattr(model, old)
        enable({"use_reentrant": False})


class Pretrained(Backbone):
    """A `transformers` causal language model from a folder or from the Hugging Face hub.

    Args:
        path: Folder or hub id, for example `Qwen/Qwen2.5-1.5B`.
        gguf_file: Name of a GGUF file in it to take model and tokenizer from; its quantised weights
            become float32 ones. Needs `pip install 'lit-reason[gguf]'`.
        attn: Attention kernel of `transformers`.
        critic_init: See `Backbone`.
        gradient_checkpointing: See `Backbone`.
    """

    def __init__(
        self,
        path: str,
        gguf_file: str | None = None,
        attn: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa",
        critic_init: str = "policy",
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__(critic_init, gradient_checkpointing)
        looks_local = path.startswith((".", "/", "~")) or path.count("/") != 1
        folder = Path(path).expanduser()
        if not path.strip():
            raise ConfigError(
                f"model.backbone.path={path}: names nothing; give a model folder or a hub id such "
                "as Qwen/Qwen2.5-1.5B"
            )
        if not folder.is_dir() and (looks_local or folder.exists()):
            raise ConfigError(
                f"model.backbone.path={path}: no such folder; give a model folder or a hub id "
                "such as Qwen/Qwen2.5-1.5B"
            )
        if (folder / "adapter_config.json").exists():
            raise ConfigError(
                f"model.backbone.path={path}: holds an adapter, which would be left out of the "
                "reference; give a folder with merged weights (peft: merge_and_unload)"
            )
        self.path = str(folder) if folder.is_dir() else path
        self.gguf_file, self.attn = gguf_file, attn
        if gguf_file is not None:
            check_gguf(folder, gguf_file)

    @property
    def _named(self) -> tuple[str, str]:
        """Where the folder is named, and what to give instead of one that cannot be loaded."""
        fix = "give a model folder, or a hub id that this machine can reach"
        return f"model.backbone.path={self.path}", fix

    @property
    def _gguf(self) -> dict[str, str]:
        return {} if self.gguf_file is None else {"gguf_file": self.gguf_file}

    def _load_tokenizer(self) -> Any:
        with reading(*self._named):
            kind = AutoTokenizer if self.gguf_file else tokenizer_class(self.path)
            # or transformers would ask at the terminal whether to run a model's own code
            return kind.from_pretrained(self.path, trust_remote_code=False, **self._gguf)

    def _load_config(self) -> PreTrainedConfig:
        with reading(*self._named):
            return AutoConfig.from_pretrained(self.path, trust_remote_code=False, **self._gguf)

    def _own_eos(self) -> int | list[int] | None:
        with reading(*self._named):
            own = self._generation_config().eos_token_id
            if own is None:
                # as it is written: what a class of models has by default may be any token of this
                written, _ = PreTrainedConfig.get_config_dict(self.path, **self._gguf)
                own = GenerationConfig.from_model_config(written).eos_token_id
            if not all(type(token) is int for token in as_list(own)):
                raise ValueError(f"its eos_token_id is {own!r:.40}, not the number of a token")
        return own

    def _generation_config(self) -> GenerationConfig:
        """An empty one for a base model, which often has none."""
        try:
            return GenerationConfig.from_pretrained(self.path)
        except OSError:
            if Path(self.path, "generation_config.json").exists():
                raise
            return GenerationConfig()

    def _build(self, random: bool = False) -> PreTrainedModel:
        settings: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": self.attn}
        if random:
            with reading(*self._named):
                return AutoModelForCausalLM.from_config(
                    self.config, trust_remote_code=False, **settings
                )
        settings |= {"config": self.config, **self._gguf}
        loaded = load_model(AutoModelForCausalLM, self.path, *self._named, **settings)
        return loaded if self.gguf_file is None else plain_copy(loaded)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.path})"


class Bundled(Pretrained):
    """The small policy that ships with the package, cold-started on its built-in task.

    `configs/cold_start.yaml` and its seed remake it.

    Args:
        name: Folder under `lit_reason/assets`.
        critic_init: See `Backbone`.
    """

    def __init__(self, name: str = "plan_count", critic_init: str = "policy") -> None:
        known = sorted(p.name for p in ASSETS.iterdir() if p.is_dir())
        if name not in known:
            shown = ", ".join(known)
            raise ConfigError(f"model.backbone.name={name}: not shipped; choose one of: {shown}")
        super().__init__(str(ASSETS / name), critic_init=critic_init)


class Scratch(Backbone):
    """A new Qwen2-type decoder over the characters of an alphabet, built without any download.

    Args:
        alphabet: Every character that prompts and responses may hold.
        hidden_size: Width; a multiple of `heads`.
        layers: Number of decoder layers.
        heads: Attention heads; vLLM on a CPU needs `hidden_size / heads` of at least 32.
        context_length: Most tokens of prompt and response together.
        seed: Seed of the initial weights.
        critic_init: See `Backbone`.
    """

    def __init__(
        self,
        alphabet: str,
        hidden_size: int = 64,
        layers: int = 3,
        heads: int = 2,
        context_length: int = 512,
        seed: int = 0,
        critic_init: str = "policy",
    ) -> None:
        super().__init__(critic_init)
        require_at_least_one(
            "model.backbone",
            hidden_size=hidden_size,
            layers=layers,
            heads=heads,
            context_length=context_length,
        )
        require_seed("model.backbone.seed", seed)
        if not alphabet:
            raise ConfigError("model.backbone.alphabet: is empty; name the characters to be read")
        if hidden_size % heads:
            raise ConfigError(
                f"model.backbone.heads={heads} does not divide model.backbone.hidden_size="
                f"{hidden_size}; choose for example heads={max(hidden_size // 32, 1)}"
            )
        self.alphabet, self.hidden_size, self.layers = alphabet, hidden_size, layers
        self.heads, self.positions, self.seed = heads, context_length, seed

    def _load_tokenizer(self) -> Any:
        return character_tokenizer(self.alphabet)

    def _load_config(self) -> PreTrainedConfig:
        return Qwen2Config(
            vocab_size=len(self.tokenizer),
            hidden_size=self.hidden_size,
            intermediate_size=2 * self.hidden_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            max_position_embeddings=self.positions,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=self.tokenizer.eos_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
        )

    def _build(self, random: bool = False) -> PreTrainedModel:
        # the same start for actor, critic and reference, whatever was drawn before
        with torch.random.fork_rng():
            torch.manual_seed(self.seed + random)
            return AutoModelForCausalLM.from_config(
                self.config, dtype=torch.float32, trust_remote_code=False
            )


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one token a character, plus `<pad>`, `<eos>` and `<unk>`.

    Example:
        >>> tokenizer = character_tokenizer("0123456789+= ")
        >>> ids = tokenizer("1+2=")["input_ids"]
        >>> tokenizer.decode(ids)
        '1+2='
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    special = ["<pad>", "<eos>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate([*special, *dict.fromkeys(alphabet)])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
