"""Combinations that do nothing or bias the result: each is an error or a warning with its fix.

Others of the kind are refused where their part is tested: sizes that do not divide and groups of
one in `test_bad_input.py`, sampling that is not trained in `test_data.py`, verdicts of tasks that
have none in `test_prompts.py`.
"""

import re
import warnings
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from lit_reason.__main__ import main
from lit_reason.advantages import GAE
from lit_reason.callbacks import OverlongFilter, ValuePretraining, ValueWarmup
from lit_reason.errors import ConfigWarning
from lit_reason.objectives import ValueLoss
from lit_reason.rewards import Correctness, SoftOverlong
from tests.conftest import SMALL, config, fails, fit, tiny
from tests.runs import data_of, module_of, run
from tests.test_cold_start import ARGS as COLD


def once(*callbacks, rewards=None, module=None):
    """A run of one rollout."""
    rewards = rewards or {"correctness": Correctness()}
    data = data_of(rewards=rewards, rollouts_per_epoch=1)
    run(module or module_of(), data, *callbacks)


def test_the_largest_punishment_of_what_does_not_train_is_warned_of():
    rewards = {"correctness": Correctness(), "soft": SoftOverlong(cache=4)}
    with pytest.warns(ConfigWarning, match=r"data\.rewards\.soft=SoftOverlong: .*one of the two"):
        once(OverlongFilter(), rewards=rewards)


def test_value_clipping_where_it_never_acts_is_warned_of():
    module = module_of()
    module.value = ValueLoss(clip=0.2)
    message = r"model\.value\.clip=0\.2: has no effect during value pretraining; set it to null"
    with pytest.warns(ConfigWarning, match=message):
        once(ValuePretraining(patience=None), module=module)


def test_a_length_adaptive_lambda_that_is_always_at_its_floor_is_warned_of():
    with pytest.warns(ConfigWarning, match=r"model\.advantage\.alpha=0\.001: .*choose alpha well"):
        once(module=module_of(advantage=GAE(alpha=0.001)))


@pytest.mark.parametrize("callback", [OverlongFilter(), ValueWarmup(1, save=True)])
def test_each_part_alone_is_not_warned_of(callback):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConfigWarning)
        once(callback)


@pytest.mark.parametrize(
    "strategy", ["fsdp", "deepspeed_stage_2", "FSDPStrategy", "ModelParallelStrategy"]
)
def test_strategies_that_shard_are_refused(strategy, capsys):
    """I04: ranks that end their responses at different lengths must not wait for each other."""
    flag = f"--trainer.strategy={strategy}"
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, flag)
    wanted = rf"trainer\.strategy={strategy}: shards the weights.*choose fsdp2, or ddp"
    assert re.search(wanted, line), line


# --- through the command line ---------------------------------------------------------------------

GRPO, VAPO = [*tiny("grpo"), *SMALL], [*tiny("vapo"), *SMALL]
VAPO.append("--callbacks.value_warmup.rollouts=1")
PRETRAIN = [config("value_pretrain.yaml"), *SMALL, "--model.update.critic_minibatch_size=8"]
STAGE = "--callbacks.value_pretraining"
KL = "--model.terms.kl=null"
LORA = config("scale/lora.yaml")


def warned(*args):
    """What is said of the settings of a command that runs to its end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with suppress(SystemExit) if "--dry_run=true" in args else nullcontext():
            main(list(args))
    said = [str(w.message) for w in caught if issubclass(w.category, ConfigWarning)]
    return [x for x in said if "/accuracy=0" not in x]  # of a model of no rollout


def as_file(flag, name="overlay.yaml"):
    """The flag of a file that holds the setting of a flag."""
    key, _, value = flag.removeprefix("--").partition("=")
    *sections, last = key.split(".")
    inner = "".join(f"{section}: {{" for section in sections)
    Path(name).write_text(f"{inner}{last}: {value}{'}' * len(sections)}\n")
    return f"--config={name}"


REFUSED = [
    # parts that do not fit together
    (
        "grpo",
        "--model.policy.correction={} --model.old_logprobs=engine",
        r"model\.policy\.correction: compares the engine's log-probs",
    ),
    ("grpo", "--model.terms={a b: EntropyBonus}", r"model\.terms\.a b: use letters, digits and _"),
    (
        "grpo",
        "--model.value=ValueLoss",
        r"model\.value=ValueLoss: would have no effect, model",
    ),
    ("grpo", "--model.reference_refresh=0", r"reference_refresh=0: must be at least 1 rollout, or"),
    ("vapo", "--model.reference_refresh=2", r"reference_refresh=2: would have no effect without a"),
    (
        "grpo",
        f"{LORA} --model.reference_refresh=2",
        r"reference_refresh=2: .*frozen base and",
    ),
    (
        "grpo",
        "--model.old_logprobs=engine --data.sampling.top_p=0.9",
        r"model\.old_logprobs=engine: with data\.sampling\.top_p=0\.9, top_k=0 the engine's log-",
    ),
    (
        "grpo",
        "--data.group_size=1 --data.groups_per_rollout=8",
        r"data\.group_size=1: model\.advantage=GroupRelative compares the responses of a group",
    ),
    (
        "grpo",
        "--data.rewards.s=StepCorrectness --model.kl_in_reward=0.1",
        r"model\.kl_in_reward=0\.1: with the per-token reward 's', GroupRelative",
    ),
    (
        "ppo",
        "--model.backbone.critic_init=rm",
        r"model\.backbone\.critic_init=rm: only a value warm-up teaches the outcome",
    ),
    # the Trainer
    (
        "grpo",
        "--trainer.min_steps=5",
        r"trainer\.min_steps=5: .*set trainer\.min_epochs",
    ),
    ("grpo", "--trainer.max_time=soon", r"trainer\.max_time=soon: is no time; write DD:HH:MM:SS"),
    ("grpo", "--trainer.log_every_n_steps=0", r"trainer\.log_every_n_steps=0: must be at least 1"),
    ("grpo", "--seed_everything=4294967296", r"seed_everything=4294967296: must lie in \[0, 42949"),
    (
        "grpo",
        "--callbacks.x=lightning.pytorch.callbacks.SpikeDetection",
        r"callbacks\.x=SpikeDetection: acts on steps that Lightning takes, .*; leave it out",
    ),
    (
        "grpo",
        "--callbacks.x=lightning.pytorch.callbacks.StochasticWeightAveraging "
        "--callbacks.x.swa_lrs=0.1",
        r"callbacks\.x=StochasticWeightAveraging: .*EMAWeightAveraging averages weights",
    ),
    (
        "grpo",
        "--callbacks.x=lightning.pytorch.callbacks.BasePredictionWriter",
        r"callbacks\.x=BasePredictionWriter: is a base class of others, .*one of your own",
    ),
    # an empty mapping, as which the parser takes a callback that does nothing
    (
        "grpo",
        "--callbacks.x={}",
        r"callbacks\.x=\{\}: names no class that .*one of Critic",
    ),
    (
        "grpo",
        "--callbacks.x=lightning.pytorch.Callback",
        r"x=lightning\.pytorch\.Callback: names",
    ),
]


LIGHTNINGS = {
    "BackboneFinetuning": "reads attributes that the module of cold_start has not; leave it out",
    "LearningRateFinder": "reads attributes that the module of cold_start has not; leave it out",
    "BaseFinetuning": "is a base class of others, which say what it does; give one of your own",
}


@pytest.mark.parametrize("name", LIGHTNINGS)
def test_callbacks_that_would_fail_in_a_cold_start_are_refused(name, capsys):
    given = f"--callbacks.x=lightning.pytorch.callbacks.{name}"
    line = fails(capsys, "cold_start", *COLD, given, "--run_dir=run")
    assert line.startswith(f"error: callbacks.x={name}: {LIGHTNINGS[name]}")
    assert not Path("run").exists()


@pytest.mark.filterwarnings("ignore:data.sampling.top_p")
@pytest.mark.parametrize(("name", "flags", "message"), REFUSED, ids=[f for _, f, _ in REFUSED])
def test_what_cannot_act_is_refused(name, flags, message, capsys):
    args = [flags] if "{a b" in flags else flags.split()
    line = fails(capsys, "fit", *tiny(name), *SMALL, *args)
    assert re.search(message, line), line


def test_a_policy_term_of_ones_own_that_says_not_how_to_aggregate_is_refused(
    capsys, monkeypatch, tmp_path
):
    monkeypatch.syspath_prepend(tmp_path)
    Path("term_without_mean.py").write_text(
        "from lit_reason.objectives import ClippedSurrogate\n\n"
        "class Sums(ClippedSurrogate):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.aggregation = None\n"
    )
    line = fails(capsys, "fit", *GRPO, "--model.policy=term_without_mean.Sums")
    assert line.startswith("error: model.policy.aggregation=null: the policy term needs one, for")


@pytest.mark.parametrize("subcommand", ["validate", "test", "predict"])
def test_an_evaluation_of_nothing_is_refused(subcommand, capsys):
    key = f"trainer.limit_{subcommand.replace('validate', 'val')}_batches"
    line = fails(capsys, subcommand, *GRPO, f"--{key}=0")
    assert line == f"error: {key}=0: nothing would be evaluated; raise it"


UNREAD = [  # by any subcommand
    "--trainer.sync_batchnorm=true",
    "--trainer.use_distributed_sampler=false",
    "--trainer.reload_dataloaders_every_n_epochs=1",
    "--trainer.enable_autolog_hparams=false",
    "--trainer.model_registry=foo",
    "--trainer.default_root_dir=x",
]


@pytest.mark.parametrize("flag", UNREAD)
def test_what_no_subcommand_reads_is_warned_of(flag):
    shown = re.escape(flag[2:])
    for args in (["fit", *GRPO, "--dry_run=true"], ["cold_start", *COLD], ["validate", *GRPO]):
        (line,) = warned(*args, flag)
        assert re.match(rf"{shown}: has no effect; .*; leave it out$", line)
    (line,) = warned("fit", *GRPO, "--dry_run=true", as_file(flag))
    assert re.match(rf"{shown}: has no effect; ", line, re.IGNORECASE)


UNREAD_BY = [
    ("fit", "--trainer.limit_test_batches=3", r"limit_test_batches=3: has no effect on fit"),
    ("fit", "--trainer.limit_predict_batches=3", r"limit_predict_batches=3: has no effect on fit"),
    ("validate", "--trainer.limit_train_batches=3", r"limit_train_batches=3: .*effect on validate"),
    ("test", "--trainer.limit_val_batches=1", r"limit_val_batches=1: has no effect on test"),
    ("predict", "--trainer.limit_test_batches=1", r"limit_test_batches=1: .*effect on predict"),
    (
        "fit",
        "--callbacks.p=PredictionWriter",
        r"callbacks\.p=PredictionWriter: .*effect on fit; ",
    ),
    ("validate", "--callbacks.p=ExportPolicy", r"callbacks\.p=ExportPolicy: .*effect on validate"),
    (
        "fit",
        "--callbacks.p=lightning.pytorch.callbacks.LambdaCallback",
        r"callbacks\.p=LambdaCallback: has no effect as it has no hook; leave it out",
    ),
    *(
        (subcommand, "--data.val_task=null", r"data\.val_task=null: evaluation uses the training")
        for subcommand in ("fit", "validate", "test", "predict")
    ),
    ("fit", f"{LORA} --model.backbone.share=false", r"model\.backbone\.share=false: .*to true"),
    ("fit", "--model.reference_refresh=9", r"reference_refresh=9: the run has 2 rollouts, so the"),
]


@pytest.mark.parametrize(("subcommand", "flags", "message"), UNREAD_BY)
def test_what_a_subcommand_does_not_read_is_warned_of(subcommand, flags, message):
    if "share" in flags:
        pytest.importorskip("peft")
    ends = ["--trainer.fast_dev_run=true"] if subcommand == "fit" else ["--run_dir=run"]
    (line,) = warned(subcommand, *GRPO, *flags.split(), *ends)
    assert re.search(message, line), line


def test_predictions_are_written_once_also_by_a_writer_that_is_named():
    assert warned("predict", *GRPO, "--callbacks.p=PredictionWriter", "--run_dir=run") == []
    assert len(Path("run/predictions.jsonl").read_text().splitlines()) == 6 * 2


def test_a_callback_of_another_subcommand_may_stand_in_a_file():
    Path("mine.yaml").write_text("callbacks: {p: PredictionWriter, e: EntropyMonitor}\n")
    for args in (["fit", "--dry_run=true"], ["validate"], ["predict", "--run_dir=run"]):
        assert warned(args[0], *GRPO, "--config=mine.yaml", *args[1:]) == []


OWN = """
from lightning.pytorch import Callback

class Prepares(Callback):
    def setup(self, trainer, pl_module, stage):
        print("prepared")

class Keeps(Callback):
    def state_dict(self):
        return {"kept": 1}

class Looks(Callback):
    def on_stage(self, trainer, stage):
        print(stage)
"""


@pytest.mark.parametrize("name", ["Prepares", "Keeps", "Looks"])
def test_a_callback_of_ones_own_acts_through_any_hook(name, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    Path("callbacks_that_act.py").write_text(OWN)
    given = f"--callbacks.x=callbacks_that_act.{name}"
    assert warned("fit", *GRPO, given, "--dry_run=true") == []


NOTHING_EVALUATED = [
    "--trainer.limit_val_batches=1",
    "--trainer.limit_test_batches=2",
    "--trainer.limit_predict_batches=2",
    "--trainer.check_val_every_n_epoch=2",
    "--trainer.val_check_interval=2",
    "--trainer.num_sanity_val_steps=2",
    "--trainer.inference_mode=false",
]


@pytest.mark.parametrize("flag", NOTHING_EVALUATED)
@pytest.mark.parametrize("from_file", [False, True])
def test_what_an_evaluation_would_read_is_warned_of_in_a_cold_start(flag, from_file):
    (line,) = warned("cold_start", *COLD, as_file(flag) if from_file else flag)
    assert re.match(rf"{flag[2:]}: has no effect on cold_start, which evaluates", line, re.I)


IN_A_COLD_START = {
    "--model.backbone.critic_init=random": r"backbone\.critic_init=random: .* no critic; set it",
    "--trainer.gradient_clip_val=1e-20": r"gradient_clip_val=1e-20: clips every gradient to",
    "--trainer.gradient_clip_algorithm=value --trainer.gradient_clip_val=null": (
        r"gradient_clip_algorithm=value: has no effect without trainer\.gradient_clip_val; set"
    ),
    "--trainer.gradient_clip_algorithm=norm --trainer.gradient_clip_val=0": (
        r"gradient_clip_algorithm=norm: has no effect without trainer\.gradient_clip_val; set"
    ),
}


@pytest.mark.parametrize("flags", IN_A_COLD_START)
def test_what_a_cold_start_does_not_read_is_warned_of(flags):
    (line,) = warned("cold_start", *COLD, *flags.split())
    assert re.search(IN_A_COLD_START[flags], line), line


@pytest.mark.parametrize("value", ["-1", "-0.5", "1e-300", "1e300"])
def test_a_bound_of_gradients_that_is_none_is_refused_in_a_cold_start(value, capsys):
    line = fails(capsys, "cold_start", *COLD, f"--trainer.gradient_clip_val={value}")
    assert re.search(r"trainer\.gradient_clip_val=\S+: must be .*, or null$", line)


def test_a_cold_start_clips_unless_the_bound_is_zero_or_null():
    """Plain descent, as Adam's steps hardly depend on the size of gradients."""
    plain = ["--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.1"]
    plain.append("--model.scheduler=null")
    trained = {}
    for clip in ("0.01", "0", "null"):
        given = [f"--trainer.gradient_clip_val={clip}", f"--run_dir=run_{clip}"]
        assert warned("cold_start", *COLD, *plain, *given) == []
        trained[clip] = Path(f"run_{clip}", "policy", "model.safetensors").read_bytes()
    assert trained["0"] == trained["null"] != trained["0.01"]


IN_PRETRAINING = {
    "--model.kl_in_reward=0.1": r"^model\.kl_in_reward=0\.1: .*while the policy never trains",
    f"{STAGE}.patience=null {STAGE}.min_delta=0.5": (
        r"^callbacks\.value_pretraining\.min_delta=0\.5: .* without a patience; set it to 0\.005"
    ),
}


@pytest.mark.parametrize("flags", IN_PRETRAINING)
def test_what_value_pretraining_does_not_read_is_warned_of(flags):
    (line,) = warned("fit", *PRETRAIN, *flags.split(), "--dry_run=true")
    assert re.search(IN_PRETRAINING[flags], line), line


def test_a_rise_without_patience_is_warned_of_in_a_file_too():
    stage = "{class_path: ValuePretraining, init_args: {patience: null, min_delta: 0.5}}"
    Path("stage.yaml").write_text(f"callbacks: {{mine: {stage}}}\n")
    (line,) = warned("fit", *PRETRAIN, "--config=stage.yaml", "--dry_run=true")
    assert line.startswith("callbacks.mine.min_delta=0.5: has no effect without a patience")


@pytest.mark.parametrize(
    "flags",
    [
        [f"{STAGE}.min_delta=0.5"],  # patience counts it
        [f"{STAGE}.patience=null"],
        ["--model.kl_in_reward=0"],
    ],
)
def test_what_value_pretraining_reads_is_not_warned_of(flags):
    assert warned("fit", *PRETRAIN, *flags, "--dry_run=true") == []


def test_a_penalty_counts_where_the_policy_is_that_of_a_checkpoint():
    """It may have left the reference before the critic is trained alone."""
    folder = fit(*tiny("ppo"), *SMALL, "--model.kl_in_reward=0.1")
    on = [f"--config={folder / 'config.yaml'}", "--ckpt_path=last", "--trainer.max_epochs=2"]
    more = ["--callbacks.stage=ValuePretraining", "--model.kl_in_reward=0.2"]
    said = warned("fit", *on, *more, f"--run_dir={folder}")
    assert [line for line in said if "kl_in_reward" in line] == []


def test_the_configuration_of_a_run_repeats_it_without_a_warning():
    """It holds every key with its default, which is nothing that the user set."""
    main(["cold_start", *COLD, "--run_dir=cold"])
    assert warned("cold_start", "--config=cold/config.yaml", "--run_dir=again") == []
    fit(*VAPO)
    assert warned("fit", "--config=run/config.yaml", "--run_dir=new", "--dry_run=true") == []


def test_a_section_that_is_null_in_a_file_is_refused(capsys):
    Path("null.yaml").write_text("trainer: null\n")
    line = fails(capsys, "fit", *GRPO, "--config=null.yaml")
    assert line == "error: trainer=null: cannot be null; leave it out for its defaults"


def test_a_network_of_a_checkpoint_that_nothing_uses_is_warned_of():
    last = fit(*tiny("ppo"), *SMALL) / "checkpoints" / "last.ckpt"
    (line,) = warned("validate", *GRPO, f"--ckpt_path={last}")
    assert line == "ckpt_path: its critic is not used by this configuration"
