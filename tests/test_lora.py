"""LoRA: adapters on one frozen base train alone, and reach checkpoints and exports whole."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config

from lit_reason.advantages import GAE
from lit_reason.backbones import Bundled, Pretrained, Scratch
from lit_reason.cli import run
from lit_reason.critics import save_critic
from lit_reason.errors import ConfigError
from lit_reason.fingerprint import fingerprint
from lit_reason.learner import Update
from lit_reason.lora import LoRA, merged
from lit_reason.module import ReasonModule
from lit_reason.networks import logits_head, policy_outputs, state_values
from lit_reason.objectives import ClippedSurrogate, KLToReference, ValueLoss
from lit_reason.rollout import generation_config
from lit_reason.tasks.plan_count import ALPHABET
from tests.conftest import SMALL, config, demonstrations, fails, ready, tiny
from tests.test_backbones import SIZE, save_model
from tests.test_export import export_hf, refused
from tests.test_gguf import needs_gguf, write_gguf
from tests.test_resume import assert_same, checkpoint, rows_of

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")

VAPO = [
    *tiny("vapo"),
    config("scale/lora.yaml"),
    *SMALL,
    "--model.advantage.alpha=1",
    "--model.terms.kl=KLToReference",
    "--model.actor_optimizer.lr=3e-3",
    "--callbacks.value_warmup.rollouts=1",
    "--callbacks.value_warmup.save=true",
    "--callbacks.export=ExportPolicy",
]


class SmallBase(Pretrained):
    """Whatever the folder holds, with recomputed activations."""

    def __init__(self, path, **kwargs):
        super().__init__(path, gradient_checkpointing=True, **kwargs)


def module_of(backbone):
    parts = GAE(lam_policy=0.9), ClippedSurrogate(), ValueLoss(), {"kl": KLToReference(0.1)}
    return ready(ReasonModule(backbone, *parts, update=Update(1, 16, 16)))


def stir(network, seed=3):
    """Moves what is trained, so that no adapter is zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in network.parameters():
            if p.requires_grad:
                p += 0.1 * torch.randn(p.shape, generator=generator)
    return network


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("llama"))


# --- the networks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [True, False])
def test_the_networks_are_the_base_before_training(share):
    base = Bundled()
    rollout, plain = demonstrations(base), base.actor()
    backbone = LoRA(base, share=share)
    expected = policy_outputs(plain, rollout, entropy="detached")
    for network in (backbone.actor(), backbone.reference()):
        assert logits_head(network) is network.get_output_embeddings()
        outputs = policy_outputs(network, rollout, entropy="detached")
        assert torch.equal(outputs.logprobs, expected.logprobs)
        assert torch.equal(outputs.entropy, expected.entropy)
    critic = backbone.critic()
    assert not state_values(critic, rollout).any()
    nn.init.ones_(critic.head.weight)
    full = base.critic()
    nn.init.ones_(full.head.weight)
    assert torch.equal(state_values(critic, rollout), state_values(full, rollout))


@pytest.mark.parametrize("share", [True, False])
def test_the_base_is_held_once_and_only_adapters_and_head_train(share):
    module = module_of(LoRA(Bundled(), r=4, share=share))
    trees = {n: getattr(module, n) for n in ("actor", "critic", "reference")}
    trained = {n: [p for p in t.parameters() if p.requires_grad] for n, t in trees.items()}
    base = {
        n: {p.data_ptr() for p in t.parameters() if not p.requires_grad} for n, t in trees.items()
    }
    assert base["actor"] == base["reference"]
    decoder = {p.data_ptr() for p in module.backbone.frozen.base_model.parameters()}
    assert (base["critic"] == decoder) == share
    assert share or not base["critic"] & base["actor"]

    names = {n for n, p in module.named_parameters() if p.requires_grad}
    assert all(".lora_" in n or n.startswith("critic.head.") for n in names)
    assert not trained["reference"]
    assert not {id(p) for p in trained["actor"]} & {id(p) for p in trained["critic"]}
    for name, entry in zip(module.trained, module.configure_optimizers(), strict=True):
        stepped = [p for g in entry["optimizer"].param_groups for p in g["params"]]
        assert [id(p) for p in stepped] == [id(p) for p in trained[name]]


@pytest.mark.parametrize(
    "kind", ["llama", "gpt2", "scratch", pytest.param("gguf", marks=needs_gguf)]
)
def test_every_kind_of_base_is_adapted(kind, llama, tmp_path):
    if kind == "scratch":
        base = Scratch(ALPHABET)
    elif kind == "gguf":
        write_gguf(tmp_path / "m.gguf")
        base = Pretrained(str(tmp_path), gguf_file="m.gguf")
    elif kind == "gpt2":  # whose layers are no nn.Linear
        size = {"vocab_size": SIZE["vocab_size"], "n_embd": 32, "n_layer": 2, "n_head": 2}
        base = SmallBase(
            save_model(tmp_path, GPT2Config(**size, bos_token_id=None, eos_token_id=1))
        )
    else:
        base = SmallBase(llama)
    backbone = LoRA(base, r=2)
    actor, plain = stir(backbone.actor()), base.actor()
    assert backbone.eos_ids == base.eos_ids
    assert backbone.context_length == base.context_length
    ids = torch.tensor([[3, 5, 7, 9]])
    before, after = (net(ids, use_cache=False).logits for net in (plain, actor))
    assert not torch.allclose(before, after)
    assert torch.equal(backbone.reference()(ids, use_cache=False).logits, plain(ids).logits)
    torch.testing.assert_close(merged(actor)(ids).logits, after, atol=1e-4, rtol=0)


def test_named_layers_alone_are_adapted(llama):
    actor = LoRA(Pretrained(llama), target_modules=["q_proj", "layers.0.mlp.up_proj"]).actor()
    adapted = {n.split(".lora_A")[0] for n, _ in actor.named_parameters() if ".lora_A" in n}
    assert {n.removeprefix("model.layers.") for n in adapted} == {
        "0.self_attn.q_proj",
        "1.self_attn.q_proj",
        "0.mlp.up_proj",
    }


def test_the_fingerprint_is_that_of_base_and_adapters(llama):
    backbone = LoRA(Pretrained(llama))
    start = fingerprint(backbone.actor())
    assert start == fingerprint(Pretrained(llama).actor())  # new adapters change nothing
    assert start == fingerprint(LoRA(Pretrained(llama), seed=1).actor())
    assert start != fingerprint(LoRA(Bundled()).actor())

    def moved(seed):
        actor = LoRA(Pretrained(llama), seed=seed).actor()
        with torch.no_grad():
            next(p for n, p in actor.named_parameters() if ".lora_B" in n)[0, 0] += 1e-3
        return fingerprint(actor)

    assert len({start, moved(0), moved(1)}) == 3


# --- the update -----------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", [False, True])
def test_the_first_importance_ratio_is_exactly_1(llama, recompute):
    module = module_of(LoRA(SmallBase(llama) if recompute else Pretrained(llama)))
    stir(module.actor)
    rollout = demonstrations(module.backbone)
    rows = list(torch.arange(len(rollout)).split(4))
    experience, _ = module.annotate(rollout, rows)
    for part in rows:
        outputs = policy_outputs(module.actor, rollout[part])
        assert outputs.logprobs.requires_grad
        assert torch.equal(outputs.logprobs, experience.old_logprobs[part])


@pytest.mark.parametrize("recompute", [False, True])
def test_a_gradient_reaches_the_adapters_of_its_own_network_only(llama, recompute):
    """Though the other networks run between its forward and its backward pass."""
    module = module_of(LoRA(SmallBase(llama) if recompute else Pretrained(llama)))
    networks = {"actor": stir(module.actor), "critic": stir(module.critic)}
    rollout = demonstrations(module.backbone)
    forward = {
        "actor": lambda: policy_outputs(module.actor, rollout).logprobs.sum(),
        "critic": lambda: state_values(module.critic, rollout).sum(),
    }
    alone = {}
    for name, network in networks.items():
        forward[name]().backward()
        alone[name] = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
        wanted = {n for n, p in network.named_parameters() if p.requires_grad}
        assert alone[name].keys() == wanted
        assert all(g.any() for g in alone[name].values())
        got = {n.split(".")[0] for n, p in module.named_parameters() if p.grad is not None}
        assert got == {name}
        module.zero_grad(set_to_none=True)
    for name, other in (("actor", "critic"), ("critic", "actor")):
        loss = forward[name]()
        forward[other]().backward()
        policy_outputs(module.reference, rollout)
        loss.backward()
        for key, network in networks.items():
            for n, p in network.named_parameters():
                assert p.grad is None or torch.equal(p.grad, alone[key][n])
        module.zero_grad(set_to_none=True)


# --- whole runs -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Four rollouts on one base, on two, and in halves; two of warm-up; two of full weights."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        torch.set_num_threads(1)

        def go(name, *extra):
            patch.delenv("PL_GLOBAL_SEED", raising=False)
            return run(["fit", *VAPO, f"--run_dir={folder / name}", *extra])

        done = {"shared": go("shared", "--trainer.max_epochs=2")}
        done["separate"] = go("separate", "--trainer.max_epochs=2", "--model.backbone.share=false")
        done["warm"] = go("warm", "--callbacks.value_warmup.rollouts=2")
        go("halves", "--trainer.max_epochs=1")
        last = folder / "halves" / "checkpoints" / "last.ckpt"
        done["halves"] = go("halves", "--trainer.max_epochs=2", f"--ckpt_path={last}")
        done["full"] = go("full", "--model.backbone=Bundled")
        patch.delenv("PL_GLOBAL_SEED", raising=False)
    return folder, done


def same_run(runs, a, b):
    folder, _ = runs
    first, second = checkpoint(folder, a), checkpoint(folder, b)
    for key in ("state_dict", "optimizer_states", "policy_version", "adapters"):
        assert_same(first[key], second[key], key)
    unlike = {"time/rollout", "tokens_per_second"}
    for x, y in zip(rows_of(folder / a), rows_of(folder / b), strict=True):
        assert {k: v for k, v in x.items() if k not in unlike} == {
            k: v for k, v in y.items() if k not in unlike
        }


@pytest.mark.slow
def test_a_shared_base_trains_to_the_bits_of_two_bases(runs):
    folder, done = runs
    same_run(runs, "shared", "separate")
    assert float(rows_of(folder / "shared")[-2]["loss/kl"] or 0) >= 0
    for network in ("actor", "critic"):
        start = getattr(done["shared"].model.backbone, network)()
        assert fingerprint(start) != fingerprint(getattr(done["shared"].model, network))


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(runs):
    same_run(runs, "shared", "halves")


@pytest.mark.slow
def test_training_moves_neither_the_base_nor_in_the_warm_up_the_actor(runs):
    _, done = runs
    warm, fresh = done["warm"].model, LoRA(Bundled())
    assert fingerprint(warm.actor) == fingerprint(fresh.actor())
    assert fingerprint(warm.critic) != fingerprint(fresh.critic())
    for name in ("shared", "separate"):
        module = done[name].model
        plain = Bundled().actor()
        assert_same(module.reference.state_dict(), plain.state_dict())
        assert fingerprint(module.backbone.frozen) == fingerprint(plain)


@pytest.mark.slow
def test_a_checkpoint_holds_adapters_and_head_alone(runs):
    folder, done = runs
    saved, module = checkpoint(folder, "shared"), done["shared"].model
    names = set(saved["state_dict"])
    assert names == {n for n, p in module.named_parameters() if p.requires_grad}
    numbers = sum(p.numel() for p in module.parameters() if p.requires_grad)
    moments = sum(
        value.numel()
        for optimizer in saved["optimizer_states"]
        for state in optimizer["state"].values()
        for name, value in state.items()
        if name != "step"
    )
    assert moments == 2 * numbers
    critic = folder / "warm" / "critic" / "critic.safetensors"
    own = sum(p.numel() for p in module.critic.parameters() if p.requires_grad)
    assert 4 * own < critic.stat().st_size < 4 * own + 2**14


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:callbacks.export=ExportPolicy")
def test_the_checkpoint_of_other_networks_is_refused_in_one_line(runs, capsys):
    folder, _ = runs
    last = {n: folder / n / "checkpoints" / "last.ckpt" for n in ("shared", "full")}

    def error(of, *extra):
        return fails(capsys, "validate", *VAPO, f"--ckpt_path={last[of]}", *extra)

    assert "adapters have r=16, not 8" in error("shared", "--model.backbone.r=8")
    assert "alpha=32.0, not 4.0" in error("shared", "--model.backbone.alpha=4")
    target = error("shared", "--model.backbone.target_modules=[q_proj]")
    assert "target_modules=down_proj gate_proj" in target
    scratch = ["--model.backbone.base=Scratch", f"--model.backbone.base.alphabet={ALPHABET}"]
    assert "belong to another base" in error("shared", *scratch)
    assert "holds adapters" in error("shared", "--model.backbone=Bundled")
    assert "holds no adapters" in error("full")


@pytest.mark.slow
def test_a_checkpoint_validates_to_the_numbers_of_its_run(runs, capsys):
    folder, done = runs
    last = folder / "shared" / "checkpoints" / "last.ckpt"
    capsys.readouterr()
    again = run(
        ["validate", f"--config={folder / 'shared' / 'config.yaml'}", f"--ckpt_path={last}"]
    )
    assert again.model.last_evaluation == done["shared"].model.last_evaluation
    assert fingerprint(again.model.actor) == fingerprint(done["shared"].model.actor)


@pytest.mark.slow
def test_both_exports_are_the_trained_policy(runs, tmp_path, capsys):
    from peft import PeftModel

    folder, done = runs
    actor = done["shared"].model.actor.eval()
    last = folder / "shared" / "checkpoints" / "last.ckpt"
    export_hf(last, tmp_path / "merged")
    export_hf(last, tmp_path / "adapters", "--adapters")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").eval()
    assert type(whole) is type(actor)
    assert Pretrained(str(tmp_path / "merged")).actor().state_dict().keys() == (
        Bundled().actor().state_dict().keys()
    )
    weights = [d / "model.safetensors" for d in (tmp_path / "merged", folder / "shared" / "policy")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    adapted = PeftModel.from_pretrained(Bundled().actor(), tmp_path / "adapters").eval()
    ids = torch.randint(3, 3 + len(ALPHABET), (4, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own = actor(ids).logits
        assert torch.equal(adapted(ids).logits, own)
        torch.testing.assert_close(whole(ids).logits, own, atol=1e-4, rtol=0)
    assert (own - Bundled().actor()(ids).logits).abs().max() > 1e-2

    tokenizer = Bundled().tokenizer
    prompt = tokenizer("max(3,7)+4=", return_tensors="pt")["input_ids"]
    from lit_reason.rollout import Sampling

    greedy = generation_config(Sampling(temperature=0, max_new_tokens=24), [1], 0)
    texts = [net.generate(prompt, generation_config=greedy) for net in (actor, whole, adapted)]
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])

    settings = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["task_type"]) == (16, 32, "CAUSAL_LM")
    assert Path(settings["base_model_name_or_path"]) == Path(Bundled().path)
    modes = [
        p.stat().st_mode for name in ("merged", "adapters") for p in (tmp_path / name).iterdir()
    ]
    assert len(set(modes)) == 1  # others may read weights and all
    full = folder / "full" / "checkpoints" / "last.ckpt"
    assert "no adapters" in refused(capsys, full, tmp_path / "none", "--adapters")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_a_warmed_critic_is_another_runs_start(runs, tmp_path):
    folder, done = runs
    saved = str(folder / "warm" / "critic")
    rollout = demonstrations(Bundled())
    values = state_values(done["warm"].model.critic, rollout)
    assert values.any()
    for share in (True, False):
        critic = LoRA(Bundled(), share=share, critic_init=saved).critic()
        assert torch.equal(state_values(critic, rollout), values)
    with pytest.raises(ConfigError, match=r"critic_init=.* r=16, not 4"):
        LoRA(Bundled(), r=4, critic_init=saved).critic()
    with pytest.raises(ConfigError, match=r"critic_init=.*another base"):
        LoRA(Scratch(ALPHABET), critic_init=saved).critic()
    with pytest.raises(ConfigError, match=r"critic_init=.*holds adapters"):
        Bundled(critic_init=saved).critic()


# --- the configuration ----------------------------------------------------------------------------


def test_a_critic_with_weights_of_its_own_needs_a_base_of_its_own(llama, tmp_path):
    full = stir(Pretrained(llama).critic())
    save_critic(full, tmp_path, Bundled().tokenizer)
    with pytest.raises(ConfigError, match=r"critic_init=.*base of its own.*share to false"):
        LoRA(Pretrained(llama), critic_init=str(tmp_path))
    rollout = demonstrations(Bundled())
    backbone = LoRA(Pretrained(llama), critic_init=str(tmp_path), share=False)
    critic = backbone.critic()
    assert torch.equal(state_values(critic, rollout), state_values(full, rollout))
    assert all(
        ".lora_" in n or "head" in n for n, p in critic.named_parameters() if p.requires_grad
    )
    assert backbone.base.critic_init == "policy"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"r": 0}, r"model\.backbone\.r=0: must be at least 1"),
        ({"alpha": 0}, r"model\.backbone\.alpha=0: must be above 0, for example 32"),
        ({"target_modules": []}, r"target_modules=\[\]: adapts nothing"),
        ({"critic_init": "random"}, r"critic_init=random: .*choose 'policy'"),
        ({"critic_init": "polciy"}, r"critic_init=polciy: none of"),
        ({"base": Bundled(critic_init="random")}, r"base\.critic_init=random: .*no effect"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message) as error:
        LoRA(**{"base": Bundled(), **settings})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("target", ["lm_head", "proj", ["q_proj", "k"]])
def test_a_layer_that_does_not_exist_is_refused_with_those_that_do(target):
    with pytest.raises(ConfigError, match=r"target_modules=\w+: .*down_proj.*q_proj"):
        LoRA(Bundled(), target_modules=target).actor()


def test_without_peft_the_error_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("lit_reason.lora.find_spec", lambda name: None)
    line = fails(capsys, "fit", *VAPO, "--run_dir=run")
    assert line == "error: model.backbone=LoRA: needs peft; pip install 'lit-reason[lora]'"


def test_a_reference_that_would_follow_the_actor_is_refused(capsys):
    line = fails(capsys, "fit", *VAPO, "--model.reference_refresh=2", "--run_dir=run")
    assert "model.reference_refresh=2" in line
    assert "frozen base" in line
