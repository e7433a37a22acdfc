"""The vLLM engines without vLLM: settings, answers, and servers that are not what they should be.

vLLM itself is tested in `test_vllm.py`, where it is installed.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch

from lit_reason.backbones import Bundled, Scratch
from lit_reason.engines import VLLMEngine, VLLMServer, vllm_engine
from lit_reason.engines.replica import Replica
from lit_reason.engines.vllm_protocol import as_responses
from lit_reason.engines.vllm_worker import facts
from lit_reason.errors import ConfigError
from tests.conftest import SMALL, fails, ready, tiny
from tests.runs import module_of

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
        ({"urls": ["http://a"], "timeout": 0}, r"data\.engine\.timeout=0: must be above 0"),
    ],
)
def test_addresses_that_are_none_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        VLLMServer(**settings)


def test_a_server_that_is_not_there_is_named(capsys):
    flags = ["--data.engine=VLLMServer", "--data.engine.urls=[http://127.0.0.1:9]"]
    line = fails(capsys, "fit", *tiny("dapo"), *SMALL, *flags)
    assert "data.engine.urls=http://127.0.0.1:9: cannot be reached (" in line
    assert "start it with `VLLM_SERVER_DEV_MODE=1 vllm serve" in line


class Server:
    """Answers paths with what it is given: a status, and JSON or a text."""

    def __init__(self, answers):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, said = answers.get(self.path, (404, {}))
                said = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self.url

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


MODELS = {"/v1/models": (200, {"data": [{"id": "policy", "max_model_len": 512}]})}
OTHER = {**facts(Scratch("abc", hidden_size=32, heads=1).config), "precision": "float32"}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({}, r"has no /v1/models; start it with `VLLM"),
        (MODELS, r"has no /collective_rpc; start it with `VLLM_SERVER_DEV_MODE=1 vllm serve"),
        ({"/v1/models": (200, b"<html>")}, r"answers b'<html>' to /v1/models, which is no JSON"),
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
    with Server(answers) as url, pytest.raises(ConfigError, match=message) as caught:
        VLLMServer([url]).bind(ready(module_of()))
    assert f"data.engine.urls={url}: " in str(caught.value)


def test_the_address_of_the_api_is_taken_for_that_of_the_server():
    assert Replica("http://a:1/v1/", 1).url == Replica("http://a:1", 1).url == "http://a:1"


def test_ranks_take_turns_with_the_replicas():
    own = {**facts(Bundled().config), "precision": "bfloat16"}
    answers = {**MODELS, "/collective_rpc": (200, {"results": [own]})}
    with Server(answers) as a, Server(answers) as b, Server(answers) as c:
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
