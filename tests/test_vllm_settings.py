"""The vLLM engines without vLLM: settings, answers, what servers are asked, and wrong servers.

vLLM itself is tested in `test_vllm.py`, where it is installed.
"""

import re
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lit_reason.backbones import Bundled, Scratch
from lit_reason.engines import VLLMEngine, VLLMServer, vllm_engine, vllm_server
from lit_reason.engines.replica import Replica
from lit_reason.engines.vllm_protocol import as_responses
from lit_reason.engines.vllm_worker import facts
from lit_reason.errors import ConfigError
from lit_reason.rollout import Sampling
from tests.conftest import SMALL, fails, ready, tiny
from tests.runs import data_of, module_of, run
from tests.stand_in import Copy, Server

# --- answers --------------------------------------------------------------------------------------


def test_any_end_token_ends_a_response_and_the_budget_truncates(backbone):
    rows = [([5, 6, 1], [-0.1, -0.2, -0.3]), ([5, 2], [-0.1, -0.2]), ([5, 6], [-0.1, -0.2])]
    responses = as_responses(rows, backbone.tokenizer, eos_ids=[1, 2])
    assert [r.truncated for r in responses] == [False, False, True]
    assert [r.ids for r in responses] == [(5, 6, 1), (5, 2), (5, 6)]
    assert responses[0].logprobs == (-0.1, -0.2, -0.3)
    assert responses[0].text == responses[2].text == backbone.tokenizer.decode([5, 6])


# --- errors ---------------------------------------------------------------------------------------


@pytest.fixture
def vllm(monkeypatch):
    """Makes vLLM look installed."""
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: object())


def test_without_vllm_the_engine_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(vllm_engine, "find_spec", lambda name: None)
    line = fails(capsys, "fit", *tiny("dapo"), *SMALL, "--data.engine=VLLMEngine")
    assert "data.engine=VLLMEngine: needs vllm" in line
    assert "pip install 'lit-reason[vllm]', or choose HFEngine" in line


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": 1.5}, r"data\.engine\.memory=1\.5: must lie between 0 and 1"),
        (
            {"options": {"dtype": "half"}},
            r"options\.dtype=half: .*remove it, and set data\.engine",
        ),
        ({"options": {"enable_sleep_mode": True}}, r"remove it, and set data\.engine\.sleep"),
        ({"options": {"model": "x"}}, r"options\.model=x: is set by the engine; remove it$"),
        ({"options": {"tensor_parallel_size": 2}}, r"in one process; start `vllm serve`"),
    ],
)
def test_settings_that_the_engine_cannot_have_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        VLLMEngine(**settings)


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    ("ranks", "device", "message"),
    [
        (2, "cpu", r"runs in one process, and the run has 2; set trainer\.devices=1"),
        (1, "cuda:3", r"set CUDA_VISIBLE_DEVICES=3 and trainer\.devices=1"),
    ],
)
def test_more_ranks_or_another_device_than_vllm_has_are_refused(ranks, device, message):
    strategy = SimpleNamespace(root_device=torch.device(device))
    trainer = SimpleNamespace(world_size=ranks, strategy=strategy)
    with pytest.raises(ConfigError, match=message):
        VLLMEngine().bind(SimpleNamespace(trainer=trainer))


@pytest.mark.usefixtures("vllm")
def test_sleep_without_a_gpu_is_refused():
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    trainer = SimpleNamespace(world_size=1, strategy=strategy)
    with pytest.raises(ConfigError, match=r"data\.engine\.sleep=true: .*set it to false"):
        VLLMEngine(sleep=True).bind(SimpleNamespace(trainer=trainer))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"urls": []}, r"data\.engine\.urls=\[\]: names no server; start one with `VLLM_SERVER_"),
        ({"urls": ["localhost:80"]}, r"data\.engine\.urls=localhost:80: is no address; give one"),
        ({"urls": ["http://a", "http://a"]}, "names a server twice"),
        ({"urls": ["http://a"], "timeout": 0}, r"data\.engine\.timeout=0: must be a time above 0"),
        ({"urls": ["http://a"], "timeout": 1e300}, r"timeout=1e\+300: .* at most 1e\+06 seconds"),
        ({"urls": ["http://a/", "http://b", "HTTP://A:80/v1"]}, "names a server twice"),
        ({"urls": ["http://a:99999"]}, r"urls=http://a:99999: is no address"),
        ({"urls": ["http://[a"]}, r"urls=http://\[a: is no address"),
        ({"urls": ["http://a?x=1"]}, r"urls=http://a\?x=1: is no address"),
    ],
)
def test_addresses_that_are_none_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        VLLMServer(**settings)


@pytest.mark.parametrize("urls", ["[http://me:secret@a:1]", "http://me:secret@a:1"])
def test_a_password_in_an_address_is_refused_and_not_repeated(urls, capsys):
    flags = ["--data.engine=VLLMServer", f"--data.engine.urls={urls}", "--run_dir=run"]
    line = fails(capsys, "fit", *tiny("dapo"), *SMALL, *flags)
    assert re.search(r"data\.engine\.urls=(http://)?…@a:1: ", line)
    assert "secret" not in line
    assert not Path("run").exists()
    if urls[0] == "[":
        assert "must hold no user or password, which each config.yaml" in line


def test_a_server_that_is_not_there_is_named(capsys):
    flags = ["--data.engine=VLLMServer", "--data.engine.urls=[http://127.0.0.1:9]"]
    line = fails(capsys, "fit", *tiny("dapo"), *SMALL, *flags)
    assert "data.engine.urls=http://127.0.0.1:9: cannot be reached (" in line
    assert "start it with `VLLM_SERVER_DEV_MODE=1 vllm serve" in line


def test_a_server_that_is_slow_is_not_taken_for_one_that_is_not_there():
    message = r"^data\.engine\.timeout=0\.2: http://127\.0\.0\.1:\d+ takes longer to answer /x"
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        replica = Replica(f"http://127.0.0.1:{deaf.getsockname()[1]}", 0.2)
        with pytest.raises(ConfigError, match=message):
            replica.get("/x")


def test_no_proxy_is_asked(monkeypatch):
    with Server({}) as proxy, Server({"/x": (200, {"a": 1})}) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        assert Replica(server.url, 5).post("/x", {"b": 2})["a"].of(int) == 1
    assert server.asked == [("/x", {"b": 2})]
    assert not proxy.asked


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status):
    with Server({"/x": (200, {})}) as other:
        away = (status, b"", {"Location": f"{other.url}/x"})
        with Server({"/x": away}) as server:
            replica = Replica(server.url, 5)
            message = rf"urls={server.url}: sends /x on to another address \({other.url}/x\), and"
            for ask in (replica.get, replica.post):
                with pytest.raises(ConfigError, match=message):
                    ask("/x")
    assert len(server.asked) == 2
    assert not other.asked


MODELS = {"/v1/models": (200, {"data": [{"id": "policy", "max_model_len": 512}]})}
OWN = {**facts(Bundled().config), "precision": "float32"}
OTHER = {**facts(Scratch("abc", hidden_size=32, heads=1).config), "precision": "float32"}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({}, r"has no /v1/models; start it with `VLLM"),
        (MODELS, r"has no /collective_rpc; start it with `VLLM_SERVER_DEV_MODE=1 vllm serve"),
        ({"/v1/models": (200, b"<html>")}, r"answer to /v1/models is no JSON \(b'<html>'\); give"),
        (
            {"/v1/models": (200, b"")},
            r"the answer to /v1/models has no `data`; give the address of",
        ),
        ({"/v1/models": (200, {})}, r"the answer to /v1/models has no `data`"),
        ({"/v1/models": (200, [])}, r"the answer to /v1/models has no `data`"),
        (
            {"/v1/models": (200, {"data": []})},
            r"to /v1/models has no `data\[0\]`; give the address",
        ),
        (
            {**MODELS, "/collective_rpc": (200, {"results": []})},
            r"the answer to /collective_rpc has no `results\[0\]`",
        ),
        (
            {**MODELS, "/collective_rpc": (200, {"results": [None]})},
            r"the answer to /collective_rpc has None as `results\[0\]`",
        ),
        (
            {**MODELS, "/collective_rpc": (200, {"results": [{**OWN, "precision": "int3"}]})},
            r"the answer to /collective_rpc names the precision int3",
        ),
        (
            {
                "/v1/models": (200, {"data": [{"id": "policy"}]}),
                "/collective_rpc": (200, {"results": [OWN]}),
            },
            r"the answer to /v1/models has no `data\[0\]\.max_model_len`",
        ),
        (
            {**MODELS, "/collective_rpc": (500, {"error": "no such method"})},
            r"answers 500 to /collective_rpc \(\{\"error\": \"no such method\"\}\)",
        ),
        (
            {**MODELS, "/collective_rpc": (200, {"results": [OTHER]})},
            r"serves a model with vocab_size=6, and model\.backbone has 23; serve the folder",
        ),
    ],
)
def test_a_server_of_another_kind_or_model_is_named(answers, message):
    with Server(answers) as server, pytest.raises(ConfigError, match=message) as caught:
        VLLMServer([server.url]).bind(ready(module_of()))
    assert f"data.engine.urls={server.url}: " in str(caught.value)
    assert "\n" not in str(caught.value)


def choices(**changed):
    whole = {"index": 0, "token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.1, -0.2]}}
    choice = {k: v for k, v in {**whole, **changed}.items() if v != "absent"}
    return {"choices": [choice]}


COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize(
    ("path", "said", "message"),
    [
        ("/reset_prefix_cache", b"", "has no `success`"),
        ("/reset_prefix_cache", {"success": "yes"}, r"has 'yes' as `success`"),
        (COMPLETIONS, {}, "has no `choices`"),
        (COMPLETIONS, {"choices": []}, r"has no `choices\[0\]`"),
        (COMPLETIONS, {"choices": None}, "has None as `choices`"),
        (
            COMPLETIONS,
            {"choices": choices()["choices"] * 2},
            "has 2 `choices` where 1 were asked for",
        ),
        (COMPLETIONS, choices(index="absent"), r"has no `choices\[0\]\.index`"),
        (COMPLETIONS, choices(token_ids="absent"), r"has no `choices\[0\]\.token_ids`"),
        (COMPLETIONS, choices(token_ids=None), r"has None as `choices\[0\]\.token_ids`"),
        (COMPLETIONS, choices(token_ids=["a"]), r"has \['a'\] as `choices\[0\]\.token_ids`"),
        (COMPLETIONS, choices(logprobs=None), r"has no `choices\[0\]\.logprobs\.token_logprobs`"),
        (
            COMPLETIONS,
            choices(logprobs={"token_logprobs": [None, -0.1]}),
            r"has \[None, -0\.1\] as `choices\[0\]\.logprobs\.token_logprobs`",
        ),
    ],
)
def test_an_answer_that_lacks_a_field_is_one_line(path, said, message, copies):
    server = copies[0]
    server.answers[path] = (200, said)
    engine = VLLMServer([server.url])
    engine.bind(ready(module_of()))
    whole = rf"^data\.engine\.urls={server.url}: the answer to {path} {message}; give the address"
    with pytest.raises(ConfigError, match=whole):
        engine.generate([[3, 4]], 1, Sampling(max_new_tokens=2), seed=0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"token_ids": [5]}, "a response of 1 tokens has 2 entries in logprobs"),
        ({"token_ids": [5, 99999]}, "a response has ids that are no tokens of the model"),
    ],
)
def test_what_a_server_samples_for_the_probe_is_checked(changed, message, copies):
    server = copies[0]
    server.answers[COMPLETIONS] = (200, choices(**changed))
    engine = VLLMServer([server.url])
    engine.bind(ready(module_of()))
    with pytest.raises(ConfigError, match=rf"data\.engine=VLLMServer: {message}"):
        engine.generate([[3, 4]], 1, Sampling(max_new_tokens=2), seed=0)


def test_the_address_of_the_api_is_taken_for_that_of_the_server():
    assert Replica("http://a:1/v1/", 1).url == Replica("http://a:1", 1).url == "http://a:1"


def test_ranks_take_turns_with_the_replicas():
    own = {**facts(Bundled().config), "precision": "bfloat16"}
    answers = {**MODELS, "/collective_rpc": (200, {"results": [own]})}
    with Server(answers) as first, Server(answers) as second, Server(answers) as third:
        a, b, c = first.url, second.url, third.url
        for rank, world, sent, asked in [(0, 2, [a, c], [a, c]), (3, 4, [], [a])]:
            engine = VLLMServer([a, b, c])
            trainer = SimpleNamespace(global_rank=rank, world_size=world)
            engine.bind(SimpleNamespace(trainer=trainer, backbone=Bundled()))
            assert [r.url for r in engine.own] == sent
            assert [r.url for r in engine.asked] == asked
            assert engine.precision == "bfloat16"
            assert engine.context == 512
        engine = VLLMServer([a], sleep=True)
        with pytest.raises(ConfigError, match=r"4 ranks share 1 servers.*give 4 in"):
            engine.bind(SimpleNamespace(trainer=trainer, backbone=Bundled()))


# --- what servers are asked -----------------------------------------------------------------------


def methods(server):
    """What a server was asked, in order."""
    return [body["method"] if path == "/collective_rpc" else path for path, body in server.asked]


@pytest.fixture
def copies(backbone):
    with Copy(backbone) as first, Copy(backbone) as second:
        yield first, second


def test_weights_arrive_in_pieces_and_are_loaded_at_once(copies, monkeypatch):
    monkeypatch.setattr(vllm_server, "CHUNK", 50_000)
    engine, module = VLLMServer([copies[0].url]), ready(module_of())
    engine.bind(module)
    engine.generate([[3, 4]], 1, Sampling(max_new_tokens=2), seed=0)
    asked = methods(copies[0])
    pieces = asked.count("receive_policy_weights")
    assert pieces > 3
    assert asked == [
        "/v1/models",
        "describe_policy",
        "begin_policy_weights",
        *["receive_policy_weights"] * pieces,
        "load_policy_weights",
        "/reset_prefix_cache",
        "/v1/completions",  # the probe
        "/v1/completions",
    ]
    own = dict(module.actor.named_parameters())
    assert all(torch.equal(w, own[n]) for n, w in copies[0].worker.model.named_parameters())


def test_a_run_with_servers_learns_what_it_sampled(copies):
    engine, seen = VLLMServer([c.url for c in copies], sleep=True), []
    module, data = module_of(), data_of(engine=engine, rollouts_per_epoch=2)
    rollout = data.rollout
    data.rollout = lambda: seen.append(rollout()) or seen[-1]
    run(module, data)
    for server in copies:  # two prompts: one each
        asked = methods(server)
        assert asked.count("load_policy_weights") == 2
        assert asked.count("/v1/completions") == 4
        assert asked.count("/wake_up") == asked.count("/sleep?level=1") == 2
    assert [batch.policy_version for batch in seen] == [0, 1]
    seeds = [b["seed"] for c in copies for path, b in c.asked if path == "/v1/completions"]
    assert len(set(seeds)) == 1 + 4  # the probes share one


def test_responses_come_in_the_order_of_prompts_and_samples(copies):
    one, two = VLLMServer([copies[0].url]), VLLMServer([c.url for c in copies])
    answers = []
    for engine in (one, two):
        engine.bind(ready(module_of()))
        prompts = [[3, 4], [5, 6, 7], [8]]
        answers.append(engine.generate(prompts, 3, Sampling(max_new_tokens=12), seed=5))
    assert answers[0] == answers[1]
    assert [len(group) for group in answers[0]] == [3, 3, 3]
    assert copies[1].asked[-1][1]["prompt"] == [5, 6, 7]


def test_every_setting_of_the_distribution_is_sent(copies):
    engine = VLLMServer([copies[0].url])
    engine.bind(ready(module_of()))
    engine.generate([[3, 4]], 2, Sampling(0.7, 0.9, 5, 4), seed=11)
    assert copies[0].asked[-1][1] == {
        "n": 2,
        "seed": 11,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 4,
        "stop_token_ids": Bundled().eos_ids,
        "logprobs": 0,
        "model": "policy",
        "prompt": [3, 4],
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def test_a_server_that_loses_weights_or_keeps_prompts_is_named(copies):
    server = copies[0]
    engine = VLLMServer([server.url])
    server.answers["/reset_prefix_cache"] = (200, {"success": False})
    engine.bind(ready(module_of()))
    with pytest.raises(ConfigError, match=r"cannot forget what other weights have read"):
        engine.generate([[3, 4]], 1, Sampling(max_new_tokens=2), seed=0)
    server.worker.receive_policy_weights = lambda chunk: None
    with pytest.raises(ConfigError, match=r"loaded \['0'\] of 39 weights; does another run send"):
        engine.generate([[3, 4]], 1, Sampling(max_new_tokens=2), seed=0)
