"""A checkpoint's policy as a `transformers` folder."""

import runpy
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from lit_reason.backbones import Scratch
from tests.conftest import SMALL, fails, fit, full_disk, tiny

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "export_hf.py")
BACKBONE = {"alphabet": "0123456789+=", "hidden_size": 32, "layers": 1, "heads": 1}


def export_hf(*args):
    runpy.run_path(SCRIPT)["main"]([str(a) for a in args])


@pytest.fixture
def checkpoint(tmp_path):
    """A run folder with a checkpoint whose policy is not the starting one."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    # the critic's folder may be gone by the time of the export
    init = {**BACKBONE, "critic_init": str(tmp_path / "gone")}
    backbone = {"class_path": "lit_reason.backbones.Scratch", "init_args": init}
    (run / "config.yaml").write_text(yaml.safe_dump({"model": {"backbone": backbone}}))
    torch.manual_seed(1)
    actor = {k: torch.randn_like(v) for k, v in Scratch(**BACKBONE).actor().state_dict().items()}
    if "lm_head.weight" in actor:  # tied
        actor["lm_head.weight"] = actor["model.embed_tokens.weight"]
    state = {**{f"actor.{k}": v for k, v in actor.items()}, "critic.head.weight": torch.ones(1)}
    path = run / "checkpoints" / "last.ckpt"
    torch.save({"state_dict": state, "policy_version": 12}, path)
    return path


def test_the_folder_holds_the_weights_of_the_checkpoint(checkpoint, tmp_path, capsys):
    out = tmp_path / "policy"
    export_hf(checkpoint, out)
    assert capsys.readouterr().out == f"{out}\n"
    model = AutoModelForCausalLM.from_pretrained(out, dtype="auto").state_dict()
    saved = torch.load(checkpoint, weights_only=True)["state_dict"]
    actor = {k.removeprefix("actor."): v for k, v in saved.items() if k.startswith("actor.")}
    assert model.keys() == actor.keys()
    modes = {path.name: path.stat().st_mode for path in out.iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]  # others may read both
    for name, value in model.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, actor[name]), name
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.decode(tokenizer("12+3=")["input_ids"]) == "12+3="


def test_the_folder_says_when_to_stop_and_where_it_came_from(checkpoint, tmp_path):
    out = tmp_path / "policy"
    export_hf(checkpoint, out)
    names = {path.name for path in out.iterdir()}
    assert names >= {"config.json", "generation_config.json", "model.safetensors", "README.md"}
    settings = GenerationConfig.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert settings.eos_token_id == tokenizer.eos_token_id is not None
    card = (out / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "transformers"
    assert "| started from | Scratch |\n| rollouts | 12 |" in card


def test_a_damaged_checkpoint_is_one_line(checkpoint, tmp_path, capsys):
    data = bytearray(checkpoint.read_bytes())
    data[len(data) // 2] ^= 1
    checkpoint.write_bytes(data)
    assert "not as it was written" in refused(capsys, checkpoint, tmp_path / "policy")


def refused(capsys, *args):
    with pytest.raises(SystemExit) as stop:
        export_hf(*args)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def test_what_is_missing_is_said_in_one_line(checkpoint, tmp_path, capsys):
    run, out = checkpoint.parents[1], tmp_path / "policy"
    missing = run / "checkpoints" / "none.ckpt"
    for path in (missing, tmp_path / "none" / "checkpoints" / "last.ckpt"):
        assert f"{path}: no such checkpoint; give one of" in refused(capsys, path, out)
    sharded = run / "checkpoints" / "sharded.ckpt"
    sharded.mkdir()
    assert "consolidate_checkpoint" in refused(capsys, sharded, out)
    torch.save({"state_dict": {"critic.head.weight": torch.ones(1)}}, checkpoint)
    assert "holds no policy" in refused(capsys, checkpoint, out)
    (run / "config.yaml").unlink()
    assert "--config" in refused(capsys, checkpoint, out)
    assert not out.exists()


def test_weights_of_another_architecture_are_refused(checkpoint, tmp_path, capsys):
    config = checkpoint.parents[1] / "config.yaml"
    other = yaml.safe_load(config.read_text())
    other["model"]["backbone"]["init_args"]["hidden_size"] = 64
    path = tmp_path / "other.yaml"
    path.write_text(yaml.safe_dump(other))
    error = refused(capsys, checkpoint, tmp_path / "policy", "--config", path)
    assert "do not fit the backbone" in error


def test_nothing_is_overwritten(checkpoint, tmp_path, capsys):
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "notes.txt").write_text("mine")
    assert "not empty" in refused(capsys, checkpoint, tmp_path / "policy")


@pytest.mark.parametrize("content", [{"a": 1}, [1], torch.ones(2), {"state_dict": {"actor.x": 1}}])
def test_a_file_of_something_else_is_refused(content, checkpoint, tmp_path, capsys):
    torch.save(content, checkpoint)
    assert "holds no policy" in refused(capsys, checkpoint, tmp_path / "policy")


def test_weights_that_are_not_finite_are_not_exported(checkpoint, tmp_path, capsys):
    saved = torch.load(checkpoint, weights_only=True)
    saved["state_dict"]["actor.model.norm.weight"][0] = torch.nan
    torch.save(saved, checkpoint)
    error = refused(capsys, checkpoint, tmp_path / "policy")
    assert "not finite, the first in model.norm.weight" in error
    assert not (tmp_path / "policy").exists()


CONFIGS = {
    "": "is empty",
    "- 1": "holds a list",
    "data: {}": "names no class as model.backbone",
    "model: 3": "names no class as model.backbone",
    "model: {backbone: null}": "names no class as model.backbone",
    "model: {backbone: {class_path: 3}}": "names no class as model.backbone",
    "model: {backbone: {class_path: Scratch}}": "cannot be built",
    "model: {backbone: {class_path: lit_reason.Nothing}}": "cannot be built",
    "model: {backbone: {class_path: lit_reason.backbones.Scratch, init_args: {a: 1}}}": "built",
    "model: [": "not valid YAML",
}


@pytest.mark.parametrize("text", CONFIGS)
def test_a_configuration_of_no_run_is_one_line(text, checkpoint, tmp_path, capsys):
    (tmp_path / "other.yaml").write_text(text)
    given = checkpoint, tmp_path / "policy", "--config", tmp_path / "other.yaml"
    assert CONFIGS[text] in refused(capsys, *given)


def test_a_folder_that_cannot_be_written_is_one_line_and_stays_free(checkpoint, tmp_path, capsys):
    out = tmp_path / "policy"
    with full_disk(10_000):
        error = refused(capsys, checkpoint, out)
    assert f"error: {out}: cannot be written (File too large); make room" in error
    assert not out.exists()
    (tmp_path / "file").touch()
    error = refused(capsys, checkpoint, tmp_path / "file" / "policy")
    assert "cannot be written (Not a directory); choose a place that can be" in error
    (out / ".partial").mkdir(parents=True)  # of an export that was killed
    export_hf(checkpoint, out)
    assert not (out / ".partial").exists()


def test_a_run_leaves_the_policy_of_its_last_checkpoint():
    args = [*tiny("grpo"), *SMALL, "--callbacks.export=ExportPolicy"]
    fit(*args)
    run = fit(*args, "--trainer.max_epochs=2", "--ckpt_path=last")  # replaces the first one's
    saved = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    model = AutoModelForCausalLM.from_pretrained(run / "policy", dtype="auto").state_dict()
    assert model
    for name, value in model.items():
        assert torch.equal(value, saved[f"actor.{name}"]), name
    names = {path.name for path in (run / "policy").iterdir()}
    assert names >= {"config.json", "generation_config.json", "tokenizer.json", "README.md"}
    card = (run / "policy" / "README.md").read_text()
    assert "| started from | Bundled |\n| rollouts | 4 |" in card


def test_a_run_that_ends_with_weights_that_are_not_finite_writes_no_policy(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.syspath_prepend(tmp_path)
    Path("callback_of_export.py").write_text(
        "from lightning.pytorch import Callback\n\n"
        "class Breaks(Callback):\n"
        "    def on_train_end(self, trainer, module):\n"
        "        next(module.actor.parameters()).data[0] = float('nan')\n"
    )
    callbacks = ["--callbacks.x=callback_of_export.Breaks", "--callbacks.export=ExportPolicy"]
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, *callbacks, "--run_dir=run")
    assert "run/policy: not written, the policy has weights that are not finite" in line
    assert not Path("run/policy").exists()
