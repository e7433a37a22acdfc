"""What, beside its weights, decides the function that a network computes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

# of a head, of training, of how it is computed or where it came from, and what the weights' shapes
# (sizes of tables) or another key (layer_types) says already
SILENT = {
    *("chunk_size_feed_forward", "final_logit_softcapping", "init_std", "layerdrop"),
    *("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "use_cache"),
    *("id2label", "label2id", "num_labels", "problem_type", "tie_word_embeddings", "vocab_size"),
    *("initializer_range", "max_position_embeddings", "max_window_layers", "n_ctx", "n_positions"),
    *("name_or_path", "pretraining_tp", "quantization_config", "task_specific_params"),
    *("output_attentions", "output_hidden_states", "return_dict"),
}


def architecture(model: Any) -> dict[str, Any]:
    """The part of a model's configuration that its function depends on, as plain values.

    All settings of its class but those known not to matter, so that one that nobody thought of
    counts. What other programs have written beside them does not.

    Args:
        model: A `transformers` model.

    Example:
        >>> from transformers import Qwen2Config, Qwen2Model
        >>> size = {"vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 1}
        >>> model = Qwen2Model(Qwen2Config(**size, num_attention_heads=4, num_key_value_heads=4))
        >>> architecture(model)["num_attention_heads"], "vocab_size" in architecture(model)
        (4, False)
    """
    config = model.config.get_text_config()
    settings = json.loads(config.to_json_string(use_diff=False))
    own = type(config)().to_dict()
    return {k: v for k, v in settings.items() if k in own and not _is_silent(k)}


def _is_silent(key: str) -> bool:
    return (
        key in SILENT
        or key.startswith(("_", "summary_"))
        or key.endswith(("token_id", "token_index"))
        or any(part in key for part in ("dropout", "pdrop"))
    )


def difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """The first setting in which two architectures differ, in words; `None` if there is none.

    A setting that only one of them has is passed over: another version of `transformers` wrote it.

    Example:
        >>> difference({"heads": 2, "new": 1}, {"heads": 4})
        'heads=2, not 4'
        >>> difference({"rope": {"type": "yarn", "theta": 1}}, {"rope": {"theta": 2}})
        'rope.theta=1, not 2'
    """
    for key, value in wanted.items():
        if key not in found or found[key] == value:
            continue
        if isinstance(value, Mapping) and isinstance(found[key], Mapping):
            inner = difference(found[key], value)
            if inner is not None:
                return f"{key}.{inner}"
        else:
            return f"{key}={found[key]!s:.60}, not {value!s:.60}"
    return None


def misfit(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> str | None:
    """The first weight that does not fit a network, in words; `None` if all do.

    Args:
        found: Weights by name.
        wanted: Those of the network.

    Example:
        >>> misfit({"a": torch.ones(2)}, {"a": torch.ones(3)})
        'a has the shape (2,), not (3,)'
    """
    for name, value in wanted.items():
        if name not in found:
            return f"{name} is missing"
        if found[name].shape != value.shape:
            return f"{name} has the shape {tuple(found[name].shape)}, not {tuple(value.shape)}"
    extra = next((name for name in found if name not in wanted), None)
    return None if extra is None else f"{extra} has no place in it"
