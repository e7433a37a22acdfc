"""How much memory and arithmetic a run needs, from its configuration; see docs/scale.md.

Bytes are those of the longest case: every prompt and response as long as allowed. What the
libraries themselves hold, and fragmentation, come on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from lit_reason.sharding import decoder_layers

FULL, HALF = 4, 2  # bytes of a number
ROOM = 128  # tokens by which the key-value cache grows
NEXT = 5  # copies of the next token's logits: as they come, shaped, as log-probs, as probs, sorted


@dataclass(frozen=True)
class Shape:
    """A decoder in numbers.

    Attributes:
        layers: L.
        hidden: H, width between layers.
        heads: Width of all query heads together.
        keys: K, width of all key heads together.
        inner: I, width inside the MLP.
        vocab: V.
        weights: N, embeddings and head included.
        decoder: Weights without the head, where it has its own.
        layer: Weights of one layer.
        linear: Widths in and out of all linear layers but the head, by their last name.
    """

    layers: int
    hidden: int
    heads: int
    keys: int
    inner: int
    vocab: int
    weights: int
    decoder: int
    layer: int
    linear: dict[str, int]

    def adapters(self, rank: int, targets: str | list[str]) -> int:
        """Weights of one set of LoRA adapters.

        Args:
            rank: r.
            targets: Last names of the adapted layers; a single word stands for all.
        """
        chosen = self.linear if isinstance(targets, str) else targets
        return rank * sum(self.linear.get(name, 0) for name in chosen)


@dataclass(frozen=True)
class Load:
    """What a run does with its networks.

    Attributes:
        prompt: Tokens of the longest prompt.
        response: Tokens of the longest response.
        responses: Responses of a rollout, on each rank.
        rows: Responses of that length in a forward and backward pass.
        generated: Responses generated at once; 0 if another process generates.
        prompts: Different prompts among them.
        chunk: Positions whose logits exist at once.
        passes: Passes of the actor's and the critic's update over the rollout.
        networks: Weights of each network on the device, by name; an offloaded reference is not.
        trained: Trained weights of actor and critic, by name.
        lent: Weights of an offloaded reference.
        moments: Numbers that the optimizer keeps for each trained weight, by name of the network.
        half: bf16-mixed.
        checkpointing: Activations are computed again in the backward pass.
        shards: Ranks that a network is split over.
    """

    prompt: int
    response: int
    responses: int
    rows: int
    generated: int
    prompts: int
    chunk: int
    passes: dict[str, int]
    networks: dict[str, int]
    trained: dict[str, int]
    lent: int
    moments: dict[str, float]
    half: bool
    checkpointing: bool
    shards: int

    @property
    def width(self) -> int:
        """Tokens of a prompt and its response."""
        return self.prompt + self.response

    @property
    def number(self) -> int:
        """Bytes of a number inside a layer."""
        return HALF if self.half else FULL


def shape_of(config: Any) -> Shape:
    """The numbers of a model's configuration; no weights are loaded or made.

    Args:
        config: Of a `transformers` causal language model.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    text: Any = config.get_text_config()
    layers = decoder_layers(model)
    linear: dict[str, int] = {}
    for name, module in model.base_model.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            last = name.rpartition(".")[2]
            linear[last] = linear.get(last, 0) + sum(module.weight.shape)
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    return Shape(
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        heads=heads * size,
        keys=(getattr(text, "num_key_value_heads", None) or heads) * size,
        inner=inner,
        vocab=text.vocab_size,
        weights=sum(p.numel() for p in model.parameters()),
        decoder=sum(p.numel() for p in model.base_model.parameters()),
        layer=sum(p.numel() for p in layers[0].parameters()) if layers else 0,
        linear=linear,
    )


def stages(shape: Shape, load: Load) -> dict[str, dict[str, float]]:
    """Bytes that each stage of a rollout holds at once, by what they are."""
    held = {
        "weights": FULL * sum(load.networks.values()) / load.shards,
        "optimizer states": FULL
        * sum(load.moments[name] * size for name, size in load.trained.items())
        / load.shards,
    }
    lent = {"reference, lent": float(FULL * load.lent)} if load.lent else {}
    rollout = {
        **held,
        **_gathered(shape, load, whole=True),
        "key-value cache": cache(shape, load),
        "forward pass": forward(shape, load, load.prompts, load.prompt),
        "logits of the next token": float(FULL * NEXT * load.generated * shape.vocab),
    }
    scoring = {
        **held,
        **lent,
        **_gathered(shape, load, whole=False),
        "forward pass": forward(shape, load, load.rows, load.width),
        "logits block": logits(shape, load) / 2,  # without their gradient
    }
    update = {
        **held,
        **_gathered(shape, load, whole=False),
        "gradients": FULL * max(load.trained.values()) / load.shards,
        "activations": activations(shape, load),
        "logits block": logits(shape, load),
    }
    return {"rollout": rollout, "scoring": scoring, "update": update}


def cache(shape: Shape, load: Load) -> float:
    """Keys and values of the responses that are generated at once.

    Under bf16-mixed keys are in float32, as rotary positions are, and values in bfloat16.
    """
    tokens = -(-load.width // ROOM) * ROOM
    layers = shape.layers + (load.width > ROOM)  # one is held twice while it grows
    return float(load.generated * tokens * layers * shape.keys * (FULL + load.number))


def forward(shape: Shape, load: Load, rows: int, width: int) -> float:
    """What a forward pass without gradients holds at once: one layer's inside, and the mask."""
    inside = 3 * shape.inner * load.number + 6 * shape.hidden * FULL
    return float(rows * width * inside + rows * width**2 * load.number)


def activations(shape: Shape, load: Load) -> float:
    """What a backward pass needs of its forward pass, for the largest micro-batch."""
    tokens = load.rows * load.width
    layer = tokens * _kept(shape, load)
    # float masks of the attention, and under autocast the weights as they were multiplied with
    layer += load.rows * load.width**2 * load.number
    layer += HALF * shape.layer if load.half and load.shards == 1 else 0
    one_backward = tokens * (3 * shape.inner * load.number + 3 * shape.hidden * FULL)
    if load.checkpointing:
        kept = shape.layers * tokens * shape.hidden * FULL + layer
    else:
        kept = shape.layers * layer
    return kept + one_backward + 3.0 * tokens * shape.hidden * FULL


def _kept(shape: Shape, load: Load) -> float:
    """Bytes that a layer keeps of each token: two norms, attention and MLP."""
    norms = 2 * shape.hidden * (2 * FULL + load.number)
    attention = 5 * shape.heads * load.number
    return norms + attention + 4 * shape.inner * load.number


def logits(shape: Shape, load: Load) -> float:
    """Logits of one block, and their gradient; softmaxes are of a part of it.

    The gradient of the head is made anew for each block, and added.
    """
    positions = min(load.chunk, load.rows * load.response)
    return float(FULL * (2 * positions * shape.vocab + shape.vocab * shape.hidden))


def _gathered(shape: Shape, load: Load, whole: bool) -> dict[str, float]:
    """What FSDP2 gathers: the actor for a rollout, else two layers, embeddings and head."""
    if load.shards == 1:
        return {}
    layers = shape.layers if whole else 2
    outside = shape.weights - shape.layers * shape.layer
    return {"gathered weights": float(layers * shape.layer * load.number + outside * FULL)}


def flops(shape: Shape, load: Load) -> dict[str, float]:
    """Floating-point operations of a rollout on each rank, by stage."""
    tokens = load.responses * load.width
    # two for each weight and token, and of each token with those before it: queries times keys,
    # weights times values
    outside = shape.weights - shape.layers * shape.layer
    inside = 2 * shape.layers * shape.layer * tokens
    inside += 2 * shape.layers * shape.heads * load.width * tokens
    head = 2 * outside * load.responses * load.response
    one = float(inside + head)
    again = 4 if load.checkpointing else 3
    scored = len(load.networks) + bool(load.lent)
    return {
        "rollout": one * bool(load.generated),
        "scoring": one * scored,
        "update": one * again * sum(load.passes.values()),
    }
