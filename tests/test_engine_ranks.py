"""Two real processes whose rollouts come from servers, one each or one for both."""

import pytest

from lit_reason.backbones import Bundled
from tests.ranks import Ranks
from tests.stand_in import Copy
from tests.test_distributed import fitted, ranks, same_weights  # noqa: F401 (a fixture)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("count", [1, 2])
def test_ranks_train_alike_on_rollouts_of_servers(ranks: Ranks, count):  # noqa: F811
    with Copy(Bundled()) as first, Copy(Bundled()) as second:
        servers = [first, second][:count]
        urls = ",".join(server.url for server in servers)
        flags = ["--data.engine=VLLMServer", f"--data.engine.urls=[{urls}]"]
        one, other = ranks(fitted, "ddp", "dapo", f"run{count}", *flags)
        loads = [sum(_loads(body) for _, body in server.asked) for server in servers]
    same_weights(one, other)
    # each server by one rank, for each rollout and the evaluation after the last
    assert len(set(loads)) == 1
    assert loads[0] == len(one["rollouts"]) + 1
    for a, b in zip(one["rollouts"], other["rollouts"], strict=True):
        assert a["texts"] != b["texts"]


def _loads(body):
    return bool(body) and body.get("method") == "load_policy_weights"
