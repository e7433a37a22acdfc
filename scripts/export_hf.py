"""Writes the policy of a checkpoint as a `transformers` folder.

python scripts/export_hf.py RUN_DIR/checkpoints/last.ckpt OUT_DIR

OUT_DIR can then be given to `AutoModelForCausalLM.from_pretrained`, to vLLM, or to another run as
--model.backbone=Pretrained --model.backbone.path=OUT_DIR.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml

from lit_reason.errors import ConfigError
from lit_reason.export import save_policy

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
    given = parser.parse_args(args)
    try:
        export(given.checkpoint, given.out, given.config)
    except ConfigError as error:
        parser.exit(2, f"error: {error}\n")
    print(given.out)


def export(checkpoint: Path, out: Path, config: Path | None = None) -> None:
    """Exports a checkpoint.

    Args:
        checkpoint: File that Lightning wrote.
        out: Folder to write; refused if it holds something.
        config: `config.yaml` of the run; `None` looks next to the checkpoint's folder.

    Raises:
        ConfigError: Something is missing, or would be overwritten.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: exists and is not empty; choose another OUT_DIR")
    config = config or checkpoint.resolve().parent.parent / "config.yaml"
    if not config.is_file():
        raise ConfigError(f"{config}: no such file; give the configuration of the run as --config")
    weights = actor_weights(checkpoint)
    backbone = build_backbone(config)
    actor = backbone.actor()
    try:
        actor.load_state_dict(weights)
    except RuntimeError as error:
        raise ConfigError(
            f"{checkpoint}: its weights do not fit the backbone of {config} "
            f"({str(error).splitlines()[0]})"
        ) from error
    save_policy(actor, backbone.tokenizer, out)


def actor_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The policy's part of a checkpoint, on the CPU."""
    if checkpoint.is_dir():
        raise ConfigError(
            f"{checkpoint}: a sharded checkpoint; run first "
            f"`python -m lightning.pytorch.utilities.consolidate_checkpoint {checkpoint}`"
        )
    if not checkpoint.is_file():
        raise ConfigError(f"{checkpoint}: no such checkpoint")
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["state_dict"]
    weights = {k.removeprefix(PREFIX): v for k, v in state.items() if k.startswith(PREFIX)}
    if not weights:
        raise ConfigError(f"{checkpoint}: holds no policy; is it a checkpoint of `fit`?")
    return weights


def build_backbone(config: Path) -> Any:
    """The backbone of a run; where its critic came from does not matter here."""
    chosen = yaml.safe_load(config.read_text(encoding="utf-8"))["model"]["backbone"]
    module, name = chosen["class_path"].rsplit(".", 1)
    arguments = {k: v for k, v in chosen["init_args"].items() if k != "critic_init"}
    return getattr(import_module(module), name)(**arguments)


if __name__ == "__main__":
    main()
