"""A real vLLM on a CPU, in this process and as two servers: the same checks of both.

Skipped where vLLM is not installed; `scripts/test_vllm.sh` makes an environment for it.
"""

import copy
import csv
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import torch

from lit_reason.backbones import ASSETS, Bundled
from lit_reason.encoding import encode_prompt
from lit_reason.engines import VLLMEngine, VLLMServer
from lit_reason.errors import ConfigError
from lit_reason.lora import LoRA
from lit_reason.rollout import HFEngine, Sampling
from lit_reason.tasks import PlanCount
from tests.conftest import ROOT, SMALL, ready, tiny
from tests.runs import module_of
from tests.test_rollout import batch_of

if find_spec("vllm") is None:
    pytest.skip("needs vLLM: run scripts/test_vllm.sh", allow_module_level=True)

pytestmark = pytest.mark.slow
EAGER = {"enforce_eager": True}  # or a minute of compilation for a model that is run for seconds
START = 900  # seconds in which a server must be up; the machine may be busy
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}


@pytest.fixture(scope="module")
def local():
    os.environ.update(ENVIRONMENT)
    return VLLMEngine(options=EAGER)


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Two servers of the shipped model with random weights: what is right was sent to them."""
    folder = tmp_path_factory.mktemp("servers")
    started = [serve(folder, free_port()) for _ in range(2)]
    try:
        for url, process, log in started:
            wait_for(url, process, log)
        yield [url for url, _, _ in started]
    finally:
        for _, process, _ in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def serve(folder, port):
    flags = {
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": "float32",
        "--load-format": "dummy",
        "--generation-config": "vllm",
        "--logprobs-mode": "processed_logprobs",
        "--worker-extension-cls": "lit_reason.engines.vllm_worker.PolicyWorker",
    }
    # what `vllm serve` runs; the command itself asks for a distribution named vllm, not vllm-cpu
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", ASSETS / "plan_count"]
    command += [x for flag in flags.items() for x in flag] + ["--enforce-eager"]
    log = folder / f"{port}.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            list(map(str, command)),
            env={**os.environ, **ENVIRONMENT},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return f"http://127.0.0.1:{port}", process, log


def wait_for(url, process, log):
    for _ in range(START):
        if process.poll() is not None:
            break
        try:
            urlopen(f"{url}/health", timeout=5)
            return
        except (URLError, OSError):
            time.sleep(1)
    pytest.fail(f"the server is not up:\n{log.read_text()[-3000:]}")


@pytest.fixture(params=["local", "server"])
def engine(request):
    """The engine, bound to the shipped policy."""
    if request.param == "local":
        engine = request.getfixturevalue("local")
    else:
        engine = VLLMServer(request.getfixturevalue("urls"))
    engine.bind(ready(module_of()))
    return engine


def prompts_of(engine, count=5):
    task = PlanCount()
    return [encode_prompt(task[i], engine.module.backbone.tokenizer) for i in range(count)]


def generate(engine, samples=4, seed=0, prompts=None, **sampling):
    prompts = prompts or prompts_of(engine)
    settings = Sampling(**{"max_new_tokens": 48, **sampling})
    return engine.generate(prompts, samples, settings, seed)


def furthest(engine, groups, temperature=1.0):
    """Largest difference between the log-probs of the engine and those of the trainer."""
    batch = batch_of(engine.module, prompts_of(engine), groups, temperature)
    with torch.no_grad():
        own = engine.module.score(engine.module.actor, batch).logprobs
    return float(((own - batch.sampled_logprobs) * batch.response_mask).abs().max())


def move(module, seed=0):
    """What an update does: other weights, and a version that says so."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.actor.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=generator)
    module.policy_version += 1


# --- both engines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_of_the_trainer(engine, temperature):
    groups = generate(engine, temperature=temperature)
    assert [len(group) for group in groups] == [4] * 5
    assert furthest(engine, groups, temperature) < 2e-5


def test_a_seed_gives_the_same_responses_and_no_two_share_one(engine):
    prompts = prompts_of(engine, 1) * 4
    first, again = (generate(engine, prompts=prompts, seed=3) for _ in range(2))
    assert first == again
    assert first != generate(engine, prompts=prompts, seed=4)
    # at a temperature at which the policy is not sure of its two or three answers
    hot = generate(engine, prompts=prompts, seed=3, temperature=2.0)
    assert len({r.ids for group in hot for r in group}) > 8  # of 16 to the same prompt


def test_weights_are_taken_when_the_version_says_so(engine):
    before = generate(engine)
    move(engine.module)
    groups = generate(engine)
    assert groups != before
    # the prompts were read by the weights before: nothing of that is left
    assert furthest(engine, groups) < 2e-5
    engine.module.policy_version -= 1
    engine.pushed = engine.module.policy_version
    move(engine.module, seed=1)
    engine.pushed = engine.module.policy_version  # as if it had them
    assert generate(engine) == groups


def test_weights_that_do_not_arrive_stop_the_run(engine, monkeypatch):
    generate(engine)
    move(engine.module)
    monkeypatch.setattr(engine, "_push", lambda weights: None)
    with pytest.raises(ConfigError, match=r"data\.engine\.tolerance=0\.001: after the weights of"):
        generate(engine)


def test_adapters_are_merged(engine):
    module = ready(module_of(LoRA(Bundled(), r=4)))
    with torch.no_grad():
        for name, weight in module.actor.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.05, generator=torch.Generator().manual_seed(0))
    plain = generate(engine)
    engine.bind(module)
    groups = generate(engine)
    assert groups != plain
    assert furthest(engine, groups) < 2e-4  # merging rounds the weights


def test_responses_end_with_any_end_token_or_the_budget(engine, monkeypatch):
    backbone = engine.module.backbone
    equals = backbone.tokenizer.convert_tokens_to_ids("=")
    ends = [backbone.tokenizer.eos_token_id, equals]
    whole = [r for group in generate(engine) for r in group]
    assert all(r.truncated == (r.ids[-1] != ends[0]) for r in whole)
    assert not all(r.truncated for r in whole)
    monkeypatch.setitem(vars(backbone), "eos_ids", ends)
    cut = [r for group in generate(engine) for r in group]
    assert all(r.ids[-1] == equals and equals not in r.ids[:-1] for r in cut if not r.truncated)
    assert any(r.ids[-1] == equals for r in cut)
    assert all(r.text.endswith("=") for r in cut if r.ids[-1] == equals)
    short = [r for group in generate(engine, max_new_tokens=2) for r in group]
    assert {len(r.ids) for r in short} <= {1, 2}
    assert all(r.ids[-1] in ends for r in short if len(r.ids) == 1)
    assert all(r.truncated for r in short if r.ids[-1] not in ends)


def test_greedy_responses_are_those_of_the_own_engine(engine):
    own = HFEngine()
    own.bind(engine.module)
    assert generate(engine, 1, temperature=0.0) == generate(own, 1, temperature=0.0)


def test_log_probs_are_of_the_distribution_that_was_drawn_from(engine):
    for group in generate(engine, top_k=1, max_new_tokens=8):
        for response in group:
            assert response.logprobs == pytest.approx([0.0] * len(response.ids), abs=1e-6)


def test_tokens_are_drawn_with_their_probabilities(engine):
    prompt = prompts_of(engine, 1)
    drawn = generate(engine, 600, prompts=prompt, max_new_tokens=1, temperature=1.5)[0]
    counts = torch.bincount(torch.tensor([r.ids[0] for r in drawn]), minlength=23)
    with torch.no_grad():
        logits = engine.module.actor(torch.tensor(prompt)).logits[0, -1]
    p = (logits / 1.5).softmax(0)
    assert ((counts / 600 - p).abs() < 4 * (p * (1 - p) / 600).sqrt() + 1e-3).all()


# --- whole runs -----------------------------------------------------------------------------------


def learn(folder, *flags):
    """The rows of `metrics.csv` of a run of its own process."""
    command = [sys.executable, "-m", "lit_reason", "fit", *tiny("dapo"), *flags]
    result = subprocess.run(
        [*command, "--run_dir=run"],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    with (folder / "run" / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def column(rows, key):
    return [float(row[key]) for row in rows if row.get(key)]


def test_a_policy_learns_from_rollouts_of_vllm(tmp_path):
    rows = learn(
        tmp_path,
        "--data.engine=VLLMEngine",
        "--data.engine.options.enforce_eager=true",
        "--data.val_task.limit=64",
        "--trainer.max_epochs=1",
        "--trainer.check_val_every_n_epoch=1",
    )
    assert max(column(rows, "mismatch/logprob_max")) < 1e-4
    assert len(column(rows, "mismatch/logprob_max")) == 10
    first, *_, last = column(rows, "accuracy")
    assert last > first + 0.1
    assert column(rows, "val/accuracy")[-1] > 0.45  # 0.38 before


def test_two_ranks_learn_from_rollouts_of_two_servers(urls, tmp_path):
    flags = ["--data.engine=VLLMServer", f"--data.engine.urls=[{','.join(urls)}]"]
    rows = learn(tmp_path, *SMALL, *flags, "--trainer.devices=2", "--trainer.strategy=ddp")
    assert max(column(rows, "mismatch/logprob_max")) < 1e-4
    assert len(column(rows, "mismatch/logprob_max")) == 2


# --- errors ---------------------------------------------------------------------------------------


def test_what_vllm_refuses_is_one_line(local):
    engine = VLLMEngine(options={**EAGER, "max_model_len": 10**6})
    engine.bind(ready(module_of()))
    with pytest.raises(ConfigError, match=r"VLLMEngine: vLLM does not start \(") as caught:
        generate(engine)
    assert "\n" not in str(caught.value)


def test_a_server_without_the_worker_extension_is_named(urls, monkeypatch):
    engine = VLLMServer(urls)
    call = engine.replicas[0].call
    monkeypatch.setattr(engine.replicas[0], "call", lambda method, *a: call("no_such", *a))
    with pytest.raises(ConfigError, match=r"data\.engine\.urls=http.*answers 5.. to /collective"):
        engine.bind(ready(module_of()))


def test_another_model_is_named(urls):
    other = copy.copy(Bundled())
    other.config.hidden_size = 32
    with pytest.raises(ConfigError, match=r"hidden_size=64, and model\.backbone has 32"):
        VLLMServer(urls).bind(ready_with(other))


def ready_with(backbone):
    module = module_of()
    module.backbone = backbone
    module.trainer = ready(module_of()).trainer
    return module
