"""Where networks and tokenizers come from: float32, no dropout, ends, critics, references."""

import copy
import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, Lfm2Config, LlamaConfig, Qwen2Config

from lit_reason.advantages import GAE, GroupRelative
from lit_reason.backbones import (
    Bundled,
    Pretrained,
    Scratch,
    character_tokenizer,
)
from lit_reason.batch import Prompt
from lit_reason.critics import save_critic
from lit_reason.encoding import encode_prompt, encode_prompts
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.export import save_policy
from lit_reason.module import ReasonModule
from lit_reason.networks import policy_outputs, state_values
from lit_reason.objectives import ClippedSurrogate, KLToReference, ValueLoss
from lit_reason.tasks import PlanCount, Task
from lit_reason.tasks.plan_count import ALPHABET
from tests.conftest import SMALL, demonstrations, fails, fit, ready, tiny

SIZE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 3 + len(ALPHABET),
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def save_model(folder, config=None, dtype=torch.float32, tokenizer=None):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config or LlamaConfig(**SIZE)))
    model.to(dtype).save_pretrained(folder)
    (tokenizer or character_tokenizer(ALPHABET)).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("llama"))


# --- weights --------------------------------------------------------------------------------------


def test_a_bfloat16_checkpoint_trains_in_float32(tmp_path):
    """P28: in bfloat16 small updates would be rounded away."""
    backbone = Pretrained(save_model(tmp_path, dtype=torch.bfloat16))
    saved = load_file(tmp_path / "model.safetensors")
    assert {w.dtype for w in saved.values()} == {torch.bfloat16}
    for network in (backbone.actor(), backbone.critic(), backbone.reference()):
        assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert torch.equal(
        backbone.actor().model.embed_tokens.weight, saved["model.embed_tokens.weight"].float()
    )


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(
            vocab_size=SIZE["vocab_size"],
            n_embd=32,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.5,
            embd_pdrop=0.5,
            attn_pdrop=0.5,
            bos_token_id=None,
            eos_token_id=1,
        ),
        LlamaConfig(**SIZE, attention_dropout=0.5),
    ],
    ids=["gpt2", "llama"],
)
def test_no_network_has_dropout_in_training_mode(tmp_path, config):
    """C11: whatever the architecture calls it, and though it trains."""
    backbone = Pretrained(save_model(tmp_path, config))
    rollout = demonstrations(backbone)
    actor, critic = backbone.actor(), backbone.critic()
    assert actor.training
    assert critic.training
    assert not [m for m in actor.modules() if isinstance(m, nn.Dropout) and m.p > 0]
    nn.init.normal_(critic.head.weight)
    assert torch.equal(*(policy_outputs(actor, rollout).logprobs for _ in range(2)))
    assert torch.equal(*(state_values(critic, rollout) for _ in range(2)))


def test_the_networks_start_alike_and_share_nothing(llama):
    backbone = Pretrained(llama)
    actor, critic, reference = backbone.actor(), backbone.critic(), backbone.reference()
    start = actor.model.state_dict()
    for other in (critic.base.state_dict(), reference.model.state_dict()):
        assert other.keys() == start.keys()
        for name, weight in start.items():
            assert torch.equal(weight, other[name])
            assert weight.data_ptr() != other[name].data_ptr()
    assert not any(p.requires_grad for p in reference.parameters())
    assert not reference.training


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_heads_survive_a_checkpoint(tmp_path, tied):
    """E01: logits bit for bit, and shared storage only where it was shared."""
    config = Qwen2Config(**SIZE, tie_word_embeddings=tied)
    backbone = Pretrained(save_model(tmp_path / "model", config))
    module = ready(ReasonModule(backbone, GroupRelative(), ClippedSurrogate()))
    optimizer = torch.optim.SGD(module.actor.parameters(), lr=0.5)
    rollout = demonstrations(backbone)
    for _ in range(3):
        (-policy_outputs(module.actor, rollout).logprobs.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save(module.state_dict(), tmp_path / "weights.ckpt")

    again = ready(ReasonModule(Pretrained(backbone.path), GroupRelative(), ClippedSurrogate()))
    untrained = policy_outputs(again.actor, rollout).logprobs
    again.load_state_dict(torch.load(tmp_path / "weights.ckpt"), strict=True)
    trained = policy_outputs(module.actor, rollout).logprobs
    assert torch.equal(policy_outputs(again.actor, rollout).logprobs, trained)
    assert not torch.equal(untrained, trained)
    for actor in (module.actor, again.actor):
        shared = actor.lm_head.weight.data_ptr() == actor.model.embed_tokens.weight.data_ptr()
        assert shared == tied


# --- the critic -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda init, _: Bundled(critic_init=init),
        lambda init, path: Pretrained(path, critic_init=init),
        lambda init, _: Scratch(ALPHABET, critic_init=init),
    ],
)
def test_the_critic_starts_from_the_policy_or_from_new_weights_with_a_zero_head(make, llama):
    rollout = demonstrations(Bundled())
    for init in ("policy", "random"):
        backbone = make(init, llama)
        critic, actor = backbone.critic(), backbone.actor()
        assert not state_values(critic, rollout).any()
        same = [
            torch.equal(w, critic.base.state_dict()[name])
            for name, w in actor.model.state_dict().items()
            if w.ndim > 1
        ]
        assert all(same) if init == "policy" else not any(same)


def test_a_saved_critic_is_another_runs_start(llama, tmp_path):
    critic = Pretrained(llama).critic()
    with torch.no_grad():
        for p in critic.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)
    save_critic(critic, tmp_path / "critic", Bundled().tokenizer)
    again = Pretrained(llama, critic_init=str(tmp_path / "critic")).critic()
    rollout = demonstrations(Bundled())
    assert torch.equal(state_values(critic, rollout), state_values(again, rollout))
    assert again.training


def test_a_critic_of_another_size_is_refused_in_one_line(llama, tmp_path):
    save_critic(Scratch(ALPHABET).critic(), tmp_path, Pretrained(llama).tokenizer)
    with pytest.raises(ConfigError, match=r"critic_init=.*another architecture") as error:
        Pretrained(llama, critic_init=str(tmp_path)).critic()
    assert "\n" not in str(error.value)
    save_file({"x": torch.zeros(1)}, tmp_path / "critic.safetensors")
    with pytest.raises(ConfigError, match="critic_init"):
        Pretrained(llama, critic_init=str(tmp_path)).critic()


def test_a_critic_folder_without_a_critic_is_refused(llama, tmp_path):
    for init in ("polciy", str(tmp_path)):
        with pytest.raises(ConfigError, match=rf"model\.backbone\.critic_init={init}: .*'policy'"):
            Pretrained(llama, critic_init=init)


# --- the reference --------------------------------------------------------------------------------


def test_the_reference_neither_trains_nor_enters_the_checkpoint(llama):
    """E08."""
    terms = {"kl": KLToReference(0.1)}
    module = ready(ReasonModule(Pretrained(llama), GAE(), ClippedSurrogate(), ValueLoss(), terms))
    frozen = {id(p) for p in module.reference.parameters()}
    for entry in module.configure_optimizers():
        stepped = {id(p) for g in entry["optimizer"].param_groups for p in g["params"]}
        assert not stepped & frozen
    checkpoint = {"state_dict": dict(module.state_dict())}
    module.on_save_checkpoint(checkpoint)
    kept = {key.split(".")[0] for key in checkpoint["state_dict"]}
    assert kept == {"actor", "critic"}


def test_a_refreshed_reference_is_in_the_checkpoint(llama):
    terms = {"kl": KLToReference(0.1)}
    module = ready(
        ReasonModule(
            Pretrained(llama),
            GroupRelative(),
            ClippedSurrogate(),
            None,
            terms,
            reference_refresh=2,
        )
    )
    checkpoint = {"state_dict": dict(module.state_dict())}
    module.on_save_checkpoint(checkpoint)
    assert any(key.startswith("reference.") for key in checkpoint["state_dict"])


# --- recurrent layers -----------------------------------------------------------------------------


def save_lfm2(folder, bias):
    config = Lfm2Config(**SIZE, layer_types=["conv", "full_attention"], conv_bias=bias)
    path = save_model(folder, config)
    if bias:  # which begins at zero
        weights = load_file(f"{path}/model.safetensors")
        weights["model.layers.0.conv.in_proj.bias"] += 1
        save_file(weights, f"{path}/model.safetensors", {"format": "pt"})
    return path


def test_a_model_with_convolutions_trains(tmp_path):
    path = save_lfm2(tmp_path / "model", bias=False)
    run = fit(*tiny("ppo"), *SMALL, "--model.backbone=Pretrained", f"--model.backbone.path={path}")
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    apart = [float(row["mismatch/logprob_max"]) for row in rows if row["mismatch/logprob_max"]]
    assert apart
    assert max(apart) < 1e-5


@pytest.mark.parametrize("lora", [False, True])
def test_a_model_that_reads_padding_is_refused_before_the_run(tmp_path, capsys, lora):
    """A bias makes something of masked inputs, and the convolution takes it into the prompt."""
    path = save_lfm2(tmp_path / "model", bias=True)
    flags = ["--model.backbone=Pretrained", f"--model.backbone.path={path}"]
    if lora:
        pytest.importorskip("peft")
        base = [flag.replace("backbone", "backbone.base") for flag in flags]
        flags = ["--model.backbone=LoRA", *base]
    message = fails(capsys, "fit", *tiny("grpo"), *flags, "--run_dir=run")
    assert "a Lfm2ForCausalLM with its settings reads the padding before a prompt" in message
    assert not Path("run").exists()


# --- tokenizers -----------------------------------------------------------------------------------


def test_end_and_padding_tokens(tmp_path, llama):
    """P30: padding falls back to the end token; several end tokens all count."""
    tokenizer = character_tokenizer(ALPHABET)
    tokenizer.pad_token = None
    folder = save_model(tmp_path / "a", tokenizer=tokenizer)
    backbone = Pretrained(folder)
    assert backbone.tokenizer.pad_token_id == backbone.tokenizer.eos_token_id == 1
    assert backbone.tokenizer.padding_side == "left"
    assert backbone.eos_ids == [1]
    settings = tmp_path / "a" / "generation_config.json"
    settings.write_text(json.dumps({"eos_token_id": [7, 5]}))
    assert Pretrained(folder).eos_ids == [1, 5, 7]
    settings.unlink()
    assert Pretrained(folder).eos_ids == [1]


@pytest.mark.parametrize(
    ("settings", "config", "ends"),
    [
        (None, {"eos_token_id": [1, 5]}, [1, 5]),
        ({"pad_token_id": 0}, {"eos_token_id": [1, 5]}, [1, 5]),
        ({"eos_token_id": 7}, {"eos_token_id": [1, 5]}, [1, 7]),
        (None, {"eos_token_id": 5}, [1, 5]),
        (None, {"eos_token_id": None}, [1]),
        (None, {}, [1]),  # a Llama's own default would be 2
    ],
)
def test_end_tokens_are_those_of_config_json_where_no_others_are_named(
    tmp_path, settings, config, ends
):
    """As `transformers` has it, whatever of the two files a folder holds."""
    folder = save_model(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    del written["eos_token_id"]
    (tmp_path / "config.json").write_text(json.dumps({**written, **config}))
    if settings is None:
        (tmp_path / "generation_config.json").unlink()
    else:
        (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    backbone = Pretrained(folder)
    assert backbone.eos_ids == ends
    actor = backbone.actor()
    save_policy(actor, backbone, tmp_path / "exported")
    assert Pretrained(str(tmp_path / "exported")).eos_ids == ends


def test_end_tokens_of_a_composite_model_are_those_of_its_text_model(tmp_path):
    folder = save_model(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    text = {"text_config": {"eos_token_id": [1, 5]}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5", **text}))
    assert Pretrained(folder).eos_ids == [1, 5]


def test_a_tokenizer_without_an_end_token_is_refused_before_the_model_loads(tmp_path, capsys):
    tokenizer = character_tokenizer(ALPHABET)
    tokenizer.eos_token = None
    folder = save_model(tmp_path / "model", tokenizer=tokenizer)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"not weights")
    message = fails(
        capsys,
        "fit",
        *tiny("grpo"),
        "--model.backbone=Pretrained",
        f"--model.backbone.path={folder}",
        "--run_dir=run",
    )
    assert message.startswith(f"error: model.backbone=Pretrained({folder}): its tokenizer has no")
    assert "set eos_token" in message


@pytest.mark.parametrize(
    "path", ["./missing", "/missing/model", "missing", "a/b/c", "~/missing_model"]
)
def test_a_missing_folder_is_refused_when_the_configuration_is_read(path):
    with pytest.raises(ConfigError, match=rf"^model\.backbone\.path={path}: no such folder; give"):
        Pretrained(path)


@pytest.mark.parametrize("broken", ["empty", "weights", "config", "id"])
def test_what_cannot_be_loaded_says_so_in_one_line(tmp_path, llama, broken, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / "model"
    if broken == "empty":
        folder.mkdir()
    else:
        shutil.copytree(llama, folder)
    if broken == "weights":
        (folder / "model.safetensors").write_bytes(b"not weights")
    if broken == "config":
        (folder / "config.json").write_text("{")
    backbone = Pretrained("nobody/no-such-model" if broken == "id" else str(folder))
    with pytest.raises(ConfigError, match=r"model\.backbone\.path=.*: cannot be loaded") as error:
        backbone.actor()
    assert "\n" not in str(error.value)


def test_an_adapter_is_refused_and_not_taken_for_its_base(tmp_path, llama):
    """E07."""
    shutil.copytree(llama, tmp_path / "model")
    (tmp_path / "model" / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"holds an adapter.*merged weights"):
        Pretrained(str(tmp_path / "model"))


def test_a_bundled_policy_that_does_not_exist_names_those_that_do():
    with pytest.raises(ConfigError, match=r"model\.backbone\.name=big: .*plan_count"):
        Bundled("big")


def test_the_character_tokenizer_gives_back_every_text():
    tokenizer = character_tokenizer(ALPHABET + " \n")
    for text in ("max(3,7)+4=", "7+4=8", " 1  2\n", ""):
        ids = tokenizer(text)["input_ids"]
        assert len(ids) == len(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer("é")["input_ids"] == [tokenizer.unk_token_id]


def test_scratch_gives_the_same_weights_whatever_was_drawn_before():
    first = Scratch(ALPHABET, seed=3).actor().state_dict()
    torch.manual_seed(11)
    second, other = (Scratch(ALPHABET, seed=s).actor().state_dict() for s in (3, 4))
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    with pytest.raises(ConfigError, match=r"heads=3 does not divide .*hidden_size=64; choose"):
        Scratch(ALPHABET, heads=3)


# --- prompts --------------------------------------------------------------------------------------


class ShortPrompts(Task):
    def __init__(self, *texts):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return Prompt(index, self.texts[index], str(index))

    def verify(self, prompt, text):
        return text == prompt.answer


def beginning_tokenizer(template):
    """A tokenizer that begins sequences with a token of its own."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = character_tokenizer(ALPHABET + "us er:\n")
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    tokenizer.chat_template = template
    return tokenizer


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def test_prompts_begin_with_exactly_one_beginning_token():
    """C13: as plain text and through a chat template that writes it itself."""
    tokenizer = beginning_tokenizer(TEMPLATE)
    bos = tokenizer.bos_token_id
    plain = encode_prompt(Prompt(0, "1+2=", "3"), tokenizer)
    assert plain[0] == bos
    assert plain.count(bos) == 1
    messages = ({"role": "user", "content": "1+2="},)
    chat = encode_prompt(Prompt(0, "", "3", messages), tokenizer)
    assert (chat[0], chat.count(bos)) == (bos, 1)
    library = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert chat == list(library)
    assert tokenizer.decode(chat).endswith("a:")


def test_a_prompt_that_begins_with_the_beginning_token_gets_no_second():
    tokenizer = beginning_tokenizer(TEMPLATE)
    written = encode_prompt(Prompt(0, f"{tokenizer.bos_token}1+2=", "3"), tokenizer)
    assert written == encode_prompt(Prompt(0, "1+2=", "3"), tokenizer)


def test_a_tokenizer_without_a_beginning_token_adds_none():
    tokenizer = character_tokenizer(ALPHABET)
    assert encode_prompt(Prompt(0, "1+2=", "3"), tokenizer) == tokenizer("1+2=")["input_ids"]


def test_chat_without_a_template_is_refused():
    prompt = Prompt(0, "", "3", ({"role": "user", "content": "1+2="},))
    with pytest.raises(ConfigError, match=r"^data\.task\.chat=true: .*no chat template; set it"):
        encode_prompt(prompt, character_tokenizer(ALPHABET))


def test_longer_prompts_are_left_out_and_counted_and_the_rest_keep_their_answers():
    """C14."""
    task, tokenizer = (
        ShortPrompts("1+2=", "1+2+3+4+5", "1" * 20, "3+4="),
        character_tokenizer(ALPHABET),
    )
    with pytest.warns(ConfigWarning, match=r"max_prompt_length=8: 2 of 4 prompts of data\.task"):
        kept = encode_prompts(task, tokenizer, 8, 100, "task")
    assert [(p.answer, tokenizer.decode(ids)) for p, ids in kept] == [("0", "1+2="), ("3", "3+4=")]
    with (
        pytest.warns(ConfigWarning),
        pytest.raises(ConfigError, match=r"no prompt is left .*max_prompt_length=3.*has 4 tokens"),
    ):
        encode_prompts(task, tokenizer, 3, 100, "task")


def test_a_prompt_that_does_not_fit_the_context_is_refused():
    """C14: never cut."""
    task, tokenizer = ShortPrompts("1" * 20), character_tokenizer(ALPHABET)
    with pytest.raises(ConfigError, match=r"data\.val_task: a prompt of 20 tokens.*leaves 19"):
        encode_prompts(task, tokenizer, None, 19, "val_task")
    assert len(encode_prompts(task, tokenizer, None, 20, "val_task")) == 1
    assert len(encode_prompts(task, tokenizer, None, None, "val_task")) == 1


def test_characters_that_the_tokenizer_does_not_know_are_not_silent():
    task = ShortPrompts("1+2=", "one+2=")
    with pytest.warns(ConfigWarning, match=r"1 of 2 prompts of data\.task hold.*'one\+2='"):
        encode_prompts(task, character_tokenizer(ALPHABET), None, None, "task")


def test_the_built_in_task_fits_the_built_in_model():
    for split in ("train", "held_out"):
        task = PlanCount(split)
        assert len(encode_prompts(task, Bundled().tokenizer, None, 64, "task")) == len(task)


def test_the_shipped_tokenizer_reads_every_character_or_says_that_it_does_not_know_it():
    """`AutoTokenizer` would take the model type's own algorithm, which drops what it lacks."""
    tokenizer = Bundled().tokenizer
    built = character_tokenizer(ALPHABET)
    for text in ("max(3,7)+4=", "What is 1*1?", "\n 5", "Ä"):
        assert tokenizer(text)["input_ids"] == built(text)["input_ids"]
    assert tokenizer.unk_token_id in tokenizer("1*1")["input_ids"]
