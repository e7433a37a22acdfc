"""The documentation is true: snippets run, commands work, names exist."""

import re
import shlex
import sys

import pytest

from lit_reason.__main__ import main
from tests.conftest import ROOT, SMALL, fit
from tests.test_configs import arguments, metrics

DOCS = sorted((ROOT / "docs").rglob("*.md"))


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)


def snippets(path):
    """File name and text of every Python block that says which file it is."""
    for text in blocks(path, "python"):
        name = re.match(r"# (\w+\.py)\n", text)
        if name:
            yield name.group(1), text


def fits(path):
    """Every `fit` command of a page that runs on the built-in model and names own parts."""
    for text in blocks(path, "bash"):
        for line in text.splitlines():
            if line.startswith("python -m lit_reason fit") and "my_" in line:
                yield line


PAGES = [ROOT / "README.md", ROOT / "docs" / "extending.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_own_parts_run_as_written(page, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    written = [name for name, text in snippets(page) if (tmp_path / name).write_text(text)]
    commands = list(fits(page))
    assert written
    assert commands
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for i, command in enumerate(commands):
        own_task = "--data.task=" in command
        small = [a for a in SMALL if not (own_task and "task." in a)]
        main([*shlex.split(command)[3:], *small, f"--run_dir=run{i}"])
        assert (tmp_path / f"run{i}" / "metrics.csv").is_file()
    for name in written:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS], ids=lambda p: p.name)
def test_links_and_files_that_a_page_names_exist(page):
    text = page.read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (page.parent / target).exists(), target
    for name in re.findall(r"`((?:lit_reason|configs|scripts|docs|ablations)/[\w./]+)`", text):
        assert (ROOT / name).exists(), name


def algorithm_pages():
    return sorted((ROOT / "docs" / "algorithms").glob("*.md"))


@pytest.mark.parametrize("page", algorithm_pages(), ids=lambda p: p.stem)
def test_functions_and_classes_in_the_equation_tables_exist(page):
    import lit_reason.cli as everything
    from lit_reason import advantages, callbacks, functional, learner, objectives, rewards

    places = [functional, objectives, advantages, rewards, callbacks, everything]
    places += [everything.aggregation, everything.filters, learner]
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")][2:]
    names = {n for row in rows for n in re.findall(r"`(?:functional\.)?(\w+)`", row.split("|")[2])}
    assert names
    for name in names:
        assert any(hasattr(place, name) for place in places), name


def documented(key):
    """Whether the table of metrics describes a key, by name, suffix or pattern."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    first_column = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    names, last = set(), ""
    for column in first_column:
        for name in re.findall(r"`([^`]+)`", column):
            # `_min` continues the name before it
            last = re.sub(r"_[a-z]+$", "", last) + name if name.startswith("_") else name
            names |= {last, *([last + name] if name.startswith("_") else [])}
    patterns = [re.escape(n).replace("NAME", r"\w+") for n in names]
    patterns += [r"entropy/position_\d+", r"(val/)?value/explained_variance_\d+"]
    patterns += [r"val/(pass|maj)_at_\d+", r"response_length_\w+"]
    key = re.sub(r"^(val/.*)_(low|high)$", r"\1", key)
    return any(re.fullmatch(p, key) for p in patterns)


@pytest.mark.filterwarnings("ignore:data.rewards.soft_overlong:lit_reason.errors.ConfigWarning")
@pytest.mark.parametrize("name", ["vapo", "dapo", "grpo"])
def test_every_logged_metric_is_documented(name):
    flags = ["--callbacks.overlong=OverlongFilter"]
    flags += ["--callbacks.critic=CriticMonitor"] if name == "vapo" else []
    run_dir = fit(*arguments(name), *flags)
    keys = set().union(*metrics(run_dir)) - {"step", "epoch"}
    assert not sorted(k for k in keys if not documented(k))


def test_the_estimates_are_those_of_the_script():
    import scripts.estimate_cost as estimate

    assert estimate.table() in (ROOT / "docs" / "reproduce.md").read_text()
