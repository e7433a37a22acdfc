"""What FSDP2 needs that takes one process; `test_distributed.py` runs it on two."""

import pytest
import torch

from lit_reason.errors import ConfigError
from lit_reason.sharding import FSDP2, decoder_layers, evenly, gathered, parts, share, whole
from tests.test_networks import CONFIGS, build


def test_ranks_with_fewer_micro_batches_halve_their_largest():
    pieces = [torch.arange(0, 2), torch.arange(2, 9), torch.arange(9, 10)]
    asked = []

    def largest(count):
        asked.append(int(count))
        return torch.tensor(6)

    split = evenly(pieces, largest, "cpu")
    assert asked == [3]
    assert torch.cat(split).equal(torch.arange(10))
    assert [len(piece) for piece in split] == [2, 2, 2, 2, 1, 1]
    one_a_row = evenly(pieces, lambda _: torch.tensor(10), "cpu")
    assert [len(piece) for piece in one_a_row] == [1] * 10
    assert evenly(pieces, lambda count: count, "cpu") == pieces
    assert evenly([], lambda count: count, "cpu") == []


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_says_which_layers_it_has(name):
    assert len(decoder_layers(build(name))) == 2


def test_adapters_are_refused(backbone):
    pytest.importorskip("peft")
    from lit_reason.lora import LoRA

    with pytest.raises(ConfigError, match=r"trainer\.strategy=fsdp2 cannot split; choose ddp"):
        FSDP2().shard(LoRA(backbone).actor())


def test_a_torch_that_only_averages_is_refused(monkeypatch):
    monkeypatch.delattr("lit_reason.sharding.FSDPModule.set_force_sum_reduction_for_comms")
    with pytest.raises(ConfigError, match=r"trainer\.strategy=fsdp2: torch .* cannot sum"):
        FSDP2()


def test_what_is_not_sharded_passes_as_it_is():
    weight, state = torch.ones(3), {"a": [torch.ones(2), 1], "b": (None, "x")}
    assert share(weight, torch.zeros(3)) is weight
    assert whole(state) == state
    network = build("gpt2")
    with gathered(network):
        assert parts(network) == []
