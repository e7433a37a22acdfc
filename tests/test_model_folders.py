"""Folders of models that are damaged, or describe other weights than they hold."""

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from lit_reason.backbones import Pretrained
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.rewards import RewardModel
from tests.conftest import SMALL, fails, tiny
from tests.test_backbones import save_model
from tests.test_reward_parts import saved

# of the pickle that a test writes
pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    saved(base / "rm", max_position_embeddings=64)
    save_model(base / "llama")
    return base


def config(**settings):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))

    return change


def file(name, content):
    content = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(content)


def pickled(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(open))


def indexed(weight_map):
    def change(folder):
        (folder / "model.safetensors").unlink()
        text = json.dumps({"metadata": {}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(text)

    return change


DAMAGE = {
    "pickle": (pickled, r"cannot be loaded \(its weights are a pickle of more than tensors"),
    "junk": (file("model.safetensors", b"junk" * 50), r"cannot be loaded \(.*header"),
    "foreign shards": (indexed({"a": "other.safetensors"}), r"No such file or directory: .*other"),
    "no shards": (indexed([]), "cannot be loaded"),
    "tokenizer list": (file("tokenizer_config.json", "[]"), "holds a list, not a mapping"),
    "tokenizer cut off": (file("tokenizer_config.json", "{"), r"cannot be loaded \(Expecting"),
    "tokenizer Latin-1": (file("tokenizer_config.json", b'{"a": "\xfc"}'), "codec can't decode"),
    "no tokens": (file("tokenizer.json", "{}"), r"cannot be loaded \(KeyError: 'added_tokens'\)"),
    "no config": (file("config.json", "null"), "cannot be loaded"),
    "negative": (config(hidden_size=-1), r"cannot be loaded \(.*hidden size \(-1\)"),
    "text": (config(hidden_size="x"), r"cannot be loaded \(.*'hidden_size' expected int, got str"),
    "width": (config(hidden_size=64), r"weight is of shape \(.*\), and config\.json says \(.*64"),
    "layers": (config(num_hidden_layers=3), r"lacks weights, the first is model\.layers\.2\.inp"),
    "vocabulary": (config(vocab_size=7), r"is of shape \(.*\), and config\.json says \(7, "),
    "negative vocabulary": (config(vocab_size=-7), r"cannot be loaded \(.*negative dimension"),
}
OF_POLICIES = {
    "generation list": (file("generation_config.json", "[1]"), "cannot be loaded"),
    "generation cut off": (file("generation_config.json", "{"), "not a valid JSON file"),
    "end token": (
        file("generation_config.json", '{"eos_token_id": "x"}'),
        r"\(its eos_token_id is 'x', not the number of a token\)",
    ),
}


def policy(folder):
    backbone = Pretrained(str(folder))
    assert backbone.tokenizer.eos_token_id in backbone.eos_ids
    backbone.actor()


def reward(folder):
    RewardModel(str(folder)).setup(None, 8, None)


def damaged(folders, name, change):
    shutil.copytree(folders / name, "model")
    change(Path("model"))
    return "model"


@pytest.mark.parametrize("damage", DAMAGE | OF_POLICIES)
def test_a_damaged_policy_is_one_line(folders, damage):
    change, message = (DAMAGE | OF_POLICIES)[damage]
    with pytest.raises(ConfigError, match=rf"^model\.backbone\.path=model: .*{message}") as error:
        policy(damaged(folders, "llama", change))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_reward_model_is_one_line(folders, damage):
    change, message = DAMAGE[damage]
    with pytest.raises(ConfigError, match=rf"^RewardModel\.path=model: .*{message}") as error:
        reward(damaged(folders, "rm", change))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["pickle", "junk"])
@pytest.mark.parametrize(
    ("kind", "key", "part"),
    [
        ("rm", "data.rewards.x.path", "--data.rewards.x=RewardModel"),
        ("rm", "model.backbone.critic_init", "--model.backbone=Bundled"),
        ("llama", "model.backbone.path", "--model.backbone=Pretrained"),
    ],
)
def test_a_damaged_folder_is_named_with_its_key(folders, damage, kind, key, part, capsys):
    damaged(folders, kind, DAMAGE[damage][0])
    flags = [part, f"--{key}=model", "--run_dir=run"]
    line = fails(capsys, "fit", *tiny("ppo"), *SMALL, *flags)
    assert re.match(rf"error: {re.escape(key)}=model: {DAMAGE[damage][1]}", line), line


@pytest.mark.parametrize("notes", [None, "{", "3"])
def test_a_damaged_critic_is_one_line(folders, notes):
    shutil.copytree(folders / "llama", "critic")
    critic = Path("critic/critic.safetensors")
    if notes is None:
        critic.write_bytes(b"junk" * 50)
    else:
        save_file(load_file("critic/model.safetensors"), critic, {"architecture": notes})
    backbone = Pretrained(str(folders / "llama"), critic_init="critic")
    message = r"^model\.backbone\.critic_init=critic: critic\.safetensors: cannot be loaded"
    with pytest.raises(ConfigError, match=message):
        backbone.critic()


def test_a_dry_run_names_a_damaged_folder_too(folders, capsys):
    damaged(folders, "llama", config(vocab_size=-7))
    flags = ["--model.backbone=Pretrained", "--model.backbone.path=model", "--dry_run=true"]
    line = fails(capsys, "fit", *tiny("ppo"), *SMALL, *flags)
    assert "error: model.backbone=Pretrained(model): cannot be loaded (RuntimeError" in line


def test_weights_without_a_place_in_the_model_are_warned_of(folders):
    folder = damaged(folders, "llama", config(num_hidden_layers=1))
    message = r"^model\.backbone\.path=model: 9 of its weights have no place .* model\.layers\.1\."
    with pytest.warns(ConfigWarning, match=message):
        policy(folder)
