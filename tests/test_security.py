"""Nothing that a model writes or a file holds is executed, and nothing secret is written down."""

import ast
import json
import pickle
import re
import socket
import time
from pathlib import Path

import pytest
import torch
import yaml

from lit_reason.__main__ import main
from lit_reason.errors import ConfigError, ConfigWarning, printable
from lit_reason.secrecy import command_without_secrets, hidden_key, masked, without_secrets
from lit_reason.tasks import MathProblems, PlanCount
from tests.conftest import ROOT, SMALL, fails, fit, tiny
from tests.test_reward_parts import saved

SOURCES = [*(ROOT / "lit_reason").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
NO_CODE = {"GenerationConfig.from_pretrained"}  # which none of its kind can bring
RUN = "__import__('pathlib').Path('executed').touch()"


def called(node):
    """The dotted name of a call."""
    return ast.unparse(node.func)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_no_source_executes_or_unpickles_what_it_is_given(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = called(node)
        assert name not in {"eval", "exec", "compile", "os.system", "pickle.load", "pickle.loads"}
        assert not name.endswith(("yaml.unsafe_load", "yaml.full_load", "joblib.load"))
        arguments = {k.arg: ast.unparse(k.value) for k in node.keywords}
        assert arguments.get("shell") != "True", name
        assert arguments.get("trust_remote_code", "False") == "False", name
        if name.endswith((".from_pretrained", ".from_config")) and name not in NO_CODE:
            assert "trust_remote_code" in arguments, name  # or it asks at the terminal
        if name == "torch.load":
            assert arguments["weights_only"] == "True"


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize("name", ["rows.pkl", "rows.pt", "rows.npy", "rows.jsonl", "rows.parquet"])
def test_a_pickle_is_no_data_set_whatever_its_name(name):
    Path(name).write_bytes(pickle.dumps([{"problem": Evil(), "answer": "1"}]))
    with pytest.raises(ConfigError):
        MathProblems(name)
    assert not Path("executed").exists()


def test_code_in_a_model_folder_is_refused_and_does_not_run(capsys):
    """Nobody can set `trust_remote_code`, so that nobody does by accident."""
    Path("model").mkdir()
    Path("model/evil.py").write_text(RUN)
    auto = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    Path("model/config.json").write_text(json.dumps({"model_type": "evil", "auto_map": auto}))
    backbone = ["--model.backbone=Pretrained", "--model.backbone.path=model"]
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, *backbone)
    assert "model.backbone" in line
    assert not Path("executed").exists()


@pytest.mark.parametrize("key", ["rewards", "critic", "policy"])
def test_code_beside_a_tokenizer_is_neither_run_nor_asked_about(key, capsys, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question"))
    saved("model")
    Path("model/evil.py").write_text(RUN)
    auto = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    settings = {"tokenizer_class": "Evil", "auto_map": auto}
    Path("model/tokenizer_config.json").write_text(json.dumps(settings))
    flags = {
        "rewards": ["--data.rewards.x=RewardModel", "--data.rewards.x.path=model"],
        "critic": ["--model.backbone.critic_init=model"],
        "policy": ["--model.backbone=Pretrained", "--model.backbone.path=model"],
    }
    line = fails(capsys, "fit", *tiny("ppo"), *SMALL, *flags[key])
    assert "cannot be loaded" in line
    assert not Path("executed").exists()


@pytest.mark.parametrize("text", [RUN, f"eval({RUN!r})", "!!python/object/apply:os.system [true]"])
def test_what_a_model_writes_is_text(text):
    """Verifier processes are tested in `test_verifier_pool.py`, pages in `test_report.py`."""
    task = PlanCount(n_max=3)
    (verdict,) = task.judge([task[0]], [text])
    assert not verdict.correct
    assert not Path("executed").exists()


def test_a_run_talks_to_nobody_and_writes_no_secret(monkeypatch, capfd):
    def refuse(*_):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    secret = "s3cr3t-0123456789"
    for name in ("WANDB_API_KEY", "HF_TOKEN", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, secret)
    run_dir = fit(*tiny("grpo"), *SMALL, "--data.rollouts_per_epoch=1")
    output = capfd.readouterr()
    assert secret not in output.out + output.err
    for path in (p for p in run_dir.rglob("*") if p.is_file()):
        assert secret.encode() not in path.read_bytes(), path


SECRETS = {
    "--trainer.logger.api_key=s3cr3t-01": "trainer.logger.api_key=…: no such key",
    "--data.engine.token=sk-s3cr3t": "data.engine.token=…: no such key",
    "--data.engine.auth_token=s3cr3t": "data.engine.auth_token=…: no such key",
    "--data.engine.aws_secret_access_key=s3cr3t": "aws_secret_access_key=…: no such key",
    "--data.engine.password=a,s3cr3t": "data.engine.password=…: no such key",
    "--data.engine.password=a s3cr3t": "data.engine.password=…: no such key",
    "--data.engine.url=http://a:1/v1?token=s3cr3t": "data.engine.url=http://a:1/v1?token=…: no",
    "--data.engine.credentials.of=s3cr3t": "data.engine.credentials.of=…: no such key",
    "--model.update.micro_batch_size={password: s3cr3t}": "model.update.micro_batch_size=",
    "--data.engine.pad_token_id=123456": "data.engine.pad_token_id=123456: no such key",
    "--data.engine.eos_token=123456": "data.engine.eos_token=123456: no such key",
    "--model.update.micro_batch_tokenz=123456": "micro_batch_tokenz=123456: no such key",
    "--data.engine.key=123456": "data.engine.key=123456: no such key",
}


@pytest.mark.parametrize("flag", SECRETS)
def test_an_error_does_not_repeat_a_secret(flag, capsys):
    logger = ["--trainer.logger=CSVLogger"] if "logger" in flag else []
    line = fails(capsys, "fit", *tiny("grpo"), *logger, flag)
    assert SECRETS[flag] in line
    assert "s3cr3t" not in line


def test_a_secret_in_a_file_is_not_repeated_either(capsys):
    Path("mine.yaml").write_text("model: {update: {micro_batch_size: {password: 'a, s3cr3t'}}}")
    line = fails(capsys, "fit", *tiny("grpo"), "--config=mine.yaml")
    assert "micro_batch_size={'password': …}: " in line


SAID = [
    "401 Authorization: Bearer s3cr3t",
    "x-api-key: s3cr3t",
    "password: s3cr3t",
    "password = s3cr3t",
    "api_key=s3cr3t Authorization: Bearer s3cr3t",
    "Cookie: a=s3cr3t; b=s3cr3t",
    "pwd=s3cr3t",
    "ssh_key: s3cr3t",
    "api.key: s3cr3t",
    "http://host/x?sig=s3cr3t&a=1",
    "https://user:s3c/s3cr3t@host",
    "https:/user:s3cr3t@host",
    "Proxy-Authorization: Basic s3cr3t==",
    '{"api_key":"s3cr3t"}',
]


@pytest.mark.parametrize("said", SAID)
def test_what_a_part_says_of_a_secret_is_not_told(said):
    line = printable(f"data.rewards.x: fn raised ValueError: {said}")
    assert line.startswith("data.rewards.x: fn raised ValueError: ")
    assert "s3cr3t" not in line


@pytest.mark.parametrize(
    "line",
    [
        "data.engine.token=…: no such key",
        "data.rewards.token: Boom raised ValueError: no (at token.py:3)",
        "model.update.max_new_tokens: must be at least 1",
        "set eos_token: there is none; pad_token=3 is one",
        "runs/secret: cannot be written",
        "secrets.yaml: cannot be written",
    ],
)
def test_an_ordinary_line_is_told_as_it_is(line):
    assert printable(line) == line


@pytest.mark.parametrize(
    "part",
    [
        *("'secret_", "secret_", "token.", "://a:", "'token':", "token='", "{token: '", "a@://b"),
        *("--a-", "--token ", "tokens=[", "token={", "a-", "A", "Bearer ", "name: a, value: '"),
    ],
)
def test_the_time_to_mask_a_text_grows_with_its_length(part):
    text = part[:1] + part * 10_000
    started = time.perf_counter()
    masked(text)
    without_secrets(json.dumps({"a": text, "b": f"{text}="}))
    command_without_secrets(["--x", f"--a={text}", text])
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    "text", ["password: !s3cr3t", "api_key: *s3cr3t", "token:\n  *s3cr3t", "{a: 1, token: *s3cr3t}"]
)
def test_what_is_wrong_with_a_file_is_said_without_its_secrets(text, capsys):
    Path("mine.yaml").write_text(text)
    line = fails(capsys, "fit", *tiny("grpo"), "--config=mine.yaml")
    assert re.search(r"config=mine\.yaml: not valid YAML in line \d, column \d+; quote the", line)
    assert "s3cr3t" not in line


LEAKY = """
from lit_reason.rewards import Reward
class Tok(Reward):
    def __init__(self, token: str = "", more: list[dict[str, str]] | None = None):
        super().__init__()
        self.token = token or more[0]["password"]
    def __call__(self, prompt, responses, verdicts):
        raise ValueError("401 for " + self.token)
"""


@pytest.mark.parametrize("given", ["token: hunter2", "more: [{password: hunter2}]"])
def test_a_secret_in_a_mapping_on_the_command_line_is_not_told(
    given, capsys, monkeypatch, tmp_path
):
    (tmp_path / "leaky_class.py").write_text(LEAKY)
    monkeypatch.syspath_prepend(tmp_path)
    flag = f"--data.rewards.x={{class_path: leaky_class.Tok, init_args: {{{given}}}}}"
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, flag)
    assert line.startswith("error: data.rewards.x: Tok raised ValueError: 401 for … (at leaky_cl")


def test_what_changed_on_resuming_is_not_told_of_a_secret():
    line = printable("changed on resuming: data.engine.token=a s3cr3t, was an s3cr3t: other")
    assert line.startswith("changed on resuming: data.engine.token=…")
    assert "s3cr3t" not in line


ASKS = """
from lightning.pytorch import Callback

class Asks(Callback):
    def __init__(self, api_key: str, headers: dict[str, str], urls: list[str], token: int = 3):
        assert api_key == headers["Authorization"] == "s3cr3t-01"
        assert urls == ["http://me:s3cr3t-01@host", "http://host?token=s3cr3t-01"]

    def on_train_end(self, trainer, module):
        pass
"""
ASKING = [
    "--callbacks.secret=asks.Asks",
    "--callbacks.secret.api_key=s3cr3t-01",
    "--callbacks.secret.headers={Authorization: s3cr3t-01}",
    "--callbacks.secret.urls=[http://me:s3cr3t-01@host, http://host?token=s3cr3t-01]",
]


def test_a_secret_in_a_configuration_is_written_nowhere(monkeypatch, tmp_path, capsys):
    (tmp_path / "asks.py").write_text(ASKS)
    monkeypatch.syspath_prepend(tmp_path)
    more = ["--data.rollouts_per_epoch=1", "--callbacks.export=ExportPolicy"]
    loggers = ["--trainer.logger=TensorBoardLogger", "--trainer.logger.save_dir=run"]
    run_dir = fit(*tiny("grpo"), *SMALL, *more, *loggers, *ASKING)
    written = [path for path in run_dir.rglob("*") if path.is_file()]
    assert any("tfevents" in path.name for path in written)
    for path in written:
        assert b"s3cr3t" not in path.read_bytes(), path
    on = [f"--config={run_dir}/config.yaml", "--ckpt_path=last", "--trainer.max_epochs=2"]
    for k in range(1, len(ASKING)):
        line = fails(capsys, "fit", *on, *ASKING[1:k])
        key = ASKING[k].split("=")[0].removeprefix("--").replace("secret.", "secret.init_args.")
        assert line.startswith(f"error: {key}")
        assert "config.yaml keeps no secrets; give it again, as --callbacks.secret" in line
    main(["fit", *on, *ASKING[1:]])
    assert "Asks" in (run_dir / "config.yaml").read_text()
    assert "s3cr3t" not in capsys.readouterr().out + (run_dir / "config.yaml").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda p: p.stem)
def test_nothing_in_our_configurations_sounds_secret(path):
    text = path.read_text()
    assert without_secrets(text) is text


@pytest.mark.parametrize(
    "text",
    [
        "stop: […]",
        "template: see https://a.b … then answer",
        "rewards: {step_token: </s>, my_eos_token: x, think_end_token: y}",
        "url: http://localhost:8000/models/me@v1",
        "{max_tokens: 4096, num_tokens: 1e9, token: 50256, secrets: 3, max_api_keys: 100000}",
        "{tokens: all, tokens_per_batch: 8000000, token_ids: [1, 2], stop_tokens: [abc]}",
        "{tokens: [50256, 3], special_tokens: {a: b}, tokenizer: gpt2}",
        "{special_token: x, eot_token: y, prefix_token: z, token: </s>, hub_token: '<|eot|>'}",
        "{secretary: abc, passwordless: abc, cookie_cutter: abc, pwd_dir: /x, author: me}",
        "{access_key_column: abc, password_min_length: 8000, secrets_file: /run/x, token_type: a}",
        "{key: abc, answer_key: abc, primary_key: abc, keyboard: abc, code: abc}",
        "{use_auth_token: true, auth: false, password: null, api_key: ''}",
        "template: 'Basic arithmetic'",
        "template: 'Password: {problem}'",
        "template: The bearer of 3 gifts",
        "command: [run, --max-tokens, 30000, --seed=1]",
        "env: [HF_TOKEN=$HF_TOKEN, 'HF_TOKEN=${HF_TOKEN}', A=b]",
        "url: http://h/x?page=2&answer_key=3#part=1",
    ],
)
def test_what_is_no_secret_is_written_and_read_as_it_is(text):
    assert without_secrets(text) is text
    assert hidden_key(yaml.safe_load(text)) is None


CARRIED = [
    {"password": 73519246},
    {"password": 73.519246},
    {"headers": {"Authorization": 73519246}},
    {"headers": {"X-Auth": "Zz9secret"}},
    {"secrets": [73519246]},
    {"passwords": {"me": "Zz9secret"}},
    {"tokens": {"me": "Zz9secret"}},
    {"tokens": ["Zz9secret"]},
    {"hf_tokens": ["Zz9secret"]},
    {"hf_tokens": {"me": "Zz9secret"}},
    *(
        {name: "Zz9secret"}
        for name in (
            "token", "auth", "bearer", "jwt", "wandb_key", "encryption_key", "signing_key",
            "account_key", "clientSecret", "dbpassword", "password_2", "secret_key", "db_pass",
        )
    ),
    {"auth": ["me", "Zz9secret"]},
    {"url": "https://me:Zz9secret@h/x@v1"},
    {"url": "https://me:p@Zz9secret@h/x"},
    {"url": "https://h/x#access_token=Zz9secret"},
    {"url": "https://h/x;password=Zz9secret"},
    {"url": "https://h/x?a=1&key=Zz9secret"},
    {"url": "https://h/x?code=Zz9secret&a=1"},
    {"database": "Server=h;Password=Zz9secret;x=1"},
    {"headers": "Bearer Zz9secret"},
    {"headers": "Basic Zz9secret"},
    {"headers": ["Authorization: Bearer Zz9secret"]},
    {"headers": ["x-api-key: Zz9secret"]},
    {"headers": "Cookie: a=b; sid=Zz9secret"},
    {"command": "curl -H 'Authorization: Bearer Zz9secret' http://h"},
    {"command": "run --token Zz9secret"},
    {"command": ["--token=Zz9secret"]},
    {"command": ["--api-key", "Zz9secret", "-v"]},
    {"env": "HF_TOKEN=Zz9secret"},
    {"env": [{"name": "HF_TOKEN", "value": "Zz9secret"}]},
]  # fmt: skip


@pytest.mark.parametrize("settings", CARRIED, ids=str)
def test_a_secret_is_written_in_no_form_and_missed_on_reading(settings):
    text = yaml.safe_dump({"x": settings, "other": "kept"})
    written = without_secrets(text)
    assert not re.search("Zz9secret|519246", written)
    assert yaml.safe_load(written)["other"] == "kept"
    assert hidden_key(yaml.safe_load(written)).startswith("x.")
    (flag,) = command_without_secrets([f"--x={yaml.safe_dump(settings, width=1000).strip()}"])
    if not flag.startswith("--x={"):
        (flag,) = command_without_secrets([f"--x={json.dumps(settings)}"])
    assert not re.search("Zz9secret|519246", flag)


@pytest.mark.parametrize("settings", CARRIED, ids=str)
def test_a_secret_is_told_in_no_form(settings):
    key, value = next(iter(settings.items()))
    assert not re.search("Zz9secret|519246", masked(f"data.x: got {settings} there"))
    assert not re.search("Zz9secret|519246", masked(f"data.x.{key}={value}: no such key"))


@pytest.mark.parametrize(
    "line",
    [
        "data.x: got {'max_tokens': 4096, 'tokens': [1, 2], 'secretary': 'abcd'}",
        "data.x: got {'special_token': 'abcd', 'use_auth_token': True}",
        "callbacks.secret=Mine: no such class",
        "callbacks.token.every_n=3000: must be at most 3",
        "http://h/x?page=2&answer_key=3: cannot be reached",
    ],
)
def test_an_ordinary_setting_is_told(line):
    assert masked(line) == line


def test_words_of_yaml_are_no_secrets():
    assert masked("set it to null", [("data.x.token", "null")]) == "set it to null"


def test_what_carries_a_secret_is_found_where_only_the_secret_is_said():
    given = [("data.x.headers", "Bearer Zz9secret"), ("data.x.url", "http://me:pw55@h")]
    assert masked("401 for Zz9secret, me:pw55", given) == "401 for …, …"


def test_a_command_is_written_down_without_secrets_and_else_as_it_is():
    ordinary = ["-m", "lit_reason", "--callbacks.token=parts.A", "--callbacks.token.n=3000"]
    ordinary += ["--data.x={a: 1}", "--data.token=3", "--seed", "4", "--dry_run"]
    assert command_without_secrets(ordinary) == ordinary
    secret = ["--callbacks.a.password", "Zz9secret", "--callbacks.a.pwd=12345678"]
    hidden = ["--callbacks.a.password", "…", "--callbacks.a.pwd=…"]
    assert command_without_secrets(secret) == hidden


@pytest.mark.parametrize("text", ["a: {token: x}", "a: [{password: x}]", "u: http://a?token=x"])
def test_what_was_hidden_is_found_again(text):
    assert hidden_key(yaml.safe_load(without_secrets(text))) is not None


DEFAULTS = """
from lightning.pytorch import Callback

class Base(Callback):
    def __init__(self, token: str = "tok", n: int = 1, passwords: tuple[str, ...] = ("pw", "pw2")):
        super().__init__()

    def on_train_end(self, trainer, module):
        pass

class Mine(Base):
    def __init__(self, api_token: str = "mark", password: str = "changeme", **kwargs):
        super().__init__(**kwargs)
"""


def test_the_default_of_a_class_is_no_secret(monkeypatch, tmp_path, capsys):
    """Nobody set it, so nobody can be asked to give it again."""
    (tmp_path / "with_defaults.py").write_text(DEFAULTS)
    monkeypatch.syspath_prepend(tmp_path)
    small = [*SMALL, "--data.rollouts_per_epoch=1"]
    run_dir = fit(*tiny("grpo"), *small, "--callbacks.a=with_defaults.Mine")
    saved = yaml.safe_load((run_dir / "config.yaml").read_text())["callbacks"]["a"]["init_args"]
    assert (saved["api_token"], saved["password"], saved["token"]) == ("mark", "changeme", "tok")
    assert list(saved["passwords"]) == ["pw", "pw2"]
    on = [f"--config={run_dir}/config.yaml", "--ckpt_path=last", "--trainer.max_epochs=2"]
    main(["fit", *on])
    other = "a: {class_path: with_defaults.Mine, init_args: {password: changed, api_token: mark}}"
    assert without_secrets(other).split("init_args:")[1].split() == [
        "password:", "…", "api_token:", "mark"
    ]  # fmt: skip
    assert "keeps no secrets" not in capsys.readouterr().err


def test_a_class_is_not_imported_for_its_defaults(monkeypatch, tmp_path):
    (tmp_path / "never_imported.py").write_text(RUN)
    monkeypatch.syspath_prepend(tmp_path)
    for path in ("never_imported.A", "never_imported", "", None, 3, "os.path.nothing", "os"):
        text = yaml.safe_dump({"class_path": path, "init_args": {"token": "x"}})
        assert yaml.safe_load(without_secrets(text))["init_args"] == {"token": "…"}
    assert not Path("executed").exists()


def test_a_checkpoint_that_runs_code_is_refused_unless_asked_for(capsys, recwarn):
    run_dir = fit(*tiny("grpo"), *SMALL, "--data.rollouts_per_epoch=1")
    last = run_dir / "checkpoints" / "last.ckpt"
    torch.save({**torch.load(last, weights_only=True), "more": Evil()}, last)
    on = [f"--config={run_dir}/config.yaml", f"--ckpt_path={last}", "--trainer.max_epochs=2"]
    assert "holds more than plain data" in fails(capsys, "fit", *on)
    assert not Path("executed").exists()
    assert not [w for w in recwarn if "may run code" in str(w.message)]
    with pytest.warns(ConfigWarning, match=r"^weights_only=false: the checkpoint may run code; "):
        main(["fit", *on, "--weights_only=false"])
    assert Path("executed").exists()
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["weights_only"] is None
