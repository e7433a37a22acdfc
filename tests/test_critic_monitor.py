"""Diagnostics of a critic: against loops, over ranks, in runs, and on a page."""

import json
import math
import re
import runpy
import statistics
import threading
from dataclasses import replace

import pytest
import torch

from lit_reason.advantages import GAE
from lit_reason.batch import Experience
from lit_reason.callbacks import CriticMonitor
from lit_reason.diagnostics import Grid, diagnose
from lit_reason.errors import ConfigError
from lit_reason.functional import explained_variance, gae, outcome_to_tokens
from lit_reason.module import ReasonModule
from lit_reason.objectives import ClippedSurrogate, ValueLoss
from tests.conftest import ROOT, SMALL, config, demonstrations, fails, fit, ready, tiny
from tests.steps import shift_weights
from tests.test_configs import metrics

QUICK = [config("quickstart.yaml"), *SMALL, "--callbacks.value_warmup.rollouts=1"]
GRID = Grid(positions=2, points=6, low=-1.0, high=2.0, bins=5, length_bins=3)
GAMMA = 0.97


@pytest.fixture(scope="module")
def rollout(backbone):
    """16 responses: some unscored, some for the critic alone, some cut off, some masked in part."""
    rollout = demonstrations(backbone)
    generator = torch.Generator().manual_seed(1)
    rollout.rewards = torch.randn(16, generator=generator)
    rollout.critic_only[12:] = True
    rollout.scored[[2, 13]] = False
    rollout.truncated[[1, 5]] = True
    trains = rollout.response_mask & rollout.scored[:, None]
    rollout.value_mask, rollout.loss_mask = trains.clone(), trains & ~rollout.critic_only[:, None]
    rollout.value_mask[3, :4] = False  # one token of a row is enough
    rollout.loss_mask[4, ::2] = False
    return rollout


def experience_of(rollout, lam=True, after=True):
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(rollout.response_mask.shape, generator=generator) * rollout.response_mask
    lams = 0.6 + 0.4 * torch.rand(len(rollout), generator=generator)
    return Experience(
        rollout=rollout,
        advantages=torch.randn(values.shape, generator=generator),
        values=values,
        rewards=outcome_to_tokens(rollout.rewards, rollout.response_mask) + 0.01 * values.abs(),
        lam=lams if lam else None,
        after=torch.randn(len(rollout), generator=generator) * rollout.truncated if after else None,
    )


def tokens_of(experience, gamma=GAMMA):
    """Every sampled token by loops: what is known of it, in float64."""
    tokens, rollout = [], experience.rollout
    for i in range(len(rollout)):
        length = int(rollout.lengths[i])
        rewards = experience.rewards[i, :length].tolist()
        end = 0.0 if experience.after is None else float(experience.after[i])
        values = [*experience.values[i, :length].tolist(), end]
        for t in range(length):
            future = [gamma ** (k - t) * rewards[k] for k in range(t, length)]
            token = {"row": i, "start": t == 0, "place": t / length, "length": length}
            token["right"] = bool(rollout.correct[i])
            token["seen"] = bool(rollout.value_mask[i].any())
            token["acts"] = bool(rollout.loss_mask[i, t])
            token["V"], token["A"] = values[t], float(experience.advantages[i, t])
            token["R"] = math.fsum(future) + gamma ** (length - t) * end
            token["td"] = rewards[t] + gamma * values[t + 1] - values[t]
            if experience.lam is not None:
                decay = gamma * float(experience.lam[i])
                parts = [decay ** (k - t) * rewards[k] for k in range(t, length)]
                of_critic = [
                    decay ** (k - t) * (gamma * values[k + 1] - values[k]) for k in range(t, length)
                ]
                token["from_rewards"], token["from_values"] = math.fsum(parts), math.fsum(of_critic)
            tokens.append(token)
    return tokens


def explained(tokens):
    total = statistics.pvariance([t["R"] for t in tokens])
    return 1 - statistics.pvariance([t["R"] - t["V"] for t in tokens]) / total


def in_part(tokens, part, parts):
    return [t for t in tokens if math.floor(t["place"] * parts + 1e-9) == part]


def covering(tokens, point, points):
    """Tokens that cover a point, each as often as `points` times its share there."""
    found = []
    for t in tokens:
        i, length = round(t["place"] * t["length"]), t["length"]
        start, end = max(points * i, length * point), min(points * (i + 1), length * (point + 1))
        found += [t] * max(end - start, 0)
    return found


def close(got, want, tolerance=1e-5):
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        assert (x is None) == (y is None)
        assert x is None or x == pytest.approx(y, abs=tolerance, rel=tolerance)


def mean(values):
    values = list(values)
    return statistics.fmean(values) if values else None


@pytest.mark.parametrize("after", [True, False])
def test_scalars_equal_the_loops(rollout, after):
    experience = experience_of(rollout, after=after)
    got = diagnose(experience, GAMMA, int(rollout.lengths.max()), GRID).scalars
    tokens = tokens_of(experience)
    seen, acting = [t for t in tokens if t["seen"]], [t for t in tokens if t["acts"]]
    assert 0 < len(acting) < len(seen) < len(tokens)
    size = {k: math.fsum(abs(t[k]) for t in acting) for k in ("from_rewards", "from_values")}
    horizons = {
        t["row"]: min(t["length"], 1 / (1 - GAMMA * float(experience.lam[t["row"]])))
        for t in acting
    }
    want = {
        "value/explained_variance_1": explained(in_part(seen, 0, 2)),
        "value/explained_variance_2": explained(in_part(seen, 1, 2)),
        "value/bias": mean(t["V"] - t["R"] for t in seen if t["start"]),
        "value/td_variance": statistics.pvariance([t["td"] for t in seen]),
        "advantage/reward_share": size["from_rewards"] / sum(size.values()),
        "gae/horizon": mean(horizons.values()),
    }
    assert got == pytest.approx(want, rel=1e-5)


def test_curves_and_bins_equal_the_loops(rollout):
    experience = experience_of(rollout)
    longest = int(rollout.lengths.max())
    got = diagnose(experience, GAMMA, longest, GRID).curves
    tokens = tokens_of(experience)
    for part, counted, column in (("value", "seen", "V"), ("advantage", "acts", "A")):
        for name, kinds in (("correct", [True]), ("wrong", [False]), ("all", [True, False])):
            own = [t for t in tokens if t[counted] and t["right"] in kinds]
            want = [mean(t[column] for t in covering(own, i, 6)) for i in range(6)]
            close(got[part][name], want)
    seen = [t for t in tokens if t["seen"]]
    close(got["explained_variance"], [explained(covering(seen, i, 6)) for i in range(6)])
    bins = got["calibration"]
    close(bins["edges"], [-1, -0.4, 0.2, 0.8, 1.4, 2])
    places = [min(max(math.floor((t["V"] + 1) / 0.6), 0), 4) for t in seen]
    inside = [[t for t, p in zip(seen, places, strict=True) if p == i] for i in range(5)]
    assert bins["count"] == [len(x) for x in inside]
    close(bins["predicted"], [mean(t["V"] for t in x) for x in inside])
    close(bins["realised"], [mean(t["R"] for t in x) for x in inside])
    rows = {t["row"]: t["length"] for t in tokens if t["acts"]}
    by_length = [[r for r, n in rows.items() if min(n * 3 // longest, 2) == i] for i in range(3)]
    assert got["lambda"]["count"] == [len(x) for x in by_length]
    close(got["lambda"]["mean"], [mean(float(experience.lam[r]) for r in x) for x in by_length])
    close(got["lambda"]["edges"], [longest * i / 3 for i in range(4)])


@pytest.mark.parametrize("points", [1, 6, 20, 97])
def test_every_response_counts_at_every_point(rollout, points):
    """Else neighbouring points would be means over different responses."""
    experience = experience_of(rollout)
    each = torch.arange(16.0)[:, None].expand_as(experience.values)
    experience.values = experience.advantages = each
    rollout = replace(rollout, loss_mask=rollout.response_mask, value_mask=rollout.response_mask)
    experience.rollout = rollout
    curves = diagnose(experience, GAMMA, 99, replace(GRID, points=points)).curves
    level = float((each * rollout.response_mask).sum() / rollout.response_mask.sum())
    close(curves["value"]["all"], [level] * points)
    close(curves["advantage"]["all"], [level] * points)


def test_parts_together_are_the_explained_variance_that_is_logged(rollout):
    experience = experience_of(rollout, after=False)
    one = replace(GRID, positions=1)
    got = diagnose(experience, 1.0, 99, one).scalars["value/explained_variance_1"]
    seen = rollout.response_mask & rollout.value_mask.any(1, keepdim=True)
    returns = experience.rewards.flip(1).cumsum(1).flip(1)
    assert got == pytest.approx(float(explained_variance(experience.values, returns, seen)))


def test_returns_far_from_zero_lose_no_digits(rollout):
    """E[x^2] - E[x]^2 in float32 would be noise here."""
    near, far = experience_of(rollout, after=False), experience_of(rollout, after=False)
    near.values = near.values.round(decimals=2)
    last = outcome_to_tokens(torch.ones(16), rollout.response_mask)
    near.rewards = last * rollout.rewards.round(decimals=1)[:, None]
    far.rewards, far.values = near.rewards + 4096 * last, near.values + 4096 * rollout.response_mask
    a, b = (diagnose(e, 1.0, 99, GRID).scalars for e in (near, far))
    for key in ("value/explained_variance_1", "value/explained_variance_2", "value/bias"):
        assert a[key] == pytest.approx(b[key], abs=2e-3), key


def test_a_warm_up_on_last_tokens_is_judged_at_all(rollout):
    whole = diagnose(experience_of(rollout), GAMMA, 99, GRID)
    narrow = replace(rollout, value_mask=rollout.value_mask.clone())
    narrow.value_mask &= torch.rand(narrow.value_mask.shape) < 0.0
    narrow.value_mask[rollout.value_mask.any(1), 0] = True
    assert diagnose(experience_of(narrow), GAMMA, 99, GRID) == whole


def test_an_estimator_without_lambda_has_no_horizon(rollout):
    found = diagnose(experience_of(rollout, lam=False), GAMMA, 99, GRID)
    assert not found.scalars.keys() & {"gae/horizon", "advantage/reward_share"}
    assert found.curves["lambda"]["mean"] == [None, None, None]


def test_nothing_to_see_is_no_error(rollout):
    empty = replace(
        rollout, value_mask=rollout.value_mask & False, loss_mask=rollout.loss_mask & False
    )
    found = diagnose(experience_of(empty), GAMMA, 99, GRID)
    assert found.scalars == {}
    assert set(found.curves["value"]["all"]) == {None}


def test_responses_without_tokens_are_no_error(rollout):
    nothing = torch.zeros_like(rollout.response_mask)
    masks = {"response_mask": nothing, "value_mask": nothing, "loss_mask": nothing}
    found = diagnose(experience_of(replace(rollout, **masks)), GAMMA, 0, GRID)
    assert found.scalars == {}


def test_a_critic_that_has_diverged_leaves_a_gap_in_valid_json(rollout):
    experience = experience_of(rollout)
    experience.values[0, 0] = math.nan
    curves = diagnose(experience, GAMMA, 99, GRID).curves
    text = json.dumps(curves, allow_nan=False)
    assert curves["value"]["all"][0] is None
    assert curves["value"]["all"][1] is not None
    assert [x is None for x in curves["explained_variance"]] == [True] + [False] * 5
    assert json.loads(text) == curves


# --- ranks ----------------------------------------------------------------------------------------


def together(function, shards):
    """Calls a function for every shard at once, with a `reduce` that sums over them."""
    barrier, sent, results = threading.Barrier(len(shards), timeout=60), {}, {}

    def reduce(rank):
        def total(x):
            sent[rank] = x.clone()
            barrier.wait()
            summed = sum(sent[i] for i in range(len(shards)))
            barrier.wait()
            return summed

        return total

    def work(rank):
        results[rank] = function(shards[rank], reduce(rank))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(shards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[i] for i in range(len(shards))]


@pytest.mark.parametrize("cut", [8, 3, 12])
def test_ranks_say_together_what_one_process_says(rollout, cut):
    """Also where one of them holds only rows of the critic's."""
    experience = experience_of(rollout)
    longest = int(rollout.lengths.max())
    shards = [experience[torch.arange(cut)], experience[torch.arange(cut, 16)]]
    first, second = together(lambda e, reduce: diagnose(e, GAMMA, longest, GRID, reduce), shards)
    assert first == second
    whole = diagnose(experience, GAMMA, longest, GRID)
    assert first.scalars == pytest.approx(whole.scalars, rel=1e-6)
    for part, kind in (("value", "all"), ("advantage", "wrong"), ("calibration", "realised")):
        close(first.curves[part][kind], whole.curves[part][kind])
    assert first.curves["calibration"]["count"] == whole.curves["calibration"]["count"]


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return fit(*QUICK, run_dir=str(tmp_path_factory.mktemp("critic") / "run"))


def test_a_run_logs_and_writes_both_phases(run_dir):
    rows = [json.loads(line) for line in (run_dir / "critic.jsonl").read_text().splitlines()]
    assert [(row["rollout"], row["phase"]) for row in rows] == [(0, "value_warmup"), (1, "joint")]
    logged = [row for row in metrics(run_dir) if "reward" in row]
    for row, kept in zip(logged, rows, strict=True):
        assert all(f"value/explained_variance_{i}" in row for i in (1, 2, 3, 4))
        assert sum(kept["calibration"]["count"]) == round(16 * row["response_length"])
        assert sum(kept["lambda"]["count"]) == 16
        assert len(kept["value"]["all"]) == 20
    assert logged[0]["advantage/reward_share"] == 1  # a critic that starts at 0 says nothing
    assert logged[0]["value/bias"] == pytest.approx(-logged[0]["reward"])
    assert 0 < logged[1]["advantage/reward_share"] < 1
    assert logged[1]["gae/horizon"] <= logged[1]["response_length_max"] / 2 + 1e-4  # alpha = 0.5


def test_the_experience_keeps_what_the_estimator_was_given(backbone):
    estimator = GAE(gamma=0.9, lam_policy=0.8, truncation="bootstrap")
    module = ready(ReasonModule(backbone, estimator, ClippedSurrogate(), ValueLoss()))
    shift_weights(module)
    rollout = demonstrations(backbone)
    rollout.truncated[:5] = True
    kept, _ = module.annotate(rollout, [torch.arange(16)])
    again = gae(kept.rewards, kept.values, rollout.response_mask, 0.9, kept.lam, kept.after)
    assert torch.equal(again, kept.advantages)
    assert (kept.after[:5] != 0).all()
    assert (kept.after[5:] == 0).all()


def test_an_algorithm_without_a_critic_is_refused(capsys):
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, "--callbacks.mine=CriticMonitor")
    assert "callbacks: CriticMonitor has no critic to watch" in line
    assert "callbacks.critic" not in line


@pytest.mark.parametrize(
    "flags",
    [
        "--callbacks.mine=CriticMonitor --callbacks.mine.positions=0",
        "--callbacks.mine=EntropyMonitor --callbacks.mine.positions=-1",
        "--callbacks.mine=SampleTable --callbacks.mine.rows=0",
        "--callbacks.mine=ValueWarmup --callbacks.mine.rollouts=0",
        "--callbacks.mine=ValuePretraining --callbacks.mine.patience=0",
    ],
)
def test_a_setting_of_a_callback_is_named_as_it_was_given(flags, capsys):
    line = fails(capsys, "fit", *tiny("grpo"), *SMALL, *flags.split())
    assert line.startswith("error: callbacks.mine."), line


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"positions": 0}, "CriticMonitor.positions=0: must be at least 1"),
        ({"low": 1.0}, "low=1.0, high=1.0: low must be below high"),
        ({"high": math.inf}, "low must be below high, both finite"),
        ({"bins": 0}, "bins=0"),
    ],
)
def test_a_grid_that_measures_nothing_is_refused(given, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        CriticMonitor(**given)


# --- the page -------------------------------------------------------------------------------------


def report(*args):
    script = str(ROOT / "scripts" / "critic_report.py")
    runpy.run_path(script)["main"]([str(a) for a in args])


def test_the_report_of_a_run_is_one_page_and_a_picture(run_dir, tmp_path, capsys):
    report(run_dir, "--out", tmp_path / "out")
    written = [tmp_path / "out" / name for name in ("critic.png", "critic.html")]
    assert capsys.readouterr().out.split() == [str(path) for path in written]
    assert written[0].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    page = written[1].read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert "value/td_variance" in page
    assert "val/value/explained_variance" in page
    assert page.count("<table>") == 3


def test_names_and_phases_are_escaped(run_dir, tmp_path):
    folder = tmp_path / "<b>&$x"
    folder.mkdir()
    (folder / "metrics.csv").write_text((run_dir / "metrics.csv").read_text())
    row = json.loads((run_dir / "critic.jsonl").read_text().splitlines()[0])
    (folder / "critic.jsonl").write_text(json.dumps({**row, "phase": "<i>joint"}) + "\n")
    report(folder)
    page = (folder / "critic.html").read_text(encoding="utf-8")
    assert "<title>Critic of &lt;b&gt;&amp;$x</title>" in page
    assert "&lt;i&gt;joint" in page
    assert "<i>" not in page


BROKEN = {
    "empty": (None, None, "not a run folder, it holds no metrics.csv"),
    "no curves": ("", None, "holds no critic.jsonl; run with --callbacks.critic=CriticMonitor"),
    "no row": ("", "", "holds no rollout yet"),
    "foreign": ("", '{"rollout": 1}\n', "a row lacks one of its parts"),
    "not JSON": ("", "curves\n", "is not what CriticMonitor writes"),
}


@pytest.mark.parametrize("case", list(BROKEN))
def test_a_folder_without_a_run_is_refused_in_one_line(tmp_path, capsys, case):
    run, curves, says = BROKEN[case]
    if run is not None:
        (tmp_path / "metrics.csv").write_text("rollout,reward\n1,0.5\n")
    if curves is not None:
        (tmp_path / "critic.jsonl").write_text(curves)
    with pytest.raises(SystemExit) as stop:
        report(tmp_path)
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert says in printed
