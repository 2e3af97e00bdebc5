"""Configuration there and back, and the metrics against plain counting."""

import re
from dataclasses import fields
from pathlib import Path

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from fedmavg_mpi import config, metrics
from fedmavg_mpi.errors import ConfigError
from fedmavg_mpi.text import fits_a_line, one_line

ROOT = Path(__file__).parents[1]


@given(st.text().filter(fits_a_line), st.integers(0, 2**63 - 1), st.floats(0, 1e300), st.booleans())
def test_a_resolved_configuration_reads_back(path, seed, rho, flag):
    made = config.Config()
    for section, changes in {
        "data": {"path": path},
        "run": {"seed": seed, "save_local_factors": flag},
        "model": {"rho": rho},
    }.items():
        made = config.replace(made, section, **changes)
    assert config.parse(config.to_toml(made)) == made


JOINERS = "a\u00a0b", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\U0001f468\u200d\U0001f469\u200d\U0001f466"


@pytest.mark.parametrize("text", JOINERS)
def test_spaces_and_joiners_of_other_scripts_are_text(text):
    assert fits_a_line(text) and one_line(text) == text
    assert config.read(None, [f"data.path={text}"]).data.path == text


@pytest.mark.parametrize("character", ["\n", "\0", "\x1b", "\x7f", "\x85", "\u2028", "\u2029", "\ud800"])
def test_control_characters_and_line_ends_are_not(character):
    assert not fits_a_line(f"a{character}b") and one_line(f"a{character}b") == "a b"
    with pytest.raises(ConfigError, match="control characters"):
        config.read(None, [f"data.path=a{character}b"])


def test_a_long_text_is_cut_after_a_word():
    assert one_line("one two three", 13) == "one two three"
    assert one_line("one two three four", 13) == "one two ..."
    assert one_line("x" * 99, 13) == "x" * 9 + " ..."


def test_numbers_of_thousands_of_digits(tmp_path):
    with pytest.raises(ConfigError, match="whole number"):
        config.read(None, ["run.seed=" + "9" * 5000])
    (tmp_path / "a.toml").write_text("[run]\nseed = " + "9" * 5000)
    with pytest.raises(ConfigError, match="not valid TOML"):
        config.read(tmp_path / "a.toml")


def test_overrides_win_and_take_bare_words(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('[run]\nseed = 3\n[data]\npath = "x"\n')
    read = config.read(path, ["run.seed=4", "data.path=/a b/c.tsv", "algorithm.penalty_continuation=true", "model.rho=1"])
    assert (read.run.seed, read.data.path, read.algorithm.penalty_continuation, read.model.rho) == (4, "/a b/c.tsv", True, 1.0)


def test_data_are_found_below_the_data_folder(tmp_path, monkeypatch):
    (tmp_path / "x.tsv").touch()
    monkeypatch.setenv("FEDMAVG_DATA", str(tmp_path))
    assert config.find_data("x.tsv") == tmp_path / "x.tsv"
    assert config.find_data("y.tsv") == Path("y.tsv")
    assert config.find_data("/z/x.tsv") == Path("/z/x.tsv")


@pytest.mark.parametrize("job", sorted((ROOT / "jobs").glob("*.toml")), ids=lambda path: path.name)
def test_the_jobs_are_valid(job):
    config.read(job)


def test_the_readme_names_every_key_with_its_default_and_meaning():
    text = (ROOT / "README.md").read_text()
    for section in fields(config.Config):
        for key in fields(section.type):
            row = re.search(rf"^\| `{section.name}\.{key.name}` \| `([^`]*)` \| (.*) \|$", text, re.M)
            assert row, f"{section.name}.{key.name} isn't in the README"
            assert row[1] == config._toml_value(key.default), f"{section.name}.{key.name}: default {row[1]}"
            assert row[2].startswith(key.metadata["doc"].replace("|", "&#124;")), f"{section.name}.{key.name}: {row[2]}"


def test_errors_name_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'clients_per_round'"):
        config.read(None, ["algorithm.client_per_rounds=3"])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12))
def test_metrics_from_the_contingency_table(pairs):
    clusters, classes = (np.array(side) for side in zip(*pairs, strict=True))
    table = metrics.contingency(clusters, classes, 4, 4)
    assert table.sum() == len(pairs)
    assert metrics.accuracy(table) == pytest.approx(naive.accuracy(clusters.tolist(), classes.tolist()))
    assert metrics.normalized_mutual_information(table) == pytest.approx(normalized_mutual_info_score(classes, clusters))
    assert metrics.adjusted_rand_index(table) == pytest.approx(adjusted_rand_score(classes, clusters))
