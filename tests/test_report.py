"""The picture and the page of runs, from hand-made run folders."""

import csv
import html
import json
import os
import re
import runpy
from pathlib import Path

import pytest

from lit_reason.errors import ConfigError
from lit_reason.report.history import Series, collect, read_run
from lit_reason.report.page import write_page
from lit_reason.report.plot import draw
from tests.conftest import full_disk

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "plot_run.py")
PNG = b"\x89PNG\r\n\x1a\n"


def plot_run(*args):
    runpy.run_path(SCRIPT)["main"]([str(a) for a in args])


def make_run(folder, rollouts=6, critic=True, warmup=2, samples=()):
    """A run folder with an evaluation before the first rollout and one at the end."""
    folder.mkdir(parents=True)
    rows = [{"step": 0, "val/accuracy": 0.25, "val/length": 40}]
    for i in range(rollouts):
        row = {"step": i, "rollout": i + 1.0, "reward": -0.5 + i / 10, "accuracy": 0.25 + i / 20}
        row |= {"response_length": 50 - i, "entropy": 0.3, "joint_phase": 1.0}
        if critic:
            row |= {"loss/value": 1 / (i + 1), "value/explained_variance": i / rollouts}
            row["joint_phase"] = float(i >= warmup)
        rows.append(row)
    rows.append({"step": rollouts - 1, "val/accuracy": 0.5, "val/length": 44})
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    if samples:
        lines = "".join(json.dumps(sample) + "\n" for sample in samples)
        (folder / "samples.jsonl").write_text(lines, encoding="utf-8")
    return folder


def sample(**changes):
    row = {"rollout": 0, "prompt": "1+1=", "response": "2", "reward": 1.0, "correct": True}
    return {**row, "truncated": False, "length": 2, **changes}


def test_held_out_rows_take_the_place_of_the_training_row_before_them(tmp_path):
    run = read_run(make_run(tmp_path / "run"))
    assert run.get("val/accuracy") == Series([0.0, 6.0], [0.25, 0.5])
    assert run.get("accuracy").rollouts == [1, 2, 3, 4, 5, 6]
    assert run.rollouts == 6
    assert run.warmup_end == 2
    assert not run.get("no/such_key")


def test_cells_that_are_no_finite_number_are_left_out():
    rows = [{"rollout": "1", "a": "nan", "b": "x"}, {"rollout": "2", "a": "3", "b": None}]
    assert collect(rows) == {
        "rollout": Series([1.0, 2.0], [1.0, 2.0]),
        "a": Series([2.0], [3.0]),
    }


@pytest.mark.parametrize("critic", [True, False])
def test_a_run_becomes_a_picture_and_a_page_that_needs_no_other_file(tmp_path, critic, capsys):
    folder = make_run(tmp_path / "run", critic=critic, samples=[sample()])
    plot_run(folder)
    assert (folder / "report.png").read_bytes().startswith(PNG)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert capsys.readouterr().out.split() == [
        str(folder / n) for n in ("report.png", "report.html")
    ]


def panels(monkeypatch, runs, path):
    """Draws, and returns the axes by their title."""
    from lit_reason.report import plot

    figures = []

    class Kept(plot.Figure):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            figures.append(self)

    monkeypatch.setattr(plot, "Figure", Kept)
    draw(runs, path)
    return {axes.get_title(loc="left"): axes for axes in figures[0].axes}


def test_panels_show_training_and_held_out_values_over_rollouts(tmp_path, monkeypatch):
    run = read_run(make_run(tmp_path / "run"))
    axes = panels(monkeypatch, [run], tmp_path / "a.png")["Accuracy"]
    train, held_out = axes.get_lines()
    assert list(train.get_xdata()) == [1, 2, 3, 4, 5, 6]
    assert list(held_out.get_xdata()) == [0, 6]
    assert list(held_out.get_ydata()) == [0.25, 0.5]
    assert train.get_color() != held_out.get_color()
    (shade,) = axes.patches
    assert (shade.get_x(), shade.get_width()) == (0, 2.5)


def test_panels_say_what_a_run_does_not_log(tmp_path, monkeypatch):
    run = read_run(make_run(tmp_path / "run", critic=False))
    axes = panels(monkeypatch, [run], tmp_path / "a.png")
    for title in ("Value loss", "Explained variance of the critic"):
        assert [text.get_text() for text in axes[title].texts] == [
            "no critic in this configuration"
        ]
    assert not axes["Reward"].texts
    assert not axes["Reward"].patches  # no warm-up to shade


def test_several_runs_share_the_panels(tmp_path, monkeypatch):
    folders = [make_run(tmp_path / name, critic=name == "a") for name in "ab"]
    axes = panels(monkeypatch, [read_run(f) for f in folders], tmp_path / "a.png")
    assert len({line.get_color() for line in axes["Accuracy"].get_lines()}) == 2
    assert len(axes["Value loss"].get_lines()) == 1


def test_several_runs_go_into_the_first_folder_or_into_out(tmp_path):
    a, b = (make_run(tmp_path / name) for name in "ab")
    plot_run(a, b)
    assert (a / "report.png").is_file()
    assert not (b / "report.png").exists()
    plot_run(b, a, "--out", tmp_path / "new" / "folder")
    page = (tmp_path / "new" / "folder" / "report.html").read_text(encoding="utf-8")
    assert page.index("<h3>b</h3>") < page.index("<h3>a</h3>")


def page_of(folder):
    run = read_run(folder)
    (folder / "report.png").write_bytes(PNG)
    write_page([run], folder / "report.png", folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


def test_responses_cannot_inject_markup(tmp_path):
    attack = "</pre><script>alert(1)</script>\"'&"
    rows = [sample(prompt=attack, response=attack, reward=attack, length=attack, rollout=attack)]
    page = page_of(make_run(tmp_path / "<b>run", samples=rows))
    assert "<script" not in page
    assert "<b>" not in page
    assert page.count(html.escape(attack)) == 5


def test_control_characters_of_responses_are_written_out(tmp_path):
    page = page_of(make_run(tmp_path / "run", samples=[sample(response="a\x00b\x1b[2J\tc\nd")]))
    assert "<pre>a\\x00b\\x1b[2J\tc\nd</pre>" in page


def test_control_characters_of_metric_names_are_written_out(tmp_path):
    """In a column of `metrics.csv`, as a data set's name or a part of the user's makes it."""
    folder = make_run(tmp_path / "run")
    table = (folder / "metrics.csv").read_text(encoding="utf-8")
    named = table.replace("val/length", "val/\u202eevil\x1b[2J")
    (folder / "metrics.csv").write_text(named, encoding="utf-8")
    page = page_of(folder)
    assert "\\u202eevil\\x1b[2J</td>" in page
    assert not {"\u202e", "\x1b"} & set(page)


def test_responses_come_newest_first_with_a_verdict_in_words(tmp_path):
    rows = [
        sample(rollout=0, response="older", correct=False, reward=-1.0, truncated=True),
        sample(rollout=10, response="newer"),
    ]
    page = page_of(make_run(tmp_path / "run", samples=rows))
    assert page.index("newer") < page.index("older")
    assert page.index("Rollout 10: 1 of 1 right") < page.index("Rollout 0: 0 of 1 right")
    newer, older = page.split("<article")[1:]
    assert "✓ right" in newer
    assert "✗ wrong" in older
    assert "cut off at the token limit" in older
    assert "reward -1.0" in older


def test_the_table_compares_the_first_and_the_last_evaluation(tmp_path):
    page = page_of(make_run(tmp_path / "run"))
    row = "<tr><td>accuracy</td><td>0.250</td><td>0.500</td><td>+0.250</td></tr>"
    assert row in page
    assert "<small>rollout 0</small>" in page
    assert "<small>rollout 6</small>" in page


def test_a_run_without_evaluations_and_samples_still_has_a_page(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.csv").write_text("step,rollout,reward\n0,1.0,0.5\n")
    page = page_of(folder)
    assert "no evaluation on held-out problems yet" in page
    assert "no samples" in page


def test_a_half_written_sample_is_left_out(tmp_path):
    folder = make_run(tmp_path / "run", samples=[sample()])
    with (folder / "samples.jsonl").open("a") as file:
        file.write('{"rollout": 1, "pro')
    assert read_run(folder).samples == [sample()]


@pytest.mark.parametrize("content", ["", "step,reward\n", "step,reward\n,\n"])
def test_empty_metrics_are_one_line(tmp_path, content, capsys):
    (tmp_path / "metrics.csv").write_text(content)
    with pytest.raises(SystemExit) as stop:
        plot_run(tmp_path)
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'metrics.csv'}: holds no metrics yet; "
        "wait for the first rollout to finish\n"
    )


def test_what_a_file_cannot_hold_does_not_stop_the_page(tmp_path):
    """Half a surrogate pair, bytes that are no UTF-8, a place that is no number, deep nesting."""
    folder = make_run(tmp_path / "run", samples=[sample(response="a\ud800", rollout={"a": 1})])
    with (folder / "samples.jsonl").open("ab") as file:
        file.write(b"\xff\n" + b"[" * 100_000 + b"\n")
    with (folder / "metrics.csv").open("ab") as file:
        file.write(b"\xff\n")
    plot_run(folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "a\\ud800" in page
    assert "Rollout {&#x27;a&#x27;: 1}: " in page


def test_a_cell_beyond_any_number_is_one_line(tmp_path, capsys):
    folder = make_run(tmp_path / "run")
    with (folder / "metrics.csv").open("a") as file:
        file.write("1" * 200_000 + "\n")
    with pytest.raises(SystemExit):
        plot_run(folder)
    assert "metrics.csv: is not as a run writes it (field larger" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere: not a run folder, it holds no metrics\.csv"):
        read_run(tmp_path / "nowhere")


def test_drawing_needs_no_display(tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    assert "MPLBACKEND" not in os.environ
    draw([read_run(make_run(tmp_path / "run", rollouts=50))], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_a_report_that_cannot_be_written_is_one_line_and_no_half_a_file(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    before = sorted(run.iterdir())
    with full_disk(5000), pytest.raises(SystemExit) as stop:
        plot_run(run)
    assert stop.value.code == 2
    picture = run / "report.png"
    line = f"error: {picture}: cannot be written (File too large); make room"
    assert capsys.readouterr().err.startswith(line)
    assert sorted(run.iterdir()) == before
