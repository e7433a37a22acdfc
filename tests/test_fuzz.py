"""Configurations and responses that nobody thought of: one line, or a run; never a traceback.

The examples are the same on every machine, or others with a number in the variable FUZZ_SEED, which
a failure repeats.
"""

import inspect
import json
import os
import random
import shutil
import signal
import tempfile
import warnings
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, note, seed, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback, Trainer
from lightning.pytorch import callbacks as lightnings
from torch.optim import AdamW

from lit_reason import callbacks as packages
from lit_reason.__main__ import main
from lit_reason.callbacks.samples import COLUMNS
from lit_reason.jsonl import append_rows
from lit_reason.module import ReasonModule
from lit_reason.report.history import read_run
from lit_reason.report.page import write_page
from lit_reason.tasks import MathProblems, PlanCount
from tests.conftest import SMALL, fit, tiny
from tests.test_ablations import parser
from tests.test_behaviour_cases import parsed
from tests.test_cold_start import ARGS as COLD

SEED = os.environ.get("FUZZ_SEED")


def fuzz(examples, *strategies, always=()):
    """As `given`, with examples that are always among those drawn."""

    def decorate(test):
        @wraps(test)
        def noted(*args, **kwargs):
            note(f"FUZZ_SEED={SEED or ''}")
            return test(*args, **kwargs)

        decorated = given(*strategies)(noted)
        for values in always:
            decorated = example(*values)(decorated)
        decorated = settings(
            max_examples=examples,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=SEED is None,
            database=None,
        )(decorated)
        return decorated if SEED is None else seed(int(SEED))(decorated)

    return decorate


# --- configurations -------------------------------------------------------------------------------

# what would start processes, and what says where to read and write
ELSEWHERE = ("devices", "num_nodes", "strategy", "plugins", "default_root_dir", "profiler")
ELSEWHERE += ("config", "run_dir", "help", "class_path")
ODD = ["-1", "0", "1", "3", "1e9", "0.5", "nan", "-inf", "1e400", "null", "None", "[]", "{}", "''"]
ODD += ["true", "GAE", "nowhere.Thing", "[1,2]", "{a: 1}", "\u00e9", "a b", "--x", "=", "os.system"]
ODD += ["\udcff", "\u202e", "\ufeff", "9" * 5000]
# sizes of a run of one rollout
ONE = [*SMALL, "--data.rollouts_per_epoch=1", "--data.groups_per_rollout=2", "--data.group_size=2"]
ONE += ["--model.update.minibatch_size=4", "--data.val_task.limit=2"]
ALGORITHMS = ["ppo", "grpo", "dapo", "vc_ppo", "vapo"]


# values of the right type, of which some are refused all the same
FITTING = {
    bool: ["true", "false"],
    int: ["0", "1", "2", "3"],
    float: ["0", "0.5", "1", "2"],
    type(None): ["null", "1", "true"],
}


def leaves(tree, place=()):
    """The keys of a configuration that hold no further ones, and their values."""
    if not isinstance(tree, dict) or not tree:
        return {".".join(place): tree}
    return {k: v for key, value in tree.items() for k, v in leaves(value, (*place, key)).items()}


@cache
def known_keys():
    """Every key of `fit`, and those of the parts of all algorithms, with values that fit."""
    subcommand = parser()._subcommands_action._name_parser_map["fit"]
    values = {action.dest: "" for action in subcommand._actions}
    for name in ALGORITHMS:
        values |= leaves(parsed(*tiny(name)).as_dict())
    return {
        key: FITTING.get(type(value), ODD)
        for key, value in sorted(values.items())
        if key.split(".")[-1] not in ELSEWHERE
    }


@st.composite
def settings_of(draw, most):
    """Some keys, each with a value that fits or an odd one."""
    chosen = draw(st.lists(st.sampled_from(list(known_keys())), min_size=1, max_size=most))
    return {key: draw(st.sampled_from(known_keys()[key]) | st.sampled_from(ODD)) for key in chosen}


def overlay(folder, key, value):
    """The flag of a file that holds one setting."""
    *sections, name = key.split(".")
    path = Path(folder) / "overlay.yaml"
    opened = "".join(f"{section}: {{" for section in sections)
    text = f"{opened}{name}: {value}{'}' * len(sections)}\n"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return f"--config={path}"


TRAINED = []  # the rollout of the run under way


class Enough(BaseException):
    """Ends a run whose rollout has trained; it is reported as a mistake of the user's."""


@pytest.fixture
def one_rollout(monkeypatch):
    log = ReasonModule._log

    def ends(*args):
        log(*args)
        TRAINED.append(True)
        raise Enough

    monkeypatch.setattr(ReasonModule, "_log", ends)


@contextmanager
def within(seconds):
    """Ends what would never end."""

    def late(*_):
        raise AssertionError(f"more than {seconds} seconds")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def outcome(capsys, *args, subcommand="fit"):
    """The exit status of a run that ends with its first rollout; a refusal is one line."""
    os.environ.pop("PL_GLOBAL_SEED", None)
    TRAINED.clear()
    status = 0
    with tempfile.TemporaryDirectory() as folder, within(120):
        try:
            own = any(arg.startswith("--run_dir") for arg in args)
            main([subcommand, *args, *([] if own else [f"--run_dir={folder}/run"])])
        except Enough:
            pass
        except SystemExit as stop:
            status = 0 if TRAINED else stop.code or 0
    error = capsys.readouterr().err
    if status:
        assert status == 2, args
        assert len([x for x in error.splitlines() if x.startswith("error: ")]) == 1, (args, error)
        assert "Traceback" not in error, args
    return status


@pytest.mark.slow
@pytest.mark.usefixtures("one_rollout")
@pytest.mark.filterwarnings("ignore::lit_reason.errors.ConfigWarning")
@pytest.mark.parametrize("part", range(4))
def test_odd_values_of_every_key_are_one_line_or_a_run(capsys, part):
    ran, source = [], random.Random(SEED or part)
    each = [
        ({key: source.choice(values)}, source.random() < 0.5)
        for key, fitting in list(known_keys().items())[part::4]
        for values in (fitting, ODD)
    ]
    assert len(each) > 60

    @fuzz(10, settings_of(3), st.booleans(), always=each)
    def check(values, from_file):
        with tempfile.TemporaryDirectory() as folder:
            flags = [f"--{key}={value}" for key, value in values.items()]
            if from_file:
                flags[0] = overlay(folder, *next(iter(values.items())))
            ran.append(outcome(capsys, *tiny("vapo"), *ONE, *flags) == 0)

    check()
    assert sum(ran) > 5


def booleans():
    """Keys that take true and false, also where their default is null."""
    optional = {
        name
        for taker in (Trainer, AdamW)
        for name, value in inspect.signature(taker.__init__).parameters.items()
        if "bool" in str(value.annotation)
    }
    return [
        key
        for key, values in known_keys().items()
        if values == FITTING[bool]
        or (values == FITTING[type(None)] and key.rpartition(".")[2] in optional)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("one_rollout")
@pytest.mark.filterwarnings("ignore::lit_reason.errors.ConfigWarning")
def test_both_values_of_every_boolean_are_one_line_or_a_run(capsys):
    each = [f"--{key}={value}" for key in booleans() for value in ("true", "false")]
    assert len(each) > 30
    ran = [outcome(capsys, *tiny("vapo"), *ONE, flag) == 0 for flag in each]
    assert sum(ran) > len(each) / 2


ADDED = [f"lit_reason.callbacks.{name}" for name in packages.__all__] + [
    f"lightning.pytorch.callbacks.{name}"
    for name in lightnings.__all__
    if issubclass(getattr(lightnings, name), Callback)
]
KINDS = ("cold_start", "validate", "test", "predict", "dry_run", "continued", "fit")


# of a cold start
COLD_KEYS = [
    *(f"model.optimizer.{name}" for name in ("lr", "betas", "eps", "weight_decay", "amsgrad")),
    *(f"model.scheduler.{name}" for name in ("max_lr", "total_steps", "pct_start")),
    *(f"model.backbone.{name}" for name in ("alphabet", "hidden_size", "layers", "heads", "seed")),
    *(f"model.backbone.{name}" for name in ("context_length", "critic_init")),
    *(f"data.{name}" for name in ("batch_size", "batches_per_epoch", "curriculum", "seed")),
    *(f"data.task.{name}" for name in ("n_min", "n_max", "wrong_plan", "slip", "limit", "split")),
    *(f"trainer.{name}" for name in ("max_epochs", "max_steps", "min_steps", "min_epochs")),
    *(f"trainer.{name}" for name in ("gradient_clip_val", "gradient_clip_algorithm", "max_time")),
    *(f"trainer.{name}" for name in ("limit_train_batches", "overfit_batches", "precision")),
    *("model.optimizer", "model.scheduler", "model.backbone", "data.task", "callbacks", "threads"),
]


@st.composite
def commands(draw):
    """A kind of command, and flags: some settings, maybe with a callback."""
    kind = draw(st.sampled_from(KINDS))
    if kind == "cold_start":
        chosen = draw(st.lists(st.sampled_from(COLD_KEYS), max_size=2, unique=True))
        fitting = st.sampled_from(["null", "true", "0", "1", "2", "0.5", "-1"])
        values = {key: draw(fitting | st.sampled_from(ODD)) for key in chosen}
    else:
        values = draw(settings_of(2))
    flags = [f"--{key}={value}" for key, value in values.items()]
    if draw(st.booleans()):
        flags.append(f"--callbacks.added={draw(st.sampled_from(ADDED))}")
    return kind, flags


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of one rollout, with a checkpoint."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PL_GLOBAL_SEED", raising=False)
        patch.chdir(folder.parent)
        warmup = "--callbacks.value_warmup.rollouts=1"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return fit(*tiny("vapo"), *ONE, warmup, run_dir=str(folder))


def command(kind, finished, folder):
    """The subcommand and the arguments of a kind of command."""
    run = [*tiny("vapo"), *ONE]
    copy = Path(folder) / "copy"
    if kind == "cold_start":
        return kind, COLD
    if kind in ("fit", "dry_run"):
        return "fit", [*run, *(["--dry_run=true"] if kind == "dry_run" else [])]
    if kind != "continued":
        return kind, [*run, f"--ckpt_path={finished / 'checkpoints' / 'last.ckpt'}"]
    shutil.copytree(finished, copy)
    on = ["--ckpt_path=last", f"--run_dir={copy}", "--trainer.max_epochs=2"]
    return "fit", [f"--config={copy / 'config.yaml'}", *on]


@pytest.mark.slow
@pytest.mark.usefixtures("one_rollout")
@pytest.mark.filterwarnings("ignore::lit_reason.errors.ConfigWarning")
def test_odd_values_in_every_kind_of_command_are_one_line_or_a_run(capsys, finished):
    ran = []

    @fuzz(40, commands(), always=[((kind, []),) for kind in KINDS])
    def check(drawn):
        kind, flags = drawn
        with tempfile.TemporaryDirectory() as folder:
            subcommand, args = command(kind, finished, folder)
            if outcome(capsys, *args, *flags, subcommand=subcommand) == 0:
                ran.append(kind)

    check()
    assert set(ran) == set(KINDS)


VALID = st.fixed_dictionaries(
    {
        "data.group_size": st.sampled_from([2, 4]),
        "data.groups_per_rollout": st.sampled_from([2, 4]),
        "data.group_filter": st.sampled_from(["null", "DropUniform"]),
        "model.update.epochs": st.integers(1, 2),
        "model.update.minibatch_size": st.sampled_from([1, 2, 4]),
        "model.update.micro_batch_size": st.just(1),
        "model.update.max_grad_norm": st.sampled_from(["null", "0.1", "1e-9"]),
        "model.policy.clip_high": st.floats(0.01, 10),
        "model.policy.aggregation": st.sampled_from(["TokenMean", "SequenceMean", "PromptMean"]),
        "model.kl_in_reward": st.sampled_from([0, 0.1]),
        "model.actor_optimizer.lr": st.sampled_from([0.0, 1e-9, 1e-3, 1.0]),
        "data.sampling.temperature": st.sampled_from([0.01, 1, 100]),
        "data.sampling.max_new_tokens": st.integers(1, 20),
        "seed_everything": st.integers(0, 2**32 - 1),
    }
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::lit_reason.errors.ConfigWarning")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_valid_configuration_runs(name):
    @fuzz(3, VALID)
    def check(values):
        flags = [f"--{key}={value}" for key, value in values.items()]
        dapo = ["--data.rewards.soft_overlong=null"] if name == "dapo" else []
        os.environ.pop("PL_GLOBAL_SEED", None)
        with tempfile.TemporaryDirectory() as folder, within(120):
            last = ["--trainer.limit_val_batches=0", f"--run_dir={folder}/run"]
            main(["fit", *tiny(name), *ONE, *flags, *dapo, *last])
            rows = (Path(folder) / "run" / "metrics.csv").read_text().splitlines()
            assert len(rows) == 2

    check()


# --- responses ------------------------------------------------------------------------------------

# with halves of surrogate pairs, null bytes and marks that turn the direction of text
CHARACTERS = st.characters(exclude_categories=()) | st.sampled_from(
    "\ud800\udfff\0\u202e\u2066\u200f"
)
LONG = [("\ud800" * 10_000,), ("a\0\u202e" * 5_000,), ("=1" * 10_000,), ("{" * 10_001,)]
MANY = pytest.param(1000, marks=pytest.mark.slow)


def texts(size):
    return st.text(CHARACTERS, max_size=size)


@pytest.mark.parametrize("examples", [60, MANY])
def test_any_text_passes_the_tokenizer(backbone, examples):
    tokenizer = backbone.tokenizer

    @fuzz(examples, st.text(max_size=40), always=[x for x in LONG if "\ud800" not in x[0]])
    def check(text):
        ids = tokenizer(text)["input_ids"]
        assert isinstance(tokenizer.decode(ids), str)
        assert all(0 <= i < len(tokenizer) for i in ids)

    check()


@pytest.mark.parametrize("examples", [60, MANY])
def test_any_text_is_judged(examples):
    task = PlanCount(n_max=3)

    @fuzz(examples, texts(40), always=LONG)
    def check(text):
        (verdict,) = task.judge([task[0]], [text])
        assert verdict.correct == (verdict.answer == task[0].answer)

    check()


@pytest.mark.parametrize("examples", [60, MANY])
def test_any_text_is_compared_with_a_gold_answer(examples):
    """In one batch, because the processes that compare take a while to start."""
    pytest.importorskip("math_verify")
    responses: list[str] = []

    @fuzz(examples, texts(20), always=LONG)
    def collect(text):
        responses.extend((text, f"\\boxed{{{text}}}"))

    collect()
    Path("rows.jsonl").write_text(json.dumps({"problem": "1+1?", "answer": "2"}) + "\n")
    task = MathProblems("rows.jsonl")
    verdicts = task.judge([task[0]] * len(responses), responses)
    right = [text for text, verdict in zip(responses, verdicts, strict=True) if verdict.correct]
    assert all("2" in text or any(c.isnumeric() for c in text) for text in right)


@pytest.mark.parametrize("examples", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_any_text_comes_back_from_the_sample_table_and_stands_in_the_report(examples):
    @fuzz(examples, texts(40), always=LONG)
    def check(text):
        row = dict.fromkeys(COLUMNS, 0) | {"prompt": text, "response": text, "reward": 1.0}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "metrics.csv").write_text("step,rollout,reward\n0,1,0.5\n")
            append_rows(folder / "samples.jsonl", [row])
            run = read_run(folder)
            assert [sample["response"] for sample in run.samples] == [text]
            (folder / "report.png").write_bytes(b"")
            write_page([run], folder / "report.png", folder / "report.html")
            page = (folder / "report.html").read_text(encoding="utf-8")
        assert page.count("<script") == 0
        assert page.count("<article") == 1

    check()
