"""Tables, pictures and pages of a comparison; the committed results; runs of W&B."""

import csv
import json
import math
import re
import runpy
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from lit_reason.errors import ConfigError
from lit_reason.report.comparison import band, html_table, look, write_comparison
from lit_reason.report.curves import Curve, common_rollouts, curve_of, read_curves, write_curves
from lit_reason.report.history import Run, Series
from lit_reason.report.provenance import config_hash, mixed
from lit_reason.report.sweep import read_sweep, with_own
from lit_reason.report.table import Paper, markdown, read_paper, tabulate
from lit_reason.report.wandb_files import BLOCK, read_offline, records
from tests.conftest import full_disk

ROOT = Path(__file__).parents[1]
COMPARE = ROOT / "scripts" / "compare_runs.py"
METRIC = "val/accuracy"


def curve(point, seed, *values, warmup=0):
    """Measured every ten rollouts."""
    series = Series([10.0 * i for i in range(len(values))], list(values))
    return Curve(point, seed, warmup, {METRIC: series})


# --- curves ---------------------------------------------------------------------------------------


def test_rollouts_of_a_warm_up_do_not_count():
    own = curve("a", 0, 0.1, 0.12, 0.4, 0.8, warmup=10)
    assert own.get(METRIC) == Series([0.0, 10.0, 20.0], [0.12, 0.4, 0.8])
    assert own.policy_rollouts == 20
    assert common_rollouts([own, curve("b", 0, 0.1, 0.2)]) == 10
    assert common_rollouts([]) == 0


def test_ends_that_a_run_only_printed_join_its_curve():
    run = Run("r", {METRIC: Series([5.0], [0.3]), "rollout": Series([1.0, 7.0], [1.0, 7.0])}, [])
    assert curve_of(run, METRIC, "a", 0, 0.1, 0.6).get(METRIC) == Series(
        [0.0, 5.0, 7.0], [0.1, 0.3, 0.6]
    )


def test_curves_are_the_same_after_writing_and_reading(tmp_path):
    both = [curve("a", 0, 0.1, 0.5), curve("a", 1, 0.2, 0.23046875, 1 / 3, warmup=10)]
    both[0].series["entropy"] = Series([10.0], [0.125])
    write_curves(both, METRIC, tmp_path / "c.csv")
    assert read_curves(tmp_path / "c.csv") == both
    with pytest.raises(ConfigError, match="no such file"):
        read_curves(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"point,seed,status\na,0,finished\n", "has no column warmup; give a curves.csv"),
        (b"# Title\n", "has no column point"),
        (b"", "has no column point"),
        (b"\x89PNG\r\n", "is not as it was written"),
        (b"point,seed,warmup,rollout,m\na,0,0,1,0.5\na,0\n", "not as it was written .line 3"),
        (b"point,seed,warmup,rollout,m\na,0,0,1,half\n", "not as it was written .line 2"),
    ],
)
def test_other_files_than_curves_are_one_line(tmp_path, capsys, content, message):
    path = tmp_path / "c.csv"
    path.write_bytes(content)
    with pytest.raises(SystemExit) as stop:
        compare(f"{path}#a")
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.count("\n") == 1


def test_only_what_some_run_has_measured_is_a_column(tmp_path):
    both = [curve("a", 0, 0.1, 0.5), curve("b", 0, 0.1, 0.5)]
    for i, key in enumerate(("groups/rounds", "truncated", "reward/soft_overlong", "other")):
        both[i % 2].series[key] = Series([10.0], [float(i)])
    write_curves(both, METRIC, tmp_path / "c.csv")
    head, *rows = (tmp_path / "c.csv").read_text().splitlines()
    kept = "truncated,reward/soft_overlong,groups/rounds"
    assert head == f"point,seed,warmup,rollout,{METRIC},{kept}"
    assert rows[1:3] == ["a,0,0,10,0.5,,2,0", "b,0,0,0,0.1,,,"]
    write_curves(both, "truncated", tmp_path / "c.csv")
    head = (tmp_path / "c.csv").read_text().splitlines()[0].split(",")
    assert head.count("truncated") == 1


def test_what_a_run_measures_beside_the_metric_is_kept():
    keys = ("gae/lambda_min", "val/value/explained_variance", "policy/clip_fraction_high")
    series = {key: Series([1.0], [0.5]) for key in (METRIC, *keys, "time/rollout")}
    assert set(curve_of(Run("r", series, []), METRIC, "a", 0).series) == {METRIC, *keys}


def test_a_band_ends_with_the_shortest_run():
    places, mean, low, high = band([curve("a", 0, 0.0, 0.2), curve("a", 1, 0.2, 0.4, 0.9)], METRIC)
    assert places == [0.0, 10.0]
    assert mean == pytest.approx([0.1, 0.3])
    assert low == pytest.approx([0.0, 0.2])
    assert high == pytest.approx([0.2, 0.4])
    assert band([], METRIC) == ([], [], [], [])


# --- the table ------------------------------------------------------------------------------------


def squeezed(text):
    return re.sub(" +", " ", text)


def three_rows():
    return [
        *(curve("best", s, 0.1, 0.8 + s / 100) for s in range(3)),
        *(curve("less", s, 0.1, 0.5 + s / 100, 0.9) for s in range(3)),
        *(curve("same", s, 0.1, 0.81 + (s - 1) / 10) for s in range(3)),
    ]


def test_rows_are_compared_at_the_place_that_all_reach_and_with_the_paper():
    paper = Paper("Table 1", {"best": 60, "less": 11, "same": 55}, "best")
    table = tabulate(three_rows(), METRIC, paper=paper, failed=["same"])
    assert table.rollouts == 10
    best, less, same = table.rows
    assert (best.value.mean, less.value.mean) == (pytest.approx(0.81), pytest.approx(0.51))
    assert less.difference.mean == pytest.approx(-0.3)
    assert [row.verdict for row in table.rows] == ["", "yes", "not shown"]
    assert same.failed == 1
    assert (best.reached, less.reached, same.reached) == (None, None, 10.0)
    text = squeezed(markdown(table))
    assert "Paper: Table 1." in text
    assert "| less | 3 | 0.510 [0.500, 0.520] | best" in text
    assert "-0.300 [-0.300, -0.300] | - | 11 | -49 | yes" in text


def test_the_opposite_direction_is_named():
    table = tabulate(three_rows(), METRIC, paper=Paper("", {"best": 1, "less": 2}, "best"))
    assert [row.verdict for row in table.rows] == ["", "opposite", ""]


def test_a_ladder_compares_each_row_with_the_one_above():
    table = tabulate(three_rows(), METRIC, paper=Paper("", {}, "previous"))
    assert [row.against for row in table.rows] == ["", "best", "less"]


def test_rows_without_a_finished_run_stay_in_the_table():
    table = tabulate(three_rows(), METRIC, ["best", "none"])
    assert math.isnan(table.rows[1].value.mean)
    assert "| none | 0     | -  " in markdown(table)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((0.1,), "val/accuracy before the policy trains; mean"),
        ((0.1, 0.2), "val/accuracy after 1 rollout that trains the policy; mean"),
        ((0.1, 0.2, 0.3), "val/accuracy after 2 rollouts that train the policy; mean"),
    ],
)
def test_the_caption_counts_rollouts(values, says):
    series = Series([float(i) for i in range(len(values))], list(values))
    assert says in markdown(tabulate([Curve("a", 0, 0, {METRIC: series})], METRIC))


def test_columns_of_bootstrap_intervals_claim_no_coverage():
    heading = markdown(tabulate(three_rows(), METRIC)).splitlines()[2]
    assert "| ours [bootstrap interval] |" in heading
    assert "| difference [bootstrap interval] |" in heading
    assert "95 %" not in heading


def test_ten_rows_look_different():
    looks = [look(i) for i in range(10)]
    assert len({colour for colour, _ in looks}) == 10
    assert len({look(i) for i in range(20)}) == 20


def test_every_papers_number_belongs_to_a_row_of_its_sweep():
    papers = ROOT / "ablations" / "papers.json"
    for name in json.loads(papers.read_text()):
        points = [p.name for p in read_sweep(ROOT / "ablations" / f"{name}.yaml").points()]
        paper = read_paper(papers, name)
        assert list(paper.rows) == points
        assert paper.reference in [*points, "previous"]
    assert read_paper(papers, "none") == Paper()
    assert read_paper(papers.with_name("none.json"), "none") == Paper()


# --- files ----------------------------------------------------------------------------------------


def test_the_page_escapes_and_the_json_has_no_nan(tmp_path):
    name = "<script>|&"
    table = tabulate([curve(name, 0, 0.1, 0.5)], METRIC, [name, "none"])
    write_comparison(table, [curve(name, 0, 0.1, 0.5)], tmp_path / "a&b", {"runs": [math.nan]})
    page = (tmp_path / "a&b" / "comparison.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;|&amp;" in page
    assert "<title>a&amp;b</title>" in page
    assert "| <script>\\|&" in (tmp_path / "a&b" / "table.md").read_text()
    written = json.loads(
        (tmp_path / "a&b" / "results.json").read_text(), parse_constant=pytest.fail
    )
    assert written["runs"] == [None]
    assert written["rows"][0]["value"]["mean"] == 0.5
    assert html_table([["<"], [">"]]).count("&") == 2


RESULTS = sorted(ROOT.glob("ablations/results/*/curves.csv"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_committed_tables_follow_from_the_committed_curves(path, tmp_path):
    name = path.parent.name
    sweep = read_sweep(ROOT / "ablations" / f"{name}.yaml")
    paper = read_paper(ROOT / "ablations" / "papers.json", name)
    rows = [p.name for p in sweep.points()]
    with (path.parent / "results.csv").open() as file:
        runs = list(csv.DictReader(file))
    table = tabulate(read_curves(path), sweep.metric, rows, paper)
    table = replace(table, note=mixed([run["commit"] for run in runs]))
    assert markdown(table) + "\n" == (path.parent / "table.md").read_text()


@pytest.mark.parametrize(
    "path",
    sorted(ROOT.glob("ablations/results/**/*.csv")),
    ids=lambda p: f"{p.parent.name}-{p.stem}",
)
def test_committed_files_have_each_column_once(path):
    head = path.read_text().splitlines()[0].split(",")
    assert len(set(head)) == len(head)


@pytest.mark.parametrize("page", ["README.md", "ablations/README.md"])
def test_what_pages_say_of_the_miniature_is_in_the_committed_tables(page):
    tables = "".join(path.with_name("table.md").read_text() for path in RESULTS)
    text = (ROOT / page).read_text().replace("\N{MINUS SIGN}", "-")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    values = [v for row in rows for v in re.findall(r"[-+]?\d\.\d{3} \[[^]]*\]", row)]
    assert len(values) >= 11
    assert [value for value in values if value not in tables] == []


def test_the_hash_of_a_configuration_leaves_out_the_seed(tmp_path):
    for name, seed, lr in (("a", 1, 3), ("b", 2, 3), ("c", 1, 4)):
        (tmp_path / name).write_text(f"seed_everything: {seed}\nlr: {lr}\nrun_dir: {name}\n")
    a, b, c = (config_hash(tmp_path / name) for name in "abc")
    assert a == b != c
    assert len(a) == 12
    assert config_hash(tmp_path / "none") == ""


def test_what_an_algorithm_has_of_its_own_at_a_scale_follows_the_overlay(tmp_path):
    (tmp_path / "small.vapo.yaml").touch()
    overlay = str(tmp_path / "small.yaml")
    assert with_own([overlay, "b.yaml"], ["vapo"]) == [
        overlay,
        f"{overlay[:-5]}.vapo.yaml",
        "b.yaml",
    ]
    assert with_own([overlay], ["dapo"]) == [overlay]


# --- any runs -------------------------------------------------------------------------------------


def write_run(folder, *values):
    folder.mkdir(parents=True)
    rows = [f"{i + 1}.0,\n,{value}\n" for i, value in enumerate(values)]
    (folder / "metrics.csv").write_text("rollout,val/accuracy\n" + "".join(rows))
    return folder


def offline_run(folder, *rows):
    """What W&B writes: records of protocol buffers in a LevelDB log."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    folder.mkdir(parents=True)
    content = []
    for row in rows:
        record = messages.Record()
        for key, value in row.items():
            item = record.history.item.add()
            item.nested_key.append(key)
            item.value_json = json.dumps(value)
        content.append(record.SerializeToString())
    (folder / "run-x.wandb").write_bytes(log_of(content))
    return folder


def log_of(content):
    data = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for text in content:
        first = True
        while first or text:
            room = BLOCK - len(data) % BLOCK
            if room < 7:
                data += bytes(room)
                continue
            piece, text = text[: room - 7], text[room - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}
            data += struct.pack("<IHB", 0, len(piece), kind[first, not text]) + piece
            first = False
    return bytes(data)


def test_records_may_span_blocks_and_end_in_the_middle():
    content = [b"a" * 10, b"b" * 70_000, b"c" * (BLOCK - 7 - 24), b"d" * 100]
    data = log_of(content)
    assert list(records(data)) == content
    assert list(records(data[:-1])) == content[:-1]
    assert list(records(data[:7])) == []


def compare(*args):
    runpy.run_path(str(COMPARE))["main"]([str(arg) for arg in args])


def names(out):
    return [row["name"] for row in json.loads((out / "results.json").read_text())["rows"]]


def test_runs_of_all_kinds_are_compared(tmp_path, capsys):
    write_run(tmp_path / "many" / "seed_0", 0.2, 0.4)
    write_run(tmp_path / "many" / "seed_1", 0.2, 0.6)
    rows = [{"rollout": 1.0}, {METRIC: 0.25}, {"rollout": 2.0}, {METRIC: 0.75}]
    offline = offline_run(tmp_path / "wandb" / "offline-run-1-x", *rows)
    main = runpy.run_path(str(COMPARE))["main"]
    out = tmp_path / "out"
    main([str(tmp_path / "many"), f"w&b={offline}", "--out", str(out)])
    text = squeezed(capsys.readouterr().out)
    assert "| many | 2 | 0.500 [0.400, 0.600]" in text
    assert "| w&b | 1 | 0.750 | many | +0.350 | 2 " in text
    assert {p.name for p in out.iterdir()} >= {"table.md", "comparison.png", "comparison.html"}
    main([f"again={out / 'curves.csv'}#many", "--out", str(tmp_path / "again")])
    assert "| again | 2     | 0.500 [0.400, 0.600]" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([f"{out / 'curves.csv'}#none"])
    assert "#none: no such row; it has many, w&b" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path / "out")])
    assert "holds neither a run nor an offline run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(offline), "--metric", "val/none", "--out", str(out)])
    assert "--metric val/none" in capsys.readouterr().err
    with full_disk(100), pytest.raises(SystemExit):
        main([str(offline), "--out", str(tmp_path / "full")])
    assert "full/table.md: cannot be written (File too large)" in capsys.readouterr().err


def test_what_is_no_offline_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no run-"):
        read_offline(tmp_path)
    (tmp_path / "run-a.wandb").write_bytes(b"text")
    with pytest.raises(ConfigError, match="not a file of W&B"):
        read_offline(tmp_path)
    (tmp_path / "run-a.wandb").write_bytes(log_of([]))
    with pytest.raises(ConfigError, match="no metrics yet"):
        read_offline(tmp_path)
    (tmp_path / "run-a.wandb").write_bytes(log_of([b"\xff" * 9]))
    with pytest.raises(ConfigError, match=r"run-a\.wandb: is damaged"):
        read_offline(tmp_path)


def test_rows_that_end_alike_are_named_after_what_tells_them_apart(tmp_path):
    for part in ("ppo/seed_0/run", "vapo/seed_0/run", "dapo"):
        write_run(tmp_path / part, 0.5)
    runs = [tmp_path / "ppo/seed_0/run", tmp_path / "vapo/seed_0/run", tmp_path / "dapo"]
    compare(*runs, "--out", tmp_path / "out")
    assert names(tmp_path / "out") == ["ppo", "vapo", "dapo"]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "curves.csv").write_bytes((tmp_path / "out" / "curves.csv").read_bytes())
    both = [f"{tmp_path / folder / 'curves.csv'}#ppo" for folder in ("out", "b")]
    compare(*both, "--out", tmp_path / "out")
    assert names(tmp_path / "out") == ["out", "b"]


def test_equal_names_are_refused(tmp_path, capsys):
    for name in "abc":
        write_run(tmp_path / name, 0.5)
    a, b, c = (tmp_path / name for name in "abc")
    for rows in ([f"x={a}", f"x={b}"], [a, a], [a, f"a={c}"]):
        with pytest.raises(SystemExit):
            compare(*rows, "--out", tmp_path / "out")
        assert re.search(r"error: [xa]: names 2 rows; give each a name", capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_paths_may_hold_what_marks_names_and_rows(tmp_path, capsys):
    run = write_run(tmp_path / "clip_high=0.2" / "a#b=c", 0.5)
    compare(run, f"lam=0.9={run}", "--out", tmp_path / "d#=1")
    assert names(tmp_path / "d#=1") == ["a#b=c", "lam=0.9"]
    curves = tmp_path / "d#=1" / "curves.csv"
    compare(f"{curves}#lam=0.9", f"x=1={curves}#a#b=c", "--out", tmp_path / "out")
    assert names(tmp_path / "out") == ["lam=0.9", "x=1"]
    for row, message in (
        (f"={run}", "the name before = is empty"),
        ("a=", "the folder is empty"),
        (f"{curves}#lam=0.9 --metric=val/none", "lam=0.9 does not hold it"),
        (curves, "is a file; give a folder, or FILE#ROW"),
        ("x=none", "none: holds neither"),
        ("none.csv#x", "none.csv: no such file"),
    ):
        with pytest.raises(SystemExit):
            compare(*str(row).split(" "))
        assert message in capsys.readouterr().err


def test_the_folder_of_this_process_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(write_run(tmp_path / "here", 0.5))
    compare(".", "--out", "out")
    assert names(Path("out")) == ["here"]


def test_a_run_that_wandb_logged_too_is_one_seed(tmp_path, capsys):
    rows = [{"rollout": 1.0}, {METRIC: 0.5}]
    for seed in range(2):
        run = write_run(tmp_path / "vapo" / f"seed_{seed}" / "run", 0.5)
        offline_run(run / "wandb" / "offline-run-1-x", *rows)
    offline_run(tmp_path / "vapo" / "wandb" / "offline-run-2-y", *rows)
    out = tmp_path / "out"
    compare(tmp_path / "vapo", "--out", out)
    assert json.loads((out / "results.json").read_text())["rows"][0]["seeds"] == 3
    listed = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert sorted(listed) == sorted(str(path) for path in out.iterdir())
