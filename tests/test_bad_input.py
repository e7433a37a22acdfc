"""Bad input: a mistake is one line that names the key, its value and the fix."""

import importlib
import io
import math
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch

from lit_reason.__main__ import main
from lit_reason.advantages import GAE
from lit_reason.backbones import Pretrained
from lit_reason.checks import warn_of_rewards
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.filters import DropUniform
from lit_reason.learner import Update
from lit_reason.objectives import ClippedSurrogate, KLToReference, ValueLoss
from lit_reason.optimizers import naming_settings, naming_step
from lit_reason.rewards import Correctness
from tests.conftest import SMALL, config, fails, fit, tiny
from tests.runs import module_of

VAPO = [*tiny("vapo"), *SMALL, "--callbacks.value_warmup.rollouts=1"]


@pytest.fixture
def no_model(monkeypatch):
    """Mistakes must be found before a model is loaded."""

    def build(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(Pretrained, "_build", build)


FLAGS = [
    # unknown keys
    ("--model.advantage.alhpa=1", r"model\.advantage\.alhpa=1: no such key; .*advantage\.alpha\?"),
    ("--data.group_sise=3", r"data\.group_sise=3: no such key; did you mean data\.group_size\?"),
    ("--trainer.max_epoch=3", r"trainer\.max_epoch=3: no such key; .*trainer\.max_epochs\?"),
    ("--callbacks.entropy.postions=1", r"callbacks\.entropy\.postions=1: .*entropy\.positions\?"),
    ("--model.terms.positive_lm.ceof=1", r"terms\.positive_lm\.ceof=1: .*positive_lm\.coef\?"),
    ("--callbacks.entropi.positions=3", r"callbacks has no entropi; .*entropy\.positions\?"),
    ("--data.rewards.corectness.weight=2", r"rewards has no corectness; .*correctness\.weight\?"),
    ("--model.terms.positive_ml.coef=1", r"terms has no positive_ml; .*positive_lm\.coef\?"),
    ("--model.value.agregation=TokenMean", r"agregation=TokenMean: .*model\.value\.aggregation\?"),
    ("--model.optimizer=SGD", r"model\.optimizer.*belongs to the subcommand cold_start"),
    (
        "--callbacks.x.init_args.positions=3",
        r"callbacks\.x\.positions=3: callbacks has no x; did you",
    ),
    (
        "--data.rewards.x.init_args.weight=3",
        r"data\.rewards\.x\.weight=3: data\.rewards has no x; ",
    ),
    ("--data.rewards.x={class_path: Correctness, weight: 5}", r"x\.weight=5: stands beside class_"),
    # wrong types
    ("--data.group_size=many", r"data\.group_size=many: expected int"),
    ("--model.advantage.alpha=None", r"model\.advantage\.alpha=None: expected float, or null"),
    ("--model.actor_optimizer.lr=fast", r"model\.actor_optimizer\.lr=fast: expected float"),
    ("--data.task.split=dev", r"data\.task\.split=dev: choose one of train, held_out"),
    ("--data.group_size", r"data\.group_size: no value given; write --data\.group_size=VALUE"),
    ("quickstart", r"quickstart: not an option; write --KEY=VALUE"),
    # sizes
    ("--callbacks.entropy.positions=3000000000", r"positions=3000000000: must be at most 1000$"),
    ("--callbacks.entropy.positions=-1", r"callbacks\.entropy\.positions=-1: must be at least 0$"),
    (f"--data.groups_per_rollout={10**20}", r"group_size=4: must be at most 1048576 responses at"),
    (f"--data.groups_per_round={10**20}", r"groups_per_round=1\d+ \* data\.group_size=4: must be"),
    (f"--data.group_size={2**20}", r"groups_per_rollout=4 \* data\.group_size=1048576: must be at"),
    (f"--data.val_samples={10**20}", r"data\.val_samples=1\d+: must be at most 1048576"),
    (
        f"--data.rollouts_per_epoch={10**20}",
        r"rollouts_per_epoch=1\d+: must be at most 92233",
    ),
    (f"--model.logprob_chunk={10**20}", r"model\.logprob_chunk=1\d+: must be at most 92233"),
    # classes
    ("--model.advantage=GEA", r"model\.advantage=GEA: no class GEA; choose one of GAE, GroupRel"),
    ("--callbacks.mine=Mine", r"callbacks\.mine=Mine: no class Mine; choose one of CriticMonitor"),
    ("--trainer.logger=Wandb", r"trainer\.logger=Wandb: no class Wandb; .*WandbLogger"),
    (
        "--model.actor_optimizer=torch.optim.AdamV",
        r"AdamV: module .* has no AdamV; .*optim\.AdamW",
    ),
    (
        "--model.value.aggregation=Foo",
        r"aggregation=Foo: .*one of ConstantLength, PromptMean",
    ),
    ("--data.engine=nowhere.Engine", r"module nowhere cannot be imported \(ModuleNotFoundError"),
    (
        "--data.engine=json.Engine",
        r"data\.engine=json\.Engine: module json has no Engine; .*HFE",
    ),
    (
        "--data.engine=json.JSONDecoder",
        r"is not a subclass of RolloutEngine; .*HFEngine",
    ),
    ("--data.task=null", r"data\.task=null: cannot be left out; choose one of .*PlanCount"),
    ("--data.rewards.correctness=null", r"data\.rewards: no term is left; add one, for example --"),
    # sizes
    (
        "--model.update.minibatch_size=7",
        r"minibatch_size=7 does not divide .*one of 1, 2, 4, 8, 16",
    ),
    ("--model.update.micro_batch_tokens=0", r"update\.micro_batch_tokens=0"),
    ("--data.groups_per_rollout=155925", r"minibatch_size=\d+ does not divide .*, \.\.\."),
    ("--data.groups_per_rollout=99999999999999999999", r"=\d+: must be at most 1048576 responses"),
    ("--model.update.micro_batch_size=3", r"micro_batch_size=3 does not divide .*of 1, 2, 4, 8$"),
    ("--callbacks.value_warmup.rollouts=0", r"callbacks\.value_warmup\.rollouts=0: must be at lea"),
    ("--data.task.limit=0", r"data\.task\.limit=0: must be at least 1"),
    ("--data.val_task.limit=0", r"data\.val_task\.limit=0: must be at least 1"),
    ("--data.task.n_max=0", r"data\.task\.n_max=0: need 1 <= n_min=2 <= n_max=0 <= 90"),
    ("--data.val_task.n_min=99", r"data\.val_task\.n_min=99: need 1 <= n_min=99 <= n_max=3 <= 90"),
    ("--data.task=MathProblems", r"data\.task\.path: not set; set it"),
    ("--data.val_task=ReasoningGym", r"data\.val_task\.name: not set; set it"),
    ("--data.sampling.temperature=-1", r"data\.sampling\.temperature=-1\.0: must be 0 or at "),
    ("--data.val_sampling.top_p=0", r"data\.val_sampling\.top_p=0\.0: must be above 0 and at most"),
    ("--data.rewards.correctness.weight=0", r"data\.rewards\.correctness\.weight=0: .*to null"),
    ("--model.terms=EntropyBonus", r"model\.terms=EntropyBonus: .*model\.terms\.NAME=EntropyBonus"),
    ("--callbacks=ValueWarmup", r"callbacks=ValueWarmup: .*write callbacks\.NAME=ValueWarmup"),
    ("--model.advantage=[GAE]", r"model\.advantage=\[GAE\]: names no class; choose one of GAE, Gr"),
    ("--data.sampling=3", r"data\.sampling=3: expected settings .* data\.sampling\.temperature"),
    ("--model.critic_scheduler={}", r"model\.critic_scheduler=\{\}: names no class; .*LinearLR"),
    ("--data.val_sampling.max_new_tokens=1e30", r"data\.val_sampling\.max_new_tokens=1e30: exp"),
    ("--callbacks.e=EntropyMonitor", r"callbacks\.e=EntropyMonitor: callbacks\.entropy is one al"),
    ("--callbacks.s=SampleTable", r"callbacks\.s=SampleTable: callbacks\.samples is one already"),
    ("--data.sampling.temperature=.nan", r"data\.sampling\.temperature=nan: must be 0 or at lea"),
    (
        "--data.sampling.temperature=1e39",
        r"data\.sampling\.temperature=1e\+39: .*at most 3\.4e\+38",
    ),
    ("--model.policy.correction.cap=1e300", r"correction\.cap=1e\+300: must be from 1\.2e-38 to 3"),
    ("--model.policy.correction.cap=nan", r"policy\.correction\.cap=nan: expected a number$"),
    # runs that train on nothing
    ("--trainer.max_epochs=0", r"trainer\.max_epochs=0: nothing would be trained; .*`validate`"),
    (
        "--trainer.limit_train_batches=0",
        r"limit_train_batches=0: nothing would be trained",
    ),
    # combinations
    (
        "--model.value=null",
        r"model\.value=null: model\.advantage=GAE needs a critic; set .*ValueLo",
    ),
    ("--model.kl_in_reward=-0.1", r"model\.kl_in_reward=-0\.1: must be finite and at least 0"),
    ("--model.terms.positive_lm.coef=-1", r"model\.terms\.positive_lm\.coef=-1\.0: must be above"),
    # the Trainer
    ("--trainer.max_time=0", r"trainer\.max_time=0: is no time; write DD:HH:MM:SS, as 00:12:00:00"),
    ("--trainer.max_time=00:00:00:00", r"trainer\.max_time=00:00:00:00: nothing would be trained"),
    ("--trainer.max_time={hours: -1}", r"trainer\.max_time=.*hours.*: nothing would be trained"),
    ("--trainer.precision=bf16-true", r"trainer\.precision=bf16-true: .*32-true or bf16-mixed"),
    ("--trainer.gradient_clip_val=1", r"gradient_clip_val=1.*set model\.update\.max_grad_norm=1"),
    ("--trainer.accumulate_grad_batches=2", r"accumulate_grad_batches=2: .*micro_batch_size"),
    ("--trainer.max_steps=9", r"trainer\.max_steps=9: .*trainer\.max_epochs"),
    ("--trainer.accelerator=quantum", r"trainer\.accelerator=quantum: .*cpu"),
    ("--trainer.val_check_interval=9", r"val_check_interval=9: above the 2 rollouts of an epoch"),
    ("--trainer.val_check_interval=0", r"trainer\.val_check_interval=0: must be above 0"),
    ("--trainer.val_check_interval={}", r"trainer\.val_check_interval=\{\}: must be above 0"),
    ("--trainer.val_check_interval=soon", r"val_check_interval=soon: is no time; write DD:HH:MM"),
    ("--trainer.min_epochs=9", r"trainer\.min_epochs=9: above trainer\.max_epochs=1; lower it"),
    ("--trainer.strategy=ddp_fork", r"trainer\.strategy=ddp_fork: trains in copies .*choose ddp"),
    ("--trainer.check_val_every_n_epoch=0", r"check_val_every_n_epoch=0: must be at least 1"),
    ("--trainer.limit_val_batches=5.5", r"trainer\.limit_val_batches=5\.5: .*in \[0\.0, 1"),
    (
        "--trainer.limit_train_batches=-1",
        r"trainer\.limit_train_batches=-1: .*\[0\.0, 1\.0\] or an",
    ),
    ("--trainer.devices", r"trainer\.devices: no value given; write --trainer\.devices=VALUE"),
    ("--trainer.devices=0.5", r"trainer\.devices=0\.5: .*should be an int > 0"),
    ("--trainer.devices=null", r"trainer\.devices=null: .*should be an int > 0"),
    ("--trainer.num_nodes=0", r"trainer\.num_nodes=0: .*must be a positive integer"),
    ("--trainer.profiler=abc", r"trainer\.profiler=abc: .*one of .*'simple'"),
    ("--trainer.strategy=abc", r"trainer\.strategy=abc: .*Example choices: auto, ddp"),
    ("--trainer.barebones=true", r"trainer\.barebones=true: .*set trainer\.enable_checkpointing"),
    ("--trainer.min_epochs=-1", r"trainer\.min_epochs=-1: must be at least 0"),
    ("--trainer.max_epochs=-2", r"trainer\.max_epochs=-2: must be at least -1"),
    ("--trainer.num_sanity_val_steps=-2", r"trainer\.num_sanity_val_steps=-2: must be at least -1"),
    ("--trainer.val_check_interval=1e30", r"val_check_interval=1e\+30: .*or a share up to 1\.0"),
    ("--trainer.overfit_batches=null", r"trainer\.overfit_batches=null: expected int or float"),
    ("--trainer.deterministic=abc", r"deterministic=abc: choose one of warn, true, false$"),
    ("--trainer.precision=abc", r"trainer\.precision=abc: choose one of 32-true, 32, bf16-mixed$"),
    ("--seed_everything=-5", r"seed_everything=-5: must lie in \[0, 4294967295\]"),
    # files and limits
    ("--ckpt_path=none.ckpt", r"ckpt_path=none\.ckpt: no such file; checkpoints are in RUN_DIR"),
    ("--ckpt_path=.", r"ckpt_path=\.: is a folder; name a file of RUN_DIR/checkpoints"),
    ("--ckpt_path=best", r"ckpt_path=best: name the file; checkpoints are in RUN_DIR/checkpoints"),
    (
        "--ckpt_path=hpc",
        r"ckpt_path=hpc: run_dir=run holds no hpc_ckpt_N\.ckpt, which Lightning's",
    ),
    (
        "--data.sampling.max_new_tokens=99999",
        r"data\.sampling\.max_new_tokens=99999: leaves no room .*context of \d+ tokens",
    ),
]


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(("flag", "message"), FLAGS, ids=[flag for flag, _ in FLAGS])
def test_a_mistake_on_the_command_line_is_one_line(flag, message, capsys):
    line = fails(capsys, "fit", *VAPO, flag, "--run_dir=run")
    assert re.search(message, line), line
    assert not list(Path().rglob("run/*"))  # so that the next try is not refused


BOMB = "a0: &a0 {{x: 1}}\n" + "".join(
    f"a{i}: &a{i} {{0}}" + ", ".join([f"*a{i - 1}"] * 9) + "{1}\n" for i in range(1, 9)
)
FILES = [
    ("data: {group_sise: 3}", r"data\.group_sise=3: no such key; did you mean data\.group_size\?"),
    ("data: {sampling: {temprature: 1}}", r"data\.sampling\.temprature=1: .*temperature\?"),
    (
        "model: {advantage: {class_path: GAE, init_args: {alhpa: 0.5}}}",
        r"model\.advantage\.alhpa=0\.5: no such key; did you mean model\.advantage\.alpha\?",
    ),
    (
        "model: {terms: {kl: {class_path: KLToReference, init_args: {ceof: 1}}}}",
        r"model\.terms\.kl\.ceof=1: no such key; did you mean model\.terms\.kl\.coef\?",
    ),
    (
        "callbacks: {entropy: {class_path: EntropyMonitor, init_args: {postions: 1}}}",
        r"callbacks\.entropy\.postions=1: .*callbacks\.entropy\.positions\?",
    ),
    ("data: {group_size: many}", r"data\.group_size=many: expected int"),
    (
        "model: {advantage: {class_path: GAE, init_args: {alpha: big}}}",
        r"model\.advantage\.alpha=big: expected float, or null",
    ),
    (
        "callbacks: {value_warmup: {class_path: ValueWarmup, init_args: {rollouts: 0}}}",
        r"callbacks\.value_warmup\.rollouts=0: must be at least 1",
    ),
    (
        "data: {group_filter: {class_path: Drop}}",
        r"data\.group_filter=Drop: no class .*DropUniform",
    ),
    (
        "model: {advantage: {class_path: GAE, init_arg: {alpha: 1}}}",
        r"model\.advantage\.init_arg: no such key; did you mean init_args\?",
    ),
    (
        "model: {advantage: {class_path: GAE, init_args: [1]}}",
        r"model\.advantage\.init_args=\[1\]: expected a mapping",
    ),
    # an argument beside the name of a class
    *(
        (text, f"^error: {re.escape(setting)}: stands beside class_path; put it under init_args$")
        for text, setting in {
            "model: {advantage: {class_path: GAE, alpha: 1}}": "model.advantage.alpha=1",
            "model: {advantage: {class_path: GAE, init_args: {}, whiten: false}}": (
                "model.advantage.whiten=false"
            ),
            "data: {task: {class_path: PlanCount, n_max: 5}}": "data.task.n_max=5",
            "callbacks: {x: {class_path: SampleTable, rows: 5}}": "callbacks.x.rows=5",
            "model: {terms: {x: {class_path: EntropyBonus, coef: 1}}}": "model.terms.x.coef=1",
            "model: {actor_optimizer: {class_path: torch.optim.SGD, lr: 0.05}}": (
                "model.actor_optimizer.lr=0.05"
            ),
            "data: {rewards: {x: {class_path: Correctness, weight: 5}}}": "data.rewards.x.weight=5",
            "data: {rewards: {correctness: {class_path: Correctness, weight: 5}}}": (
                "data.rewards.correctness.weight=5"
            ),
            "model: {policy: {class_path: ClippedSurrogate, init_args: {aggregation: "
            "{class_path: ConstantLength, length: 5}}}}": "model.policy.aggregation.length=5",
            "trainer: {logger: [{class_path: WandbLogger, name: x}]}": "trainer.logger.name=x",
        }.items()
    ),
    (
        "data: {task: {class_path: PlanCount, params: {a: 5}}}",
        r"data\.task\.params: stands beside class_path; put it under init_args$",
    ),
    (
        "model: {advantage: {class_path: GAE, alhpa: 1}}",
        r"advantage\.alhpa=1: stands beside class_path; put it under init_args, as alpha$",
    ),
    (
        "data: {sampling: {class_path: X}}",
        r"data\.sampling=X: no class can be named here; give the",
    ),
    ("model: {advantage: {class_path: 3}}", r"model\.advantage=3: names no class; choose one of"),
    ("model: {advantage: [GAE]}", r"model\.advantage=\['GAE'\]: names no class; choose one of"),
    ("callbacks: {entropy: Monitor}", r"callbacks\.entropy=Monitor: no class .*EntropyMonitor"),
    ("model: {backbone: null}", r"model\.backbone: not set"),
    ("data: {sampling: 1.5}", r"data\.sampling=1\.5: expected settings .*sampling\.temperature"),
    ("model: {update: [1]}", r"model\.update=\[1\]: expected settings .* model\.update\.epochs"),
    ("model: {update: true}", r"model\.update=True: expected settings of their own"),
    ("data: 3", r"data=3: expected settings of their own, for example data\.task"),
    ("model: []", r"model=\[\]: expected settings of their own, for example model\.backbone"),
    ("trainer: 3", r"trainer=3: expected settings of their own, for example trainer\."),
    ("model: {critic_scheduler: {}}", r"critic_scheduler=\{\}: names no class; .*LinearLR"),
    ("model: {critic_optimizer: {}}", r"critic_optimizer=\{\}: names no class; .*torch\.optim"),
    ("", r"config=overlay\.yaml: is empty; it must map keys to values"),
    ("model: {a: [1\n  b: }", r"config=overlay\.yaml: not valid YAML in line 2"),
    ("callbacks: {a: {}}", r"callbacks\.a=\{\}: names no class; "),
    ("model: {terms: {kl: {}}}", r"model\.terms\.kl=\{\}: names no class; .*KL"),
    ("data: {rewards: {x: {}}}", r"data\.rewards\.x=\{\}: names no class; .*Correctness"),
    ("run_dir: {{RUN}}", r"line 1, column 11: a key is a list or a mapping; quote it"),
    ("? [1, 2]\n: 3", r"line 1, column 3: a key is a list or a mapping; quote it"),
    ("data: {group_size: 4}\ndata: {max_rounds: 8}\n", r"line 2, .*the key data stands twice"),
    ("a: &a [*a]", r"config=overlay\.yaml: an alias refers to itself; write it out"),
    ("data: &a {task: *a}", r"config=overlay\.yaml: an alias refers to itself; write it out"),
    (
        BOMB.format("[", "]"),
        r"config=overlay\.yaml: its aliases stand for \de\+0\d values; wr",
    ),
    (
        BOMB.format("{<<: [", "]}"),
        r"config=overlay\.yaml: its aliases stand for \de\+0\d val",
    ),
    ("a: !!bool x", r"config=overlay\.yaml: not valid YAML"),
    ("a: " + "[" * 3000 + "]" * 3000, r"config=overlay\.yaml: not valid YAML, it is nested too"),
    ('model: {backbone: {name: "a\\0b"}}', r"backbone\.name=a\\x00b: holds a null byte; remove"),
    (b"\xff\xfe\x00", r"config=overlay\.yaml: not a text file"),
    ("a: " + "9" * 5000, r"not valid YAML in line 1, column 4: no value: Exceeds"),
    ("a: 2026-13-01", r"not valid YAML in line 1, column 4: no value: month must be in"),
]


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("content", "message"), FILES, ids=[str(content)[:60] for content, _ in FILES]
)
def test_a_mistake_in_a_file_is_one_line_with_its_full_key(content, message, capsys):
    content = content if isinstance(content, bytes) else content.encode()
    Path("overlay.yaml").write_bytes(content)
    line = fails(capsys, "fit", *VAPO, "--config=overlay.yaml", "--run_dir=run")
    assert re.search(message, line), line
    assert not list(Path().rglob("run/*"))


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("name", ["positions", "points", "bins", "length_bins"])
def test_more_parts_than_anybody_tells_apart_are_refused(name, capsys):
    flags = ["--callbacks.x=CriticMonitor", f"--callbacks.x.{name}=1000000000"]
    line = fails(capsys, "fit", *tiny("ppo"), *SMALL, *flags)
    assert line == f"error: callbacks.x.{name}=1000000000: must be at most 1000"


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("seed", [-(10**20), 10**20])
@pytest.mark.parametrize("kind", ["Scratch", "LoRA"])
def test_a_seed_that_torch_does_not_take_is_one_line(kind, seed, capsys):
    own = {"Scratch": "alphabet=abc", "LoRA": "base=Bundled"}[kind]
    flags = [f"--model.backbone={kind}", f"--model.backbone.{own}", f"--model.backbone.seed={seed}"]
    assert fails(capsys, "fit", *tiny("grpo"), *SMALL, *flags) == (
        f"error: model.backbone.seed={seed}: must lie in [-9223372036854775808, "
        "18446744073709551614], for example 0"
    )


NAMELESS = {
    "model.backbone=Pretrained": "path",
    "model.backbone=Bundled": "name",
    "data.task=MathProblems": "path",
    "data.val_task=MathProblems": "path",
}


@pytest.mark.filterwarnings("ignore:.*does not apply")  # of sizes of the built-in task
@pytest.mark.parametrize("flag", NAMELESS)
def test_an_empty_name_of_a_folder_is_one_line(flag, capsys):
    key = f"{flag.split('=')[0]}.{NAMELESS[flag]}"
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, f"--{flag}", f"--{key}=")
    assert re.match(rf"error: {key}=: (names nothing; give a|not shipped; choose one of)", line)


@pytest.mark.parametrize("key", ["run_dir", "ckpt_path"])
def test_a_path_with_a_null_byte_is_one_line(key, capsys):
    Path("overlay.yaml").write_text(f'{key}: "a\\0b"')
    line = fails(capsys, "fit", *VAPO, "--config=overlay.yaml")
    assert line == rf"error: {key}=a\x00b: holds a null byte; remove it"


PARTS_OF_A_RUN = ["Stopwatch", "RunSummary", "StopSignals", "PeerWatch"]


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("key", ["callbacks.s", "trainer.callbacks"])
@pytest.mark.parametrize("name", PARTS_OF_A_RUN)
def test_what_every_run_has_anyway_is_neither_offered_nor_taken(name, key, capsys):
    line = fails(capsys, "fit", *VAPO, f"--{key}={name}")
    start = f"error: {key}={name}: is a part of the run itself; choose one of CriticMonitor, Entro"
    assert line.startswith(start)
    assert not set(PARTS_OF_A_RUN) & set(re.findall(r"\w+", line.removeprefix(start)))


def test_a_short_name_of_two_classes_is_one_line(capsys, monkeypatch, tmp_path):
    for name in ("one", "two"):
        text = "from lit_reason.tasks import PlanCount\nclass Twin(PlanCount): pass\n"
        Path(f"twins_{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    kept = [importlib.import_module(f"twins_{name}") for name in ("one", "two")]
    line = fails(capsys, "fit", *VAPO, "--data.task=Twin")
    assert re.search(r"data\.task=Twin: several classes .*one of twins_one\.Twin, twins_two", line)
    assert kept


SHARED = [  # settings that both tasks of an overlay have
    ("math500", "--data.task.template=gsm8k", r"data\.task\.answer_format=boxed: .* gsm8k"),
    ("math500", "--data.val_task.template=gsm8k", r"data\.val_task\.answer_format=boxed: .* gsm8k"),
    ("reasoning_gym", "--data.task.template=boxed", r"data\.task\.answer_format=think_answer: "),
    ("reasoning_gym", "--data.val_task.params={foo: 1}", r"data\.val_task\.params\.foo=1: "),
    (
        "reasoning_gym",
        "--data.task.params={foo: 1} --data.val_task.params={foo: 1}",
        r"data\.task\.params\.foo=1: countdown has no such",
    ),
]


@pytest.mark.filterwarnings("ignore:.*does not apply")  # of sizes of the built-in task
@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(("overlay", "flags", "message"), SHARED, ids=[f for _, f, _ in SHARED])
def test_of_two_parts_with_equal_settings_the_one_at_fault_is_named(
    overlay, flags, message, capsys
):
    if overlay == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
        flags = f"--data.task.size=2 --data.val_task.size=2 {flags}"
    else:  # the task that is not at fault has problems to read
        rows = "".join(f'{{"problem": "{n}+1?", "answer": "{n}"}}\n' for n in range(3))
        Path("rows.jsonl").write_text(rows)
        flags = f"--data.task.path=rows.jsonl --data.val_task.path=rows.jsonl {flags}"
        flags += " --data.val_task.split=train"
    given = re.split(r" (?=--)", flags)
    line = fails(capsys, "fit", *VAPO, config(f"data/{overlay}.yaml"), *given)
    assert re.match(f"error: {message}", line), line


@pytest.mark.filterwarnings("ignore:.*does not apply")  # of sizes of the built-in task
@pytest.mark.filterwarnings("ignore:model.backbone")  # plain prompts have other characters
@pytest.mark.parametrize("key", ["task", "val_task"])
def test_the_task_with_chat_messages_that_no_template_renders_is_named(key, capsys):
    Path("rows.jsonl").write_text('{"problem": "1+1=", "answer": "2"}\n' * 2)
    flags = []
    for name in ("task", "val_task"):
        part = f"--data.{name}"
        chat = f"{part}.chat={str(name == key).lower()}"
        flags += [f"{part}=MathProblems", f"{part}.path=rows.jsonl", f"{part}.limit=1", chat]
        flags.append(f"{part}.template={{question}} \\boxed{{}}")
    line = fails(capsys, "fit", *VAPO, *flags)
    assert line.startswith(f"error: data.{key}.chat=true: the tokenizer has no chat template")


BROKEN_ROW = '{"problem": "1+1=", "answer": "2"}\n{"problem": "1+2=", "answer" "3"}\n'


@pytest.mark.filterwarnings("ignore:.*does not apply")  # of sizes of the built-in task
@pytest.mark.parametrize("key", ["data.task", "data.val_task"])
def test_a_broken_row_is_named_with_its_file_for_either_task(key, capsys):
    """The frames of compiled libraries name files that are nowhere: they are not the user's."""
    Path("bad.jsonl").write_text(BROKEN_ROW)
    line = fails(capsys, "fit", *VAPO, f"--{key}=MathProblems", f"--{key}.path=bad.jsonl")
    assert line == (
        f"error: {key}.path=bad.jsonl: cannot be loaded (JSON parse error: Missing a colon after "
        "a name of object member. in row 1); repair that row, or leave it out"
    )


def test_a_command_without_a_configuration_or_with_another_name(capsys):
    assert "model.backbone, model.advantage" in fails(capsys, "fit")
    line = fails(capsys, "train", *VAPO)
    assert re.search(r"subcommand train: .*fit, validate, test, predict, cold_start", line)


def test_the_other_kind_of_configuration_is_named(capsys):
    line = fails(capsys, "cold_start", config("vapo.yaml"))
    assert re.search(r"model\.\S+: belongs to the subcommand fit; run it, or give another", line)


NO_EFFECT = [
    ("grpo", "--data.val_pass_k=[]", r"data\.val_pass_k=\[\]: no pass@k is reported; .* null"),
    (
        "vapo",
        "--data.max_rounds=4",
        r"data\.max_rounds=4: has no effect without data\.group",
    ),
    ("vapo", "--data.groups_per_round=4", r"data\.groups_per_round=4: has no effect without data"),
    ("vapo", "--model.advantage.lam_policy=0.9", r"lam_policy=0\.9: has no effect, alpha=0\.05"),
    ("grpo", "--model.actor_optimizer.lr=0", r"actor_optimizer\.lr=0: the actor never changes; "),
    (
        "grpo",
        "--model.critic_optimizer=torch.optim.SGD --model.update.critic_epochs=2",
        r"critic_optimizer, model\.update\.critic_epochs=2: have no effect without a critic",
    ),
    (
        "grpo",
        "--model.backbone.critic_init=random",
        r"critic_init=random: has no effect without a critic; set it to policy",
    ),
    ("grpo", "--callbacks.entropi=null", r"entropi=null: .* did you mean callbacks\.entropy\?"),
    (
        "vapo",
        "--model.terms.postive_lm=null",
        r"postive_lm=null: .* mean model\.terms\.positive_lm",
    ),
    ("grpo", "--data.rewards.overlong=null", r"overlong=null: .*no such part .* is correctness"),
    ("grpo", "--data.val_task.slip=0.5", r"val_task\.slip=0\.5: has no effect outside cold_start"),
    ("grpo", "--trainer.default_root_dir=x", r"default_root_dir=x: has no effect; .* run_dir"),
    ("grpo", "--trainer.limit_test_batches=3", r"limit_test_batches=3: has no effect on fit"),
    ("grpo", "--data.val_task=null", r"data\.val_task=null: evaluation uses the training problems"),
    (
        "grpo",
        "--callbacks.o=OverlongFilter --callbacks.o.critic=false",
        r"callbacks\.o\.critic=False: has no effect without a critic; set it to true",
    ),
    # what turns training around, or lets it stand still
    ("grpo", "--data.rewards.correctness.weight=-1", r"correctness\.weight=-1: negative, so that"),
    (
        "grpo",
        "--data.rewards.correctness.right=-1 --data.rewards.correctness.wrong=1",
        r"data\.rewards\.correctness\.right=-1: below wrong=1, so that .* worse .*exchange the two",
    ),
    (
        "dapo",
        "--data.rewards.soft_overlong.weight=-1 --data.max_rounds=2",
        r"data\.rewards\.soft_overlong\.weight=-1: negative, so that SoftOverlong rewards the wor",
    ),
    ("grpo", "--model.actor_optimizer.lr=1e-300", r"lr=1e-300: the actor never changes; .*1e-12"),
    ("grpo", "--model.update.max_grad_norm=1e-30", r"max_grad_norm=1e-30: clips every .*or null"),
    (
        "dapo",
        "--data.rewards.correctness=null --data.max_rounds=2",
        r"data\.group_filter=DropUniform: reads verdicts, and no term of data\.rewards does",
    ),
    (
        "grpo",
        "--data.val_sampling.temperature=0",
        r"data\.val_samples=2: with data\.val_sampling\.temperature=0 all .*set it to 1",
    ),
    (
        "vapo",
        "--callbacks.value_warmup.rollouts=20",
        r"callbacks\.value_warmup\.rollouts=20: the run has 2 rollouts",
    ),
    ("grpo", "--threads=100000", r"threads=100000: this machine has \d+ processors"),
]


@pytest.mark.parametrize(("name", "flags", "message"), NO_EFFECT, ids=[f for _, f, _ in NO_EFFECT])
def test_what_a_part_that_is_off_would_read_is_warned_of(name, flags, message):
    """A warning and no error, so that one flag switches the part off."""
    warmup = ["--callbacks.value_warmup.rollouts=1"] if name == "vapo" else []
    with pytest.warns(ConfigWarning, match=message):
        main(["fit", *tiny(name), *SMALL, *warmup, *flags.split(), "--trainer.fast_dev_run=true"])


def test_a_share_of_too_few_batches_is_blamed_on_the_key_that_was_given(capsys):
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, "--trainer.overfit_batches=0.5")
    assert line.startswith("error: trainer.overfit_batches=0.5: ")
    assert "limit_" not in line


STEPS = {  # of optimizers that take no such tensors, or no such arguments
    "=torch.optim.SparseAdam": "RuntimeError: SparseAdam does not support dense gradients",
    "=transformers.Adafactor --{key}.eps=1.0": "TypeError: 'float' object is not subscriptable",
}


@pytest.mark.parametrize("subcommand", ["fit", "cold_start"])
@pytest.mark.parametrize("flag", STEPS)
@pytest.mark.filterwarnings("ignore:.*does not apply")
def test_an_optimizer_whose_step_raises_is_named(flag, subcommand, capsys):
    key = "model.actor_optimizer" if subcommand == "fit" else "model.optimizer"
    cold = [config("cold_start.yaml"), "--model.scheduler=null"]
    args = [*tiny("grpo"), *SMALL] if subcommand == "fit" else cold
    line = fails(capsys, subcommand, *args, *f"--{key}{flag.format(key=key)}".split())
    assert line.startswith(f"error: {key}: its step raised {STEPS[flag]}"), line
    assert line.endswith("; choose other arguments, or torch.optim.AdamW")


def starts(subcommand):
    """Arguments of a short run, and the key of its optimizer."""
    if subcommand == "cold_start":
        return [config("cold_start.yaml"), "--model.scheduler=null"], "model.optimizer"
    return [*tiny("grpo"), *SMALL], "model.actor_optimizer"


TOGETHER = "{key}.fused=true, {key}.%s=true: do not go together; set one to false"
REFUSED = {  # settings that torch refuses, some of them only in a step
    ".lr=-1": "{key}.lr=-1.0: must be at least 0",
    ".weight_decay=-1": "{key}.weight_decay=-1.0: must be at least 0",
    ".betas=[0.5,2]": "{key}.betas=2.0: each must be at least 0 and below 1",
    "=torch.optim.Adadelta --{key}.rho=3": "{key}.rho=3.0: must lie in [0, 1]",
    "=torch.optim.Adafactor --{key}.d=0": "{key}.d=0.0: must be at least 1",
    "=torch.optim.Rprop --{key}.etas=[3,4]": (
        "{key}.etas=3.0, 4.0: must be one from 0 to 1 and one above 1, as [0.5, 1.2]"
    ),
    ".capturable=true": (
        "{key}.capturable=true: is for graphs of a GPU, and the run is on cpu; set it to false"
    ),
    ".fused=true --{key}.foreach=true": TOGETHER % "foreach",
    ".fused=true --{key}.differentiable=true": TOGETHER % "differentiable",
    "=torch.optim.SGD --{key}.fused=true --{key}.foreach=true": TOGETHER % "foreach",
}


@pytest.mark.parametrize("subcommand", ["fit", "cold_start", "fit --dry_run=true"])
@pytest.mark.parametrize("flags", REFUSED)
@pytest.mark.filterwarnings("ignore:.*does not apply")
def test_settings_that_an_optimizer_refuses_are_named(flags, subcommand, capsys):
    subcommand, *dry = subcommand.split()
    args, key = starts(subcommand)
    given = f"--{key}{flags.format(key=key)}".split()
    line = fails(capsys, subcommand, *args, *dry, *given, "--trainer.accelerator=cpu")
    assert line == f"error: {REFUSED[flags].format(key=key)}"


@pytest.mark.parametrize("kind", ["LBFGS", "SparseAdam"])
@pytest.mark.filterwarnings("ignore:.*does not apply")
def test_a_dry_run_refuses_an_optimizer_in_the_words_of_a_run(kind, capsys):
    args = [*tiny("grpo"), *SMALL, f"--model.actor_optimizer=torch.optim.{kind}"]
    line = fails(capsys, "fit", *args)
    assert line.startswith("error: model.actor_optimizer")
    assert fails(capsys, "fit", *args, "--dry_run=true") == line


@pytest.mark.parametrize("of", [RuntimeError, AssertionError])
@pytest.mark.parametrize("text", ["CUDA error: no device", "[gloo] Connection closed by peer"])
def test_errors_of_devices_and_of_other_ranks_are_not_blamed_on_an_optimizer(of, text):
    for naming in (naming_step, naming_settings):
        with pytest.raises(of) as raised, naming("model.optimizer"):
            exec(f"raise {of.__name__}({text!r})")  # in no file, as what C++ raises
        assert not isinstance(raised.value, ConfigError)


LEFT = [  # what is given on continuing with nothing left to train
    (".capturable=true", REFUSED[".capturable=true"]),
    (".fused=true --{key}.foreach=true", TOGETHER % "foreach"),
]


def test_a_mistake_given_with_nothing_left_to_train_is_not_recorded(capsys):
    run_dir = fit(*tiny("grpo"), *SMALL, "--trainer.accelerator=cpu")
    before, key = (run_dir / "config.yaml").read_text(), "model.actor_optimizer"
    for flags, message in LEFT:
        given = f"--{key}{flags.format(key=key)}".split()
        line = fails(capsys, "fit", f"--config={run_dir}/config.yaml", "--ckpt_path=last", *given)
        assert line == f"error: {message.format(key=key)}"
        assert (run_dir / "config.yaml").read_text() == before


@pytest.mark.parametrize("subcommand", ["fit", "cold_start"])
def test_a_schedule_that_turns_training_around_is_refused(subcommand, capsys):
    args, key = starts(subcommand)
    args += [] if subcommand == "fit" else ["--data.batches_per_epoch=3"]
    key = key.replace("optimizer", "scheduler")
    given = [f"--{key}=torch.optim.lr_scheduler.StepLR", f"--{key}.step_size=1"]
    line = fails(capsys, subcommand, *args, *given, f"--{key}.gamma=-1")
    rate = "-0.0003" if subcommand == "fit" else "-0.003"
    assert line == (
        f"error: {key}=StepLR: makes the learning rate {rate} in step 2, with which a run climbs "
        "its loss or diverges; choose other arguments"
    )


def test_a_rate_that_is_negative_once_nothing_trains_with_it_does_not_lose_the_run():
    flags = ["--model.actor_scheduler=torch.optim.lr_scheduler.StepLR"]
    flags += ["--model.actor_scheduler.step_size=2", "--model.actor_scheduler.gamma=-1"]
    fit(*tiny("grpo"), *SMALL, *flags)


def test_a_schedule_that_turns_training_around_is_refused_on_resuming_too(capsys):
    key = "model.actor_scheduler"
    flags = [f"--{key}=torch.optim.lr_scheduler.StepLR", f"--{key}.step_size=1"]
    run_dir = fit(*tiny("grpo"), *SMALL, "--data.rollouts_per_epoch=1", *flags)
    on = [f"--config={run_dir}/config.yaml", "--ckpt_path=last", "--trainer.max_epochs=3"]
    line = fails(capsys, "fit", *on, f"--{key}.gamma=-1")
    assert line.startswith(f"error: {key}=StepLR: makes the learning rate -0.0003 in step 2, with")


def test_a_schedule_that_divides_by_zero_is_named(capsys):
    key = "model.actor_scheduler"
    given = [f"--{key}=torch.optim.lr_scheduler.PolynomialLR", f"--{key}.total_iters=1"]
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, *given, f"--{key}.power=-1")
    assert line == (
        f"error: {key}: raised ZeroDivisionError: 0.0 cannot be raised to a negative power; "
        "choose other arguments"
    )


@pytest.mark.parametrize("network", ["actor", "critic"])
@pytest.mark.filterwarnings("ignore:.*does not apply")
def test_an_optimizer_that_climbs_the_loss_is_refused(network, capsys):
    flag = f"--model.{network}_optimizer"
    line = fails(capsys, "fit", *VAPO, f"{flag}=torch.optim.AdamW", f"{flag}.maximize=true")
    assert line.startswith(f"error: model.{network}_optimizer.maximize=true: climbs the loss")
    line = fails(capsys, "cold_start", config("cold_start.yaml"), "--model.optimizer.maximize=true")
    assert line.startswith("error: model.optimizer.maximize=true: climbs the loss")


def test_verdicts_that_cancel_are_warned_of():
    terms = {"a": Correctness(), "b": Correctness(right=-3.0, wrong=1.0, weight=0.5)}
    with pytest.warns(ConfigWarning) as warned:
        warn_of_rewards(terms, DropUniform())
    turned, cancel = (str(w.message) for w in warned)
    assert turned.startswith("data.rewards.b.right=-3: below wrong=1, so that Correctness rewards")
    assert cancel.startswith("data.rewards.a, data.rewards.b: cancel, so that the verdict does not")


def test_a_finished_run_that_is_continued_is_not_said_to_have_trained_nothing():
    run_dir = fit(*tiny("grpo"), *SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConfigWarning)
        main(["fit", f"--config={run_dir}/config.yaml", "--ckpt_path=last"])


def test_a_run_that_never_trained_the_policy_says_so():
    with pytest.warns(ConfigWarning, match=r"none of the 2 rollouts trained the policy: see upd"):
        fit(*tiny("dapo"), *SMALL, "--data.sampling.max_new_tokens=8", "--data.max_rounds=2")


def test_a_run_that_never_trained_the_critic_says_so():
    flags = ["--data.sampling.max_new_tokens=1", "--callbacks.overlong=OverlongFilter"]
    policy = pytest.warns(ConfigWarning, match="none of the 2 rollouts trained the policy")
    says = r"none of the 2 rollouts trained the critic: see update/skipped_critic"
    with pytest.warns(ConfigWarning, match=says), policy:
        fit(*tiny("ppo"), *SMALL, *flags)


def test_group_relative_advantages_of_single_responses_are_refused(capsys):
    sizes = ["--data.groups_per_rollout=16", "--data.group_size=1"]
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, *sizes)
    assert re.search(r"data\.group_size=1: model\.advantage=GroupRelative .*at least 2", line)
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, "--model.value=ValueLoss")
    assert re.search(
        r"model\.value=ValueLoss: would have no effect.*set model\.value to null", line
    )
    steps = ["--data.rewards.steps=StepCorrectness", "--model.kl_in_reward=0.1"]
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, *steps)
    assert re.search(r"model\.kl_in_reward=0\.1: .*'steps'.*add a KLToReference term", line)


BUGS = """
from abc import abstractmethod
import torch
from torch.optim import AdamW
from lightning.pytorch import Callback
from lit_reason.advantages import Advantages, GroupRelative
from lit_reason.aggregation import Aggregation
from lit_reason.batch import Response
from lit_reason.filters import GroupFilter
from lit_reason.objectives import ClippedSurrogate
from lit_reason.rewards import Reward
from lit_reason.rollout import HFEngine
from lit_reason.tasks import PlanCount

class Boom(Reward):
    def __call__(self, prompt, responses, verdicts):
        return {}["key"]

class Flat(GroupRelative):
    def __call__(self, rollout, rewards, values):
        return Advantages(rewards.sum(dim=1), None, {})

class Loss(ClippedSurrogate):
    def loss(self, experience, outputs):
        return torch.zeros(3) + torch.zeros(4)

class Filter(GroupFilter):
    def __call__(self, correct, rewards, scored):
        return correct / "x"

class Rows(GroupFilter):
    def __call__(self, correct, rewards, scored):
        return correct

class Engine(HFEngine):
    def generate(self, prompts, samples, sampling, seed):
        raise TimeoutError("no answer")

class Short(HFEngine):
    def generate(self, prompts, samples, sampling, seed):
        return super().generate(prompts, samples - 1, sampling, seed)

class Abstract(Reward):
    @abstractmethod
    def more(self): ...

class Floats(GroupRelative):
    def __call__(self, *args):
        return super().__call__(*args)._replace(stats={"x": 1.0})

class Nan(GroupRelative):
    def __call__(self, *args):
        return super().__call__(*args)._replace(advantages=args[1] * torch.nan)

class NoReturns(GroupRelative):
    needs_critic = True

class Bare(GroupRelative):
    def __call__(self, rollout, rewards, values):
        return rewards

class Count(Aggregation):
    def __call__(self, mask, group_ids):
        return mask.float(), 3

class Mask(ClippedSurrogate):
    def mask(self, experience):
        return experience.rollout.loss_mask.float()

class Stats(ClippedSurrogate):
    def stats(self, experience, outputs):
        return {"x": 1.0}

class Unsaid(PlanCount):
    def verify(self, prompt, text):
        pass

class Raises(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        {}["key"]

class Narrow(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch.loss_mask = batch.loss_mask[:, 0]

class Weights(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch.value_mask = batch.value_mask.float()

class Misspelt(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch.loss_maks = batch.loss_mask

class Unbuilt(Callback):
    def __init__(self):
        raise KeyError("key")

class Padding(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch.loss_mask |= True

class Unknown(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        batch.rewards[0] = torch.nan

class Phase(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        pl_module.phase = "foo"

class Unsaved(Callback):
    def state_dict(self):
        raise RuntimeError("no\\nstate\\x1b[2J")

class Everything(ClippedSurrogate):
    def mask(self, experience):
        return torch.ones_like(experience.rollout.loss_mask)

class Detached(ClippedSurrogate):
    def loss(self, experience, outputs):
        return super().loss(experience, outputs).detach()

class Negative(Aggregation):
    def __call__(self, mask, group_ids):
        return mask.float(), -mask.sum()

class Beyond(Aggregation):
    def __call__(self, mask, group_ids):
        return torch.ones(mask.shape), mask.sum()

class Infinite(Aggregation):
    def __call__(self, mask, group_ids):
        return torch.where(mask, torch.inf, 0.0), mask.sum()

class Nothing(HFEngine):
    def generate(self, prompts, samples, sampling, seed):
        return None

class Texts(HFEngine):
    def generate(self, prompts, samples, sampling, seed):
        return [["x"] * samples for _ in prompts]

class Foreign(HFEngine):
    def generate(self, prompts, samples, sampling, seed):
        return [[Response((10**6,), "x", False)] * samples for _ in prompts]

class Long(HFEngine):
    def generate(self, prompts, samples, sampling, seed):
        return [[Response((5,) * 99, "x", False)] * samples for _ in prompts]

class NoPrompt(PlanCount):
    def __getitem__(self, index):
        return "1+1="

class Bools(PlanCount):
    def judge(self, prompts, texts):
        return [True] * len(texts)

class Asks(Callback):
    def __init__(self, every: int):
        self.every = every

class Exits(Callback):
    def on_train_batch_end(self, *args):
        raise SystemExit(0)

class Stops(Callback):
    def on_train_batch_end(self, *args):
        next(iter([]))

class StopsInValidation(Callback):
    def on_validation_batch_end(self, *args):
        next(iter([]))

class StopsOptimizer(AdamW):
    def step(self, closure=None):
        next(iter([]))

class ExitsReward(Reward):
    def __call__(self, prompt, responses, verdicts):
        raise SystemExit(0)

class ExitsTask(PlanCount):
    def verify(self, prompt, text):
        exit()

class ExitsEngine(HFEngine):
    def generate(self, prompts, samples, sampling, seed):
        raise SystemExit("no server")

class ExitsUnbuilt(ExitsReward):
    def __init__(self):
        raise SystemExit(0)

class Silences(Reward):
    def __call__(self, prompt, responses, verdicts):
        import sys
        sys.stdout.close()
        return [0.0] * len(responses)

class Endless(PlanCount):
    def __len__(self):
        return -1

class Closes(Reward):
    def __call__(self, prompt, responses, verdicts):
        raise GeneratorExit

class Base(BaseException):
    pass

class RaisesBase(Reward):
    def __call__(self, prompt, responses, verdicts):
        raise Base("no")

class Mute(Exception):
    def __str__(self):
        return None

class RaisesMute(Reward):
    def __call__(self, prompt, responses, verdicts):
        raise Mute

class Odd:
    def __float__(self):
        raise ZeroDivisionError("no number")

class ReturnsOdd(Reward):
    def __call__(self, prompt, responses, verdicts):
        return [Odd() for _ in responses]

class Clears(Reward):
    def __call__(self, prompt, responses, verdicts):
        responses.clear()
        verdicts.clear()
        return []
"""
PARTS = [
    ("data.rewards.x=Boom", r"data\.rewards\.x: Boom raised KeyError: 'key' \(at my_bugs\.py:17\)"),
    ("data.task=Endless", r"data\.task: Endless raised ValueError: __len__\(\) should return >= 0"),
    ("data.rewards.x=Abstract", r"data\.rewards\.x=\S*Abstract: is abstract; .*Correctness"),
    ("model.advantage=Flat", r"Flat: advantages has shape \(16,\), expected \(16, \d+\)"),
    ("model.advantage=Floats", r"advantage=Floats: stats\['x'\] is 1\.0, expected a tensor of"),
    ("model.advantage=Nan", r"advantage=Nan: advantages are not finite, though rewards and values"),
    ("model.advantage=NoReturns", r"model\.value=null: model\.advantage=NoReturns needs a critic"),
    ("model.advantage=Bare", r"advantage=Bare: returned a Tensor, expected Advantages\(advantages"),
    ("model.policy.aggregation=Count", r"policy\.aggregation=Count: the count is 3, expected a"),
    ("model.terms.x=Loss", r"model\.terms\.x: Loss raised RuntimeError: .*\(at my_bugs\.py:25\)"),
    ("model.terms.x=Mask", r"model\.terms\.x=Mask: the mask is of torch\.float32, expected torch"),
    ("model.terms.x=Stats", r"model\.terms\.x=Stats: stats\['x'\] is 1\.0, expected a tensor of"),
    ("data.task=Unsaid", r"data\.task: Unsaid raised TypeError: a verdict must be True or False"),
    ("data.group_filter=Filter", r"data\.group_filter: Filter raised TypeError: .*my_bugs\.py:29"),
    ("data.group_filter=Rows", r"Rows: the decision has shape \(4, 4\), expected \(4,\)"),
    ("callbacks.x=Raises", r"callbacks\.x\.on_train_batch_start: KeyError: 'key' \(at my_bugs\.py"),
    (
        "callbacks.x=Narrow",
        r"loss_mask of the edited rollout has shape \(16,\), expected \(",
    ),
    (
        "callbacks.x=Weights",
        r"value_mask of the edited rollout is of torch\.float32, expected",
    ),
    ("callbacks.x=Misspelt", r"callbacks\.x\.on_train_batch_start: AttributeError: .*loss_maks"),
    ("callbacks.x=Unbuilt", r"callbacks\.x\.__init__: KeyError: 'key' \(at my_bugs\.py:\d+\)"),
    ("callbacks.x=Padding", r"callbacks: loss_mask counts padding in the edited rollout"),
    ("callbacks.x=Unknown", r"callbacks: rewards are not finite in the edited rollout"),
    ("callbacks.x=Phase", r"callbacks: phase='foo': choose joint or value_warmup"),
    ("callbacks.x=Unsaved", r"callbacks\.x\.state_dict: RuntimeError: no state\\x1b\[2J \(at my"),
    ("model.terms.x=Everything", r"model\.terms\.x=Everything: its mask counts \d+ positions"),
    ("model.policy=Detached", r"model\.policy=Detached: the loss has no gradient; compute it from"),
    ("model.policy.aggregation=Negative", r"aggregation=Negative: its count is -\d+.*above 0"),
    ("model.policy.aggregation=Beyond", r"aggregation=Beyond: weighs \d+ tokens that the term doe"),
    ("model.policy.aggregation=Infinite", r"aggregation=Infinite: \d+ of its weights are not fini"),
    ("data.engine=Nothing", r"data\.engine=Nothing: returned no list of lists of Response"),
    ("data.engine=Texts", r"data\.engine=Texts: returned 'x', expected a Response with a text"),
    ("data.engine=Foreign", r"data\.engine=Foreign: a response has ids that are no tokens"),
    ("data.engine=Long", r"data\.engine=Long: a response of 99 tokens is longer than max_new"),
    ("data.task=NoPrompt", r"data\.task: NoPrompt gives '1\+1=' as a problem, expected a Prompt"),
    ("data.task=Bools", r"data\.task: Bools\.judge returned \[True, .*expected a list of Verdict"),
    ("callbacks.x=Asks", r"callbacks\.x\.every: not set"),
    ("data.engine=Engine", r"data\.engine: Engine raised TimeoutError: no answer \(at my_bugs\.py"),
    ("data.engine=Short", r"data\.engine=Short: returned \[\d, .*expected \d for each"),
    ("callbacks.x=Exits", r"callbacks\.x\.on_train_batch_end: SystemExit: 0 \(at my_bugs\.py:\d"),
    ("callbacks.x=Stops", r"callbacks\.x\.on_train_batch_end: StopIteration: .*\(at my_bugs\.py:"),
    ("callbacks.x=StopsInValidation", r"x\.on_validation_batch_end: StopIteration: .*\(at my_b"),
    ("model.actor_optimizer=StopsOptimizer", r"optimizer\.step: StopIteration: .*\(at my_bugs"),
    ("data.rewards.x=ExitsReward", r"data\.rewards\.x: ExitsReward raised SystemExit: 0 \(at my_b"),
    ("data.task=ExitsTask", r"data\.task: ExitsTask raised SystemExit: None \(at my_bugs\.py:\d+"),
    ("data.engine=ExitsEngine", r"data\.engine: ExitsEngine raised SystemExit: no server \(at my"),
    ("data.rewards.x=ExitsUnbuilt", r"data\.rewards\.x\.__init__: SystemExit: 0 \(at my_bugs\.py"),
    ("data.rewards.x=Closes", r"data\.rewards\.x: Closes raised GeneratorExit: .*\(at my_bugs\.py"),
    ("data.rewards.x=RaisesBase", r"data\.rewards\.x: RaisesBase raised Base: no \(at my_bugs\.py"),
    ("data.rewards.x=RaisesMute", r"data\.rewards\.x: RaisesMute raised Mute: .*\(at my_bugs\.py"),
    (
        "data.rewards.x=ReturnsOdd",
        r"x: ReturnsOdd raised ZeroDivisionError: no number \(at my",
    ),
    (
        "data.rewards.x=Clears",
        r"data\.rewards\.x: Clears returned 0 values for 4 responses; return",
    ),
]


AT_ONCE = "--trainer.num_sanity_val_steps=0"  # without an evaluation before training


@pytest.mark.parametrize(("flag", "message"), PARTS, ids=[flag for flag, _ in PARTS])
@pytest.mark.filterwarnings("ignore:.*does not apply")
def test_a_mistake_in_a_users_own_part_is_one_line_with_its_place(
    flag, message, capsys, monkeypatch, tmp_path
):
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_bugs.py").write_text(BUGS)
    sys.modules.pop("my_bugs", None)
    named = "--" + flag.replace("=", "=my_bugs.")
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, AT_ONCE, named)
    assert re.search(message, line), line


def test_a_reward_that_closes_stdout_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_bugs.py").write_text(BUGS)
    sys.modules.pop("my_bugs", None)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, AT_ONCE, "--data.rewards.x=my_bugs.Silences")
    assert line == "error: data.rewards.x: Silences closed stdout; leave it open"


WITH_CRITIC = [
    ("model.advantage=NoReturns", r"advantage=NoReturns: returns is None, expected a tensor of"),
    (
        "data.rewards.x=lit_reason.rewards.KimiLength --data.group_size=1 "
        "--data.groups_per_rollout=16",
        r"data\.group_size=1: data\.rewards\.x=KimiLength compares the responses of a group",
    ),
]


@pytest.mark.parametrize(("flags", "message"), WITH_CRITIC)
def test_what_fits_no_critic_or_no_group_is_one_line(flags, message, capsys, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_bugs.py").write_text(BUGS)
    sys.modules.pop("my_bugs", None)
    flags = flags.replace("=NoReturns", "=my_bugs.NoReturns").split()
    line = fails(capsys, "fit", *tiny("ppo"), *SMALL, "--" + flags[0], *flags[1:])
    assert re.search(message, line), line


BROKEN = [
    ("class A(", r"SyntaxError: '\(' was never closed"),
    ("from nowhere import A", r"ModuleNotFoundError: No module named 'nowhere'"),
    ("class A(B): ...", r"NameError: name 'B' is not defined"),
    ("import sys; sys.exit(0)", r"SystemExit: 0"),
]


@pytest.mark.parametrize("key", ["model.advantage", "callbacks.x", "model.actor_optimizer"])
@pytest.mark.parametrize(("text", "message"), BROKEN, ids=[text for text, _ in BROKEN])
def test_a_users_file_that_cannot_be_imported_is_one_line(
    key, text, message, capsys, monkeypatch, tmp_path
):
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_broken.py").write_text(text)
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, f"--{key}=my_broken.A")
    assert re.search(rf"{key}=my_broken\.A: module my_broken cannot .*{message}", line), line


NULLS = [
    (
        "--model.advantage.gamma=null",
        r"model\.advantage\.gamma=null: cannot be null; expected float",
    ),
    (
        "--model.policy.clip_low=null",
        r"model\.policy\.clip_low=null: cannot be null; expected float",
    ),
    (
        "--model.terms.positive_lm.coef=null",
        r"model\.terms\.positive_lm\.coef=null: cannot be null",
    ),
    ("--callbacks.value_warmup.rollouts=null", r"callbacks\.value_warmup\.rollouts=null: cannot"),
    ("--data.groups_per_rollout=null", r"data\.groups_per_rollout=null: expected int"),
    ("--model.update=null", r"model\.update=null: cannot be null"),
    ("data: {sampling: null}", r"data\.sampling=null: cannot be null"),
    ("model: {update: }", r"model\.update=null: cannot be null"),
    ("model: {advantage: {class_path: GAE, init_args: }}", r"model\.advantage\.init_args is empty"),
    (
        "model: {advantage: {class_path: }}",
        r"model\.advantage\.class_path is empty; fill it, or rem",
    ),
    ("model: {3: x}", r"config=overlay\.yaml: the key model\.3 is no text; quote it"),
]


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(("given", "message"), NULLS, ids=[given for given, _ in NULLS])
def test_null_where_it_means_nothing_is_one_line(given, message, capsys):
    if not given.startswith("--"):
        Path("overlay.yaml").write_text(given)
        given = "--config=overlay.yaml"
    line = fails(capsys, "fit", *VAPO, given)
    assert re.search(message, line), line


SLOTS = [
    (
        "vapo",
        "--model.value=ClippedSurrogate",
        r"model\.value=ClippedSurrogate: a loss of the actor",
    ),
    ("grpo", "--model.terms.v=ValueLoss", r"model\.terms\.v=ValueLoss: a loss of the critic"),
    ("grpo", "--model.policy=EntropyBonus", r"model\.policy=EntropyBonus: does not use the advant"),
    ("ppo", "--data.rewards.correctness.wrong=1", r"correctness\.right=1\.0: equals wrong"),
    ("grpo", "--trainer.gradient_clip_algorithm=norm", r"gradient_clip_algorithm=norm: would have"),
    ("grpo", "--trainer=null", r"trainer=null: cannot be null"),
    ("grpo", "--model.logprob_chunk=-1", r"model\.logprob_chunk=-1: must be at least 1"),
    (
        "grpo",
        "--model.kl_in_reward=.inf",
        r"model\.kl_in_reward=inf: must be finite and",
    ),
    ("grpo", "--model.terms.loss=EntropyBonus", r"model\.terms\.loss: the name is taken"),
    ("grpo", "--data.rewards.correctness.weight=.nan", r"correctness\.weight=nan: must be finite"),
    (
        "grpo",
        "--data.rewards.correctness.weight=1e-300",
        r"correctness\.weight=1e-300: .* no effect",
    ),
    (
        "grpo",
        "--data.rewards.correctness.weight=1e39",
        r"correctness\.weight=1e\+39: makes rewards of 1e\+18 and beyond; lower it",
    ),
    ("ppo", "--data.rewards.correctness.right=.nan", r"correctness\.right=nan: must be finite"),
    ("ppo", "--data.rewards.correctness.wrong=-.inf", r"correctness\.wrong=-inf: must be finite"),
    ("ppo", "--data.rewards.correctness.right=1e30", r"right=1e\+30: makes rewards of 1e\+18"),
    (
        "ppo",
        "--data.rewards.x=StepCorrectness --data.rewards.x.wrong=.nan",
        r"data\.rewards\.x\.wrong=nan: must be finite",
    ),
    ("dapo", "--data.rewards.soft_overlong.cache=.nan", r"soft_overlong\.cache=nan: neither a"),
    ("dapo", "--data.rewards.soft_overlong.cache=.inf", r"soft_overlong\.cache=inf: neither a"),
    ("dapo", "--data.rewards.soft_overlong.cache=-.inf", r"soft_overlong\.cache=-inf: neither a"),
    ("grpo", "--run_dir=s3://bucket/x", r"run_dir=s3://bucket/x: is no folder of this machine"),
    (
        "dapo",
        "--data.rewards.soft_overlong.cache=1.5",
        r"soft_overlong\.cache=1\.5: neither a",
    ),
    (
        "grpo",
        "--model.actor_optimizer=torch.optim.LBFGS",
        r"actor_optimizer=LBFGS: needs a clos",
    ),
    (
        "ppo",
        "--model.actor_optimizer.lr=-1",
        r"model\.actor_optimizer\.lr=-1\.0: must be at least 0$",
    ),
    ("ppo", "--model.actor_optimizer.lr=1e400", r"model\.actor_optimizer\.lr=inf: must be finite"),
    (
        "grpo",
        "--model.policy.aggregation=ConstantLength",
        r"policy\.aggregation\.length: not",
    ),
    (
        "grpo",
        "--model.actor_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau",
        r"actor_scheduler=ReduceLROnPlateau: waits for a metric",
    ),
    ("grpo", "--run_dir=", r"run_dir=: names no folder; give one, or leave it out"),
    (
        "vapo",
        "--callbacks={one: {class_path: ValueWarmup, init_args: {rollouts: 1}}, "
        "two: ValuePretraining}",
        r"callbacks: ValueWarmup and ValuePretraining would both set the phase",
    ),
    ("grpo", "--threads=0", r"threads=0: must be at least 1, or null"),
    (
        "ppo",
        "--model.actor_scheduler={class_path: torch.optim.lr_scheduler.OneCycleLR, "
        "init_args: {max_lr: 1e-3, total_steps: 1}}",
        r"model\.actor_scheduler\.total_steps=1: the run steps the schedule 2 times; raise it to 2",
    ),
    (
        "grpo",
        "--model.actor_scheduler=torch.optim.lr_scheduler.LinearLR "
        "--model.actor_scheduler.total_iters=-3",
        r"model\.actor_scheduler\.total_iters=-3: must be at least 1",
    ),
    (
        "ppo",
        "--model.critic_scheduler=torch.optim.lr_scheduler.CosineAnnealingLR "
        "--model.critic_scheduler.T_max=0",
        r"model\.critic_scheduler\.T_max=0: must be at least 1",
    ),
    ("grpo", "--ckpt_path=last", r"ckpt_path=last: of which run\? give --run_dir=RUN_DIR too"),
    ("grpo", "--ckpt_path=last --run_dir=x", r"ckpt_path=last: run_dir=x holds no checkpoint"),
]


@pytest.mark.parametrize("value", [1e-300, 1e300])
@pytest.mark.parametrize(
    ("part", "key"),
    [
        (lambda x: ClippedSurrogate(clip_low=min(x, 1e-300)), "model.policy.clip_low"),
        (lambda x: ClippedSurrogate(clip_high=x), "model.policy.clip_high"),
        (lambda x: ClippedSurrogate(dual_clip=x), "model.policy.dual_clip"),
        (lambda x: ValueLoss(clip=x), "model.value.clip"),
        (lambda x: KLToReference(coef=x), "KLToReference.coef"),
        (lambda x: GAE(alpha=x), "model.advantage.alpha"),
        (lambda x: Update(max_grad_norm=x), "model.update.max_grad_norm"),
        (lambda x: module_of(kl_in_reward=x), "model.kl_in_reward"),
    ],
)
def test_numbers_that_float32_does_not_hold_are_refused(part, key, value):
    message = (
        rf"^{re.escape(key)}=1e[-+]300: must be from 1\.2e-38 to 3\.4e\+38, which float32 holds"
    )
    with pytest.raises(ConfigError, match=message):
        part(value)


def test_bounds_may_be_infinite():
    inf = math.inf
    surrogate = ClippedSurrogate(clip_high=inf, dual_clip=inf)
    assert (
        surrogate.clip_high == ValueLoss(clip=inf).clip == Update(max_grad_norm=inf).max_grad_norm
    )


@pytest.mark.parametrize(("name", "flag", "message"), SLOTS, ids=[flag for _, flag, _ in SLOTS])
@pytest.mark.filterwarnings("ignore:.*does not apply")
def test_what_cannot_do_its_work_is_refused(name, flag, message, capsys):
    flags = [flag] if "{" in flag else flag.split()
    line = fails(capsys, "fit", *tiny(name), *SMALL, *flags)
    assert re.search(message, line), line


COLD = [
    ("--model.backbone.heads=0", r"model\.backbone\.heads=0: must be at least 1"),
    (
        "--model.backbone.alphabet=0123456789",
        r"model\.backbone: .*extend model\.backbone\.alphabet",
    ),
    (f"--data.batch_size={10**20}", r"data\.batch_size=1\d+: must be at most 1048576 responses"),
    ("--data.curriculum=-5", r"data\.curriculum=-5: must be at least 0"),
    ("--model.optimizer.lr=-1", r"model\.optimizer\.lr=-1\.0: must be at least 0$"),
    ("--trainer.accumulate_grad_batches=0", r"accumulate_grad_batches=0: must be at least 1$"),
    (
        "--model.scheduler.total_steps=9",
        r"model\.scheduler\.total_steps=9: the run steps .* \d+ tim",
    ),
    (
        "--callbacks.e=EntropyMonitor",
        r"callbacks\.e=EntropyMonitor: acts on rollouts, and cold_start",
    ),
]


@pytest.mark.parametrize(("flag", "message"), COLD, ids=[flag for flag, _ in COLD])
def test_mistakes_in_a_cold_start_are_one_line(flag, message, capsys):
    line = fails(capsys, "cold_start", config("cold_start.yaml"), flag)
    assert re.search(message, line), line


def test_a_checkpoint_that_does_not_fit_is_one_line_and_leaves_another_run_alone(capsys):
    first = fit(*tiny("grpo"), *SMALL, run_dir="first")
    second = Path("second")
    second.mkdir()
    before = (first / "config.yaml").read_text()
    (second / "config.yaml").write_text(before)
    last = f"--ckpt_path={first / 'checkpoints' / 'last.ckpt'}"
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, last, "--run_dir=second")
    assert re.search(r"run_dir=second: already holds a run", line), line
    assert (second / "config.yaml").read_text() == before
    line = fails(
        capsys, "fit", *tiny("grpo"), *SMALL, last, "--run_dir=first", "--trainer.max_epochs=0"
    )
    assert "max_epochs=0" in line
    line = fails(capsys, "validate", *tiny("ppo"), *SMALL, last)
    assert re.search(r"ckpt_path: holds no critic; give the configuration it was written", line), (
        line
    )
    holes = torch.load(first / "checkpoints" / "last.ckpt", weights_only=True)
    holes["state_dict"] = {k: v for k, v in holes["state_dict"].items() if ".layers.1." not in k}
    torch.save(holes, "holes.ckpt")
    line = fails(capsys, "validate", *tiny("grpo"), *SMALL, "--ckpt_path=holes.ckpt")
    assert re.search(
        r"ckpt_path: .*(lacks \d+ weights of the actor, like actor\.|damaged)", line
    ), line
    line = fails(capsys, "fit", *VAPO, last, "--run_dir=third")
    assert re.search(r"ckpt_path: holds no critic; give .*config\.yaml", line), line
