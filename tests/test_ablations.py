"""The sweep files against the real parser, and the local runner."""

import itertools
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from lit_reason.cli import ReasonCLI, ReasonParser, RecordConfig
from lit_reason.data import RolloutDataModule
from lit_reason.errors import ConfigError
from lit_reason.module import ReasonModule
from lit_reason.report.sweep import read_sweep, short_keys

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "run_ablation.py"
ABLATIONS = ROOT / "ablations"
SWEEPS = {
    str(path.relative_to(ABLATIONS).with_suffix("")): path
    for folder in (ABLATIONS, ABLATIONS / "tuning")
    for path in sorted(folder.glob("*.yaml"))
}
POINTS = [(name, p) for name, path in SWEEPS.items() for p in read_sweep(path).points()]


# --- the sweep files ------------------------------------------------------------------------------


class ParseOnly(ReasonCLI):
    """Parses the command line and builds nothing."""

    def before_instantiate_classes(self):
        pass

    def instantiate_classes(self):
        pass

    def _run_subcommand(self, subcommand):
        pass


@cache
def parser():
    args = ["fit", "--config", str(ROOT / "configs" / "vapo.yaml")]
    ReasonParser.arguments = args  # of the last command of this process otherwise
    cli = ParseOnly(
        ReasonModule,
        RolloutDataModule,
        args=args,
        seed_everything_default=0,
        auto_configure_optimizers=False,
        save_config_callback=RecordConfig,
        parser_class=ReasonParser,
    )
    return cli.parser


@cache
def parsed(sweep, name, scale=None):
    """The configuration of one point, from the arguments that follow `-m lit_reason`."""
    sweep = read_sweep(SWEEPS[sweep])
    point = next(p for p in sweep.points() if p.name == name)
    overlays = [f"configs/scale/{scale}.yaml"] if scale else []
    command = sweep.arguments(point, 3, overlays)
    return parser().parse_args(command[command.index("lit_reason") + 1 :]).fit


@pytest.mark.parametrize(("sweep", "point"), POINTS, ids=[f"{s}-{p.name}" for s, p in POINTS])
def test_every_point_parses_and_sets_what_it_sweeps(sweep, point, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = parsed(sweep, point.name)
    assert config.seed_everything == 3
    for key, value in point.values.items():
        if key == "config":
            continue
        found = config
        for part in key.split("."):
            found = found[part] if part in found else found["init_args"][part]
        assert found == (None if value == "null" else value)


OVERLAID = [(name, scale) for name in SWEEPS for scale in ("miniature", "qwen2.5_7b")]


@pytest.mark.parametrize(("name", "scale"), OVERLAID)
def test_every_sweep_parses_at_other_scales(name, scale, monkeypatch):
    monkeypatch.chdir(ROOT)
    point = read_sweep(SWEEPS[name]).points()[-1]
    config = parsed(name, point.name, scale)
    expected = {"miniature": "ablations/miniature", "qwen2.5_7b": "Qwen/Qwen2.5-7B"}
    assert config.model.backbone.init_args.path == expected[scale]


@pytest.mark.parametrize("path", SWEEPS.values(), ids=SWEEPS)
def test_an_agent_can_run_every_sweep(path):
    content = yaml.safe_load(path.read_text())
    assert content["name"] == path.stem
    # the agent reads `program` whatever `command` says
    assert (ROOT / content["program"]).is_file()
    assert content["command"][-1] == "${args}"
    assert "--trainer.logger=WandbLogger" in content["command"]
    assert content["metric"] == {"name": "val/accuracy", "goal": "maximize"}
    assert all("parameters" not in entry for entry in content["parameters"].values())


@pytest.mark.parametrize(("name", "point"), POINTS, ids=[f"{s}-{p.name}" for s, p in POINTS])
def test_the_arguments_are_those_of_a_wandb_agent(name, point):
    utils = pytest.importorskip("wandb.sdk.launch.sweeps.utils")
    sweep = read_sweep(SWEEPS[name])
    args = {k: {"value": v} for k, v in {**point.values, "seed_everything": 3}.items()}
    ours = sweep.arguments(point, 3)
    agents = utils.create_sweep_command_args({"args": args})["args"]
    assert ours[-len(agents) :] == agents


@pytest.mark.parametrize("folder", ["vapo_remove_one", "dapo_ladder", "vc_ppo_pretrain_steps"])
def test_every_fragment_is_used(folder):
    used = {p.values["config"] for _, p in POINTS if "config" in p.values}
    found = {str(p.relative_to(ROOT)) for p in (ROOT / "ablations" / folder).glob("*.yaml")}
    scales = [p.stem for p in (ROOT / "configs" / "scale").glob("*.yaml")]
    variants = {str(Path(p).with_suffix(f".{scale}.yaml")) for p in used for scale in scales}
    assert {path for path in used if f"/{folder}/" in path} == found - variants


def facts(config):
    """What the ladders change, in the order of the papers' tables."""
    policy, advantage = config.model.policy.init_args, config.model.advantage.init_args
    terms = config.model.terms or {}
    callbacks = [name for name, callback in config.callbacks.items() if callback]
    critic_init = config.model.backbone.init_args.get("critic_init", "policy")
    return {
        "callbacks": [name for name in callbacks if name != "value_warmup"],
        "pretrained": "value_warmup" in callbacks or critic_init != "policy",
        "lam_critic": advantage.get("lam_critic"),
        "alpha": advantage.get("alpha"),
        "clip_high": policy.clip_high,
        "aggregation": policy.aggregation.class_path.split(".")[-1],
        "terms": [name for name, term in terms.items() if term],
        "rewards": list(config.data.rewards),
        "filter": config.data.group_filter is not None,
        "responses": config.data.groups_per_rollout * config.data.group_size,
        "group_size": config.data.group_size,
    }


@pytest.mark.parametrize("scale", [None, "tiny", "miniature"])
def test_each_row_of_vapo_remove_one_differs_in_its_part_only(scale, monkeypatch):
    monkeypatch.chdir(ROOT)
    full = facts(parsed("vapo_remove_one", "vapo", scale))
    removed = {
        "no_value_pretraining": {"pretrained": False},
        "no_decoupled_gae": {"lam_critic": 0.95},
        "no_length_adaptive_gae": {"alpha": None},
        "no_clip_higher": {"clip_high": 0.2},
        "no_token_level_loss": {"aggregation": "SequenceMean"},
        "no_positive_lm": {"terms": []},
        "no_group_sampling": {"group_size": 1},
    }
    every = {key: value for change in removed.values() for key, value in change.items()}
    assert full["pretrained"]
    assert full["callbacks"] == ["entropy", "samples"]
    names = [p.name for s, p in POINTS if s == "vapo_remove_one"]
    assert names == ["ppo", *removed, "vapo"]
    for name, change in {"ppo": every, **removed}.items():
        row = facts(parsed("vapo_remove_one", name, scale))
        assert {k: v for k, v in row.items() if v != full[k]} == change


def test_every_number_of_pretraining_steps_leaves_the_policy_as_many(monkeypatch):
    monkeypatch.chdir(ROOT)
    for steps in (50, 100, 150):
        config = parsed("vc_ppo_pretrain_steps", f"steps_{steps}")
        assert config.callbacks["value_warmup"].init_args.rollouts == steps
        assert config.trainer.max_epochs * config.data.rollouts_per_epoch == steps + 300
        small = parsed("vc_ppo_pretrain_steps", f"steps_{steps}", "miniature")
        assert "value_warmup" not in small.callbacks
        assert small.trainer.max_epochs * small.data.rollouts_per_epoch == 40
        critic = ROOT / small.model.backbone.init_args.critic_init
        assert critic.name == {50: "critic_40", 100: "critic_80", 150: "critic"}[steps]
        assert (critic / "critic.safetensors").is_file()


def test_each_row_of_dapo_ladder_adds_one_part(monkeypatch):
    monkeypatch.chdir(ROOT)
    rows = [facts(parsed("dapo_ladder", p.name)) for s, p in POINTS if s == "dapo_ladder"]
    changes = [
        {k for k in after if after[k] != before[k]} for before, after in itertools.pairwise(rows)
    ]
    assert changes == [
        {"callbacks"},
        {"clip_high"},
        {"callbacks", "rewards"},
        {"aggregation"},
        {"filter"},
    ]


# --- reading sweep files --------------------------------------------------------------------------


def write_sweep(path, **changes):
    content = {
        "method": "grid",
        "command": ["${interpreter}", str(path.with_name("train.py")), "${args}"],
        "parameters": {"a.x": {"values": [1, 2]}, "b": {"values": ["u", "v"]}},
        **changes,
    }
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_grid_is_expanded_in_the_order_of_the_file(tmp_path):
    sweep = read_sweep(write_sweep(tmp_path / "s.yaml"))
    assert [p.name for p in sweep.points()] == ["x=1_b=u", "x=1_b=v", "x=2_b=u", "x=2_b=v"]
    assert sweep.seeds == [0]


def test_overlays_come_before_the_swept_keys_and_extra_arguments_after(tmp_path):
    sweep = read_sweep(write_sweep(tmp_path / "s.yaml"))
    command = sweep.arguments(sweep.points()[1], 7, ["o.yaml"], ["--z=1"])
    swept = ["--a.x=1", "--b=v", "--seed_everything=7"]
    assert command == [
        sys.executable,
        str(tmp_path / "train.py"),
        "--config=o.yaml",
        *swept,
        "--z=1",
    ]


def test_keys_keep_their_path_only_where_they_need_it():
    assert short_keys(["a.lr", "b.lr", "c.d"]) == {"a.lr": "a.lr", "b.lr": "b.lr", "c.d": "d"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "random"}, "only grid"),
        ({"command": ["python"]}, r"needs \$\{args\}"),
        ({"command": ["${args}", "${args_json}"]}, "may use"),
        ({"parameters": {"a": {"min": 0, "max": 1}}}, "parameters.a"),
        ({"parameters": {"a": {"parameters": {"b": {"value": 1}}}}}, "parameters.a"),
        ({"parameters": {"a": {"value": None}}}, '"null" in quotes'),
        ({"parameters": None}, "no `parameters`"),
        ({"parameters": {"seed_everything": {"values": ["one"]}}}, "seed.*needs whole numbers"),
        ({"parameters": {"seed_everything": {"values": [1, 1]}}}, "seed_everything 1 1: .*twice"),
        ({"parameters": {"seed_everything": {"values": [-1]}}}, "seed_everything -1: .*must lie"),
        ({"parameters": {"a": {"values": [1, 1]}}}, "two points are called a=1"),
        ({"parameters": {"config": {"values": ["a/x.yaml", "b/x.yaml"]}}}, "are called x"),
        ({"metric": "val/accuracy"}, "metric=val/accuracy; needs a name"),
    ],
)
def test_sweeps_that_cannot_run_locally_are_refused(tmp_path, changes, message):
    path = write_sweep(tmp_path / "s.yaml", **changes)
    with pytest.raises(ConfigError, match=message):
        read_sweep(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: [", "not valid YAML in line 1"),
        ("method: {{GRID}}", "a key is a list or a mapping"),
        ("[1, 2]", "not a sweep file"),
    ],
)
def test_files_that_are_no_sweeps_are_one_line(tmp_path, text, message):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_sweep(path)
