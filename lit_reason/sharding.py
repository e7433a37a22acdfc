"""FSDP2: each rank keeps a part of every weight, its gradient and its optimizer state.

Layers are gathered for their forward and backward passes, which are collectives: every rank must
run as many. Gradients are summed over ranks, as the loss is divided by one global count already.
A policy that generates is gathered once for the whole rollout, so that ranks may draw responses of
different lengths. Checkpoints are those of an unsharded run: one file, whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import MethodType
from typing import Any

import torch
from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
from lightning.pytorch.strategies import (
    ModelParallelStrategy,
    Strategy,
    StrategyRegistry,
)
from torch import Tensor, nn
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from lit_reason.errors import ConfigError
from lit_reason.networks import has_adapters, logits_head

NAME = "fsdp2"


class FSDP2(ModelParallelStrategy):
    """`ModelParallelStrategy` over all processes, with the checkpoints of an unsharded run.

    A file of either can be continued by the other, on any number of ranks. Rank 0 holds the whole
    state in memory while it writes, every rank while it reads.

    Args:
        process_group_backend: Null takes nccl on GPUs and gloo on CPUs.
        timeout: After which a collective fails.
    """

    def __init__(
        self,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
    ) -> None:
        if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
            raise ConfigError(
                f"trainer.strategy={NAME}: torch {torch.__version__} cannot sum gradients over "
                "ranks; install a later one, 2.13 does, or choose ddp"
            )
        super().__init__(
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )

    def setup_environment(self) -> None:
        """Makes the mesh: one dimension of data over all processes."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def setup(self, trainer: Any) -> None:
        """Lets evaluations, which may gather weights first, do so without inference mode.

        What is made in that mode cannot be trained with afterwards.
        """
        loops = (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop)
        for loop in (*loops, trainer.predict_loop):
            loop.inference_mode = False
        super().setup(trainer)

    def shard(self, network: nn.Module) -> None:
        """Splits a network over the ranks, a decoder layer at a time.

        Under bf16-mixed the weights of decoder layers are gathered in bfloat16; embeddings, the
        last norm and heads stay in float32, as does the sum of gradients.
        """
        if has_adapters(network):
            raise ConfigError(
                "model.backbone=LoRA: its networks share one frozen base, which "
                f"trainer.strategy={NAME} cannot split; choose ddp"
            )
        logits_head(network)  # looked for while its weights are whole
        half = str(self.precision_plugin.precision) == "bf16-mixed"
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if half else None,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,  # or what flows between the layers would be rounded too
        )
        mesh = self.device_mesh["data_parallel"]
        for layer in decoder_layers(network):
            fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
        fully_shard(network, mesh=mesh, reshard_after_forward=True)
        for part in parts(network):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo has no other
        carrier: Any = network
        carrier.run_inside = MethodType(lambda own, function, *args: function(own, *args), network)
        register_fsdp_forward_method(network, "run_inside")  # see `networks.through`

    # --- checkpoints --------------------------------------------------------------------------

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """False: `configure_model` has split the networks already."""
        return False

    @property
    def lightning_restore_optimizer(self) -> bool:
        """True: Lightning hands the optimizers' states over as it does to any strategy."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The whole state on rank 0, nothing elsewhere."""
        assert self.lightning_module is not None
        return self._on_rank_0(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """The whole state on rank 0, nothing elsewhere."""
        return self._on_rank_0(getattr(optimizer, "_optimizer", optimizer).state_dict())

    def load_checkpoint(self, checkpoint_path: Any, weights_only: Any = None) -> dict[str, Any]:
        """Reads the file, on every rank."""
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Takes this rank's part of every weight."""
        assert self.lightning_module is not None
        own = self.lightning_module.state_dict()
        state = {
            name: share(value, own[name]) if name in own else value
            for name, value in checkpoint["state_dict"].items()
        }
        self.lightning_module.load_state_dict(state, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Takes this rank's part of every moment."""
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            weights = [p for group in optimizer.param_groups for p in group["params"]]
            state = {
                i: {key: share(value, weights[i]) for key, value in entries.items()}
                for i, entries in saved["state"].items()
            }
            optimizer.load_state_dict({**saved, "state": state})

    def _on_rank_0(self, state: Any) -> Any:
        """A state with whole tensors on the CPU; every rank must ask for it."""
        kept = whole(state, keep=self.is_global_zero)
        return kept if self.is_global_zero else {}


StrategyRegistry.register(NAME, FSDP2, description="FSDP2 over all processes")


def parts(network: nn.Module) -> list[FSDPModule]:
    """The modules that are gathered one by one; none of a network that is not sharded."""
    return [module for module in network.modules() if isinstance(module, FSDPModule)]


def decoder_layers(network: nn.Module) -> list[nn.Module]:
    """The layers that `transformers` says a device should hold whole."""
    names: set[str] = set()
    for module in network.modules():
        names |= set(getattr(module, "_no_split_modules", None) or ())
    return [module for module in network.modules() if type(module).__name__ in names]


@contextmanager
def gathered(network: nn.Module) -> Iterator[None]:
    """Keeps the whole network on every rank, so that forward passes are no collectives."""
    own = parts(network)
    for part in own:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in own:
            part.reshard()
            part.set_reshard_after_forward(True, recurse=False)


def whole(state: Any, keep: bool = True) -> Any:
    """A copy of nested containers in which sharded tensors are whole; a collective if there are.

    Args:
        state: Dictionaries, lists and tuples of anything.
        keep: False puts `None` in their place, on ranks that only take part.
    """
    if isinstance(state, DTensor):
        full = state.full_tensor().detach()
        return full.cpu() if keep else None
    if isinstance(state, Mapping):
        return {key: whole(value, keep) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(whole(value, keep) for value in state)
    return state


def share(value: Any, like: Any) -> Any:
    """This rank's part of a whole tensor, as `like` is split; anything else as it is."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    mesh, value = like.device_mesh, value.to(like.device, like.dtype)
    # every rank has the whole tensor, so none needs to send it
    return distribute_tensor(value, mesh, like.placements, src_data_rank=None)


def evenly(
    pieces: Sequence[Tensor], largest: Callable[[Tensor], Tensor], device: Any
) -> list[Tensor]:
    """As many pieces on every rank, the largest ones halved where there were fewer.

    Every rank has as many rows, so that there are always enough to halve.

    Args:
        pieces: Row indices of each micro-batch.
        largest: The maximum of a tensor over ranks.
        device: Where the ranks talk.
    """
    wanted = int(largest(torch.tensor([len(pieces)], device=device)))
    split = list(pieces)
    while len(split) < wanted:
        at = max(range(len(split)), key=lambda i: len(split[i]))
        split[at : at + 1] = split[at].tensor_split(2)
    return split
