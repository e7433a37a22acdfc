"""A stand-in for `vllm serve`: its addresses and answers, with `transformers` behind them.

It tests this side of the protocol: what is sent, in which order, and how answers are read. Whether
vLLM keeps its side is a question for `test_vllm.py`.
"""

import copy
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import urlsplit

import torch
from lightning.pytorch import Trainer

from lit_reason.engines.vllm_worker import PolicyWorker
from lit_reason.rollout import HFEngine, Sampling

LOCK = threading.Lock()  # of all servers: sampling seeds the process


class Server:
    """Answers paths with a status and JSON or bytes, or what a function makes of the request.

    Headers may follow in a dictionary.

    Attributes:
        asked: Path and body of each request, in order.
    """

    def __init__(self, answers):
        self.answers, self.asked = answers, []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = json.loads(sent) if sent else None
                with LOCK:
                    server.asked.append((self.path, body))
                    answer = server.answers.get(urlsplit(self.path).path, (404, {}))
                    status, said, *more = answer(body) if callable(answer) else answer
                said = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(status)
                for name, value in {"Content-Length": len(said), **dict(*more)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(said)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


class Worker(PolicyWorker):
    """What the class is mixed into: it has a model, and loads weights by their names."""

    def __init__(self, backbone):
        self.model = backbone.actor().eval()
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.zero_()  # what is right was sent
        self.model_config = SimpleNamespace(
            dtype=torch.float32, hf_text_config=copy.deepcopy(backbone.config)
        )

    def reload_weights(self, weights_iterator):
        self.model.load_state_dict(dict(weights_iterator), strict=False)


class Copy(Server):
    """A server with a copy of the policy."""

    def __init__(self, backbone, context=512):
        self.worker, self.backbone = Worker(backbone), backbone
        self.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
        model = {"id": "policy", "max_model_len": context}
        super().__init__(
            {
                "/v1/models": (200, {"data": [model]}),
                "/collective_rpc": self.call,
                "/v1/completions": self.complete,
                "/reset_prefix_cache": (200, {"success": True}),
                "/sleep": (200, {"status": "sleeping"}),
                "/wake_up": (200, {"status": "awake"}),
            }
        )

    def call(self, body):
        result = getattr(self.worker, body["method"])(*body["args"])
        return 200, {"results": [result if result is None or type(result) is dict else str(result)]}

    def complete(self, body):
        engine = HFEngine()
        engine.bind(
            SimpleNamespace(
                actor=self.worker.model,
                backbone=self.backbone,
                device=torch.device("cpu"),
                trainer=self.trainer,
                wants_sampled_entropy=False,
            )
        )
        sampling = Sampling(body["temperature"], body["top_p"], body["top_k"], body["max_tokens"])
        (group,) = engine.generate([body["prompt"]], body["n"], sampling, body["seed"])
        choices = [
            {"index": i, "token_ids": r.ids, "logprobs": {"token_logprobs": r.logprobs}}
            for i, r in enumerate(group)
        ]
        return 200, {"choices": choices[::-1]}
