"""Writes the policy of a checkpoint as a `transformers` folder.

python scripts/export_hf.py RUN_DIR/checkpoints/last.ckpt OUT_DIR

OUT_DIR can then be given to `AutoModelForCausalLM.from_pretrained`, to vLLM, or to another run as
--model.backbone=Pretrained --model.backbone.path=OUT_DIR. Of a run with LoRA the adapters are
merged into the base; --adapters writes them alone, for `peft.PeftModel.from_pretrained`.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from lit_reason.checkpoints import Checkpoints
from lit_reason.critics import check_notes
from lit_reason.errors import ConfigError, in_one_line
from lit_reason.export import save_policy
from lit_reason.files import holds_nothing
from lit_reason.given import read_config
from lit_reason.lora import save_adapters
from lit_reason.model_card import model_card
from lit_reason.networks import base_weights, broken_weight

PREFIX = "actor."


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument(
        "--config", type=Path, help="configuration of the run; default: RUN_DIR/config.yaml"
    )
    parser.add_argument(
        "--adapters", action="store_true", help="write the LoRA adapters without the base"
    )
    given = parser.parse_args(args)
    disable_progress_bar()  # an error is to stand in a line of its own
    with in_one_line():
        export(given.checkpoint, given.out, given.config, given.adapters)
    print(given.out)


def export(checkpoint: Path, out: Path, config: Path | None = None, adapters: bool = False) -> None:
    """Exports a checkpoint.

    Args:
        checkpoint: File that Lightning wrote.
        out: Folder to write; refused if it holds something.
        config: `config.yaml` of the run; `None` looks next to the checkpoint's folder.
        adapters: Write the adapters of a LoRA run alone.

    Raises:
        ConfigError: Something is missing, or would be overwritten.
        OSError: The folder cannot be written; nothing of it is left.
    """
    if not holds_nothing(out):
        raise ConfigError(f"{out}: exists and is not empty; choose another OUT_DIR")
    if not checkpoint.exists():
        raise ConfigError(f"{checkpoint}: no such checkpoint; give one of RUN_DIR/checkpoints")
    config = config or checkpoint.resolve().parent.parent / "config.yaml"
    if not config.is_file():
        raise ConfigError(f"{config}: no such file; give the configuration of the run as --config")
    weights, notes, rollouts = actor_weights(checkpoint)
    settings = read_config(str(config))
    backbone = build_backbone(settings, config)
    actor = backbone.actor()
    check_notes(str(checkpoint), notes, backbone.describe())
    try:
        actor.load_state_dict({**base_weights(actor), **weights})
    except RuntimeError as error:
        raise ConfigError(
            f"{checkpoint}: its weights do not fit the backbone of {config} "
            f"({str(error).splitlines()[0]})"
        ) from error
    if adapters:
        save_adapters(actor, backbone, out)
    else:
        save_policy(actor, backbone, out, model_card(settings, rollouts))


def actor_weights(checkpoint: Path) -> tuple[dict[str, torch.Tensor], dict[str, str], int]:
    """The policy's part of a checkpoint, on the CPU, what it says of its adapters, its rollouts."""
    if checkpoint.is_dir():
        raise ConfigError(
            f"{checkpoint}: a sharded checkpoint; run first "
            f"`python -m lightning.pytorch.utilities.consolidate_checkpoint {checkpoint}`"
        )
    saved = Checkpoints().load_checkpoint(checkpoint, map_location="cpu")
    state = saved.get("state_dict") if isinstance(saved, dict) else None
    named = state if isinstance(state, dict) else {}
    weights = {k.removeprefix(PREFIX): v for k, v in named.items() if str(k).startswith(PREFIX)}
    if not weights or not all(isinstance(weight, torch.Tensor) for weight in weights.values()):
        raise ConfigError(f"{checkpoint}: holds no policy; is it a checkpoint of `fit`?")
    if broken := broken_weight(weights):
        raise ConfigError(
            f"{checkpoint}: holds weights that are not finite, the first in {broken}; take an "
            "earlier one of RUN_DIR/checkpoints"
        )
    return weights, saved.get("adapters", {}), saved.get("policy_version", 0)


def build_backbone(settings: dict[str, Any], config: Path) -> Any:
    """The backbone of a run; where its critic came from does not matter here.

    Args:
        settings: Configuration of the run.
        config: Its file, for messages.
    """
    model = settings.get("model")
    chosen = model.get("backbone") if isinstance(model, dict) else None
    if not isinstance(chosen, dict) or not isinstance(chosen.get("class_path"), str):
        raise ConfigError(
            f"{config}: names no class as model.backbone; give RUN_DIR/config.yaml of the run"
        )
    try:
        return build(chosen)
    except ConfigError:
        raise
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{config}: model.backbone={chosen['class_path']}: cannot be built ({error}); give "
            "RUN_DIR/config.yaml of the run"
        ) from error


def build(chosen: Any) -> Any:
    """Instantiates a class, and those named in its arguments."""
    if not isinstance(chosen, dict) or "class_path" not in chosen:
        return chosen
    module, name = chosen["class_path"].rsplit(".", 1)
    arguments = chosen.get("init_args") or {}
    return getattr(import_module(module), name)(
        **{k: build(v) for k, v in arguments.items() if k != "critic_init"}
    )


if __name__ == "__main__":
    main()
