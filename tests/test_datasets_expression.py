"""The expression source: the Xena layout, label tables, the search of a folder, and what is said about bad input."""

import gzip
import os

import numpy as np
import pytest

from fedmavg_mpi.config import Config, DataConfig
from fedmavg_mpi.datasets import load
from fedmavg_mpi.errors import ConfigError, DataError

TABLE = "gene\ts1\ts2\ts3\nA\t1\t2.5\t0\nB\t4\t0\t6e-1\n"
LABELS = "sample\tcancer_type\ns3\tLUAD\nunused\tX\ns1\tLUAD\ns2\tBRCA\n"


def read(path, labels="", **keys):
    return load(Config(data=DataConfig(source="expression", path=str(path), labels=str(labels), **keys)), 0)


def message(path, labels=""):
    with pytest.raises(DataError) as caught:
        read(path, labels)
    text = str(caught.value)
    assert "\n" not in text and text.isprintable()
    return text


@pytest.fixture
def put(tmp_path):
    """Write a file (text, or bytes; gzip by its suffix) and give its path."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") and not isinstance(content, bytes) else data)
        return path

    return write


@pytest.mark.parametrize("name", ["t.tsv", "t.tsv.gz", "t.txt", "t.txt.gz", "HiSeqV2", "HiSeqV2.gz"])
def test_file_and_folder_give_samples_as_rows(put, tmp_path, name):
    path = put(name, TABLE)
    for given in (path, tmp_path):
        dataset = read(given)
        assert dataset.samples.tolist() == [[1, 4], [2.5, 0], [0, 0.6]]
        assert dataset.samples.flags.c_contiguous
        assert (dataset.sample_names, dataset.feature_names) == (["s1", "s2", "s3"], ["A", "B"])
        assert dataset.labels is None and dataset.label_names is None


@pytest.mark.parametrize(
    "text",
    [
        TABLE.replace("\n", "\r\n"),
        "\ufeff" + TABLE,
        TABLE + "\n\n",
        TABLE.rstrip("\n"),
        TABLE.replace("gene", ""),
        TABLE.replace("gene", '"gene"').replace("s2", '"s2"').replace("2.5", '"2.5"'),
        TABLE.replace("2.5", " 2.5 "),
    ],
)
def test_forms_of_the_same_table(put, text):
    dataset = read(put("t.tsv", text))
    assert dataset.samples.tolist() == [[1, 4], [2.5, 0], [0, 0.6]]
    assert dataset.sample_names == ["s1", "s2", "s3"]


def test_gzip_is_known_by_its_content_too(put):
    assert read(put("HiSeqV2", gzip.compress(TABLE.encode()))).samples.shape == (3, 2)


def test_constant_and_zero_rows_and_repeated_feature_names_are_legal(put):
    dataset = read(put("t.tsv", "g\ta\tb\nX\t0\t0\nX\t2\t2\n"))
    assert dataset.samples.tolist() == [[0, 2], [0, 2]] and dataset.feature_names == ["X", "X"]


@pytest.mark.parametrize(
    "labels",
    [
        LABELS,
        LABELS.replace("cancer_type", "anything"),
        LABELS.partition("\n")[2],
        "id\tstage\tClass\ns1\tq\tLUAD\ns2\tr\tBRCA\ns3\tq\tLUAD\n",
        "id\tfirst\tother\ns1\tLUAD\tq\ns2\tBRCA\tr\ns3\tLUAD\tq\n",
        LABELS + "s1\tLUAD\n",
    ],
)
def test_label_tables(put, labels):
    dataset = read(put("t.tsv", TABLE), put("l.tsv", labels))
    assert dataset.labels.tolist() == [1, 0, 1] and dataset.labels.dtype == np.int32
    assert dataset.label_names == ["BRCA", "LUAD"]


@pytest.mark.parametrize("name", ["t.labels.tsv", "t.labels.tsv.gz", "other.labels.tsv"])
def test_labels_beside_the_table_are_found(put, tmp_path, name):
    put(name, LABELS)
    path = put("t.tsv.gz", TABLE)
    put("README.txt", "about")
    assert read(path).label_names == read(tmp_path).label_names == ["BRCA", "LUAD"]


def test_labels_named_after_another_table_are_not_taken(put):
    path = put("t.tsv", TABLE)
    put("u.tsv", TABLE)
    put("u.labels.tsv", LABELS)
    assert read(path).labels is None


def test_labels_in_the_data_folder_and_comma_separated(put, tmp_path):
    path = put("t.tsv", TABLE)
    put("mine.csv", LABELS.replace("\t", ","))
    assert read(path, "mine.csv").label_names == ["BRCA", "LUAD"]
    assert "nope.csv: no such file" in message(path, "nope.csv")


def test_several_label_files(put, tmp_path):
    path = put("t.tsv", TABLE)
    put("a.labels.tsv", LABELS)
    put("b.labels.tsv", LABELS)
    assert "2 label files (a.labels.tsv, b.labels.tsv)" in message(path)


def test_folder_without_or_with_several_tables(put, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no table among the files (none)" in message(tmp_path / "empty")
    put("a.tsv", TABLE)
    put("b.txt.gz", TABLE)
    assert "2 tables (a.tsv, b.txt.gz)" in message(tmp_path)
    put("sub/x.csv", TABLE)
    assert "(x.csv)" in message(tmp_path / "sub")


def test_paths_are_looked_for_below_the_data_folder(put, tmp_path, monkeypatch):
    put("deep/t.tsv", TABLE)
    monkeypatch.setenv("FEDMAVG_DATA", str(tmp_path))
    assert read("deep").samples.shape == (3, 2)
    assert "elsewhere: no such file or folder" in message("elsewhere")
    assert "name too long" in message("x" * 300)
    with pytest.raises(ConfigError, match='data.path = ""'):
        read("")


HEAD = "gene\ts1\ts2\n"
BAD_TABLES = [
    (b"", "is empty"),
    ("\n \n", "only empty lines"),
    (HEAD, "a header only"),
    (HEAD + "A\t1\tNA\n", "line 2 (row 'A'), column 3 ('s2'): missing value 'NA'"),
    (HEAD + "A\t1\t\n", "column 3 ('s2'): missing value ''"),
    (HEAD + "A\tNaN\t1\n", "column 2 ('s1'): missing value 'NaN'"),
    (HEAD + "A\t1\t2\nB\t1\tinf\n", "line 3 (row 'B'), column 3 ('s2'): infinite value 'inf'"),
    (HEAD + "A\t1\t1e999\n", "infinite value '1e999'"),
    (HEAD + "A\t1\t-2\n", "negative value '-2'"),
    (HEAD + "A\t1\tx\n", "not a number: 'x'"),
    (HEAD + "A\t1\t1_0\n", "not a number: '1_0'"),
    (HEAD + "A\t1\t1,5\n", "not a number: '1,5'"),
    (HEAD + "A\t1\t\x1f2\n", r"not a number: '\x1f2'"),
    (HEAD + "A\t1\n", "line 2 has 2 cells, expected 3"),
    (HEAD + "A\t1\t2\t3\n", "line 2 has 4 cells, expected 3"),
    (HEAD + "A\t1\t2\n\nB\t1\t2\n", "line 3 is empty"),
    (HEAD.replace("\t", ",") + "A,1,2\n", "'gene,s1,s2'; expected cells separated by tabs"),
    ("gene\ts1\ts1\nA\t1\t2\n", "2 samples are called 's1'"),
    ('gene\t"s1\ts2\nA\t1\t2\n', "line 1: broken quotes"),
    ('gene\t"s1"x\ts2\nA\t1\t2\n', "line 1: broken quotes"),
    (HEAD.encode() + "Ä\t1\t2\n".encode("latin1"), "line 2: byte 0xc4 isn't text"),
    ((HEAD + "A\t1\t2\n").encode("utf-16"), "line 1: byte 0xff isn't text"),
    (HEAD + "A\t1\t\0\n", "line 2: a zero byte"),
    (HEAD.strip() + "\rA\t1\t2\r", "line 1: a carriage return"),
]


@pytest.mark.parametrize("content, expected", BAD_TABLES, ids=[expected for _, expected in BAD_TABLES])
def test_bad_tables(put, content, expected):
    path = put("t.tsv", content)
    text = message(path)
    assert text.startswith(f"{path}: ") and expected in text


def test_bad_gzip(put):
    whole = gzip.compress((HEAD + "A\t1\t2\n" * 999).encode())
    assert "truncated or corrupt gzip" in message(put("a.tsv.gz", whole[:-20]))
    assert "truncated or corrupt gzip" in message(put("b.tsv.gz", whole[:3]))
    assert "truncated or corrupt gzip" in message(put("c.tsv.gz", whole + b"more"))
    assert "not gzip" in message(put("d.tsv.gz", TABLE.encode()))
    assert "only empty lines" in message(put("e.tsv.gz", gzip.compress(b"")))


BAD_LABELS = [
    (b"", "is empty"),
    ("sample\ttype\n", "no label for 3 of 3 samples ('s1', 's2', 's3')"),
    ("sample\ttype\ns2\tA\n", "no label for 2 of 3 samples ('s1', 's3')"),
    ("sample\ttype\ns1\tA\ns2\t\ns3\tB\n", "line 3: missing label ''"),
    ("sample\ttype\ns1\tA\ns1\tB\n", "line 3: sample 's1' is 'B', but 'A' above"),
    ("sample\ttype\ns1\tA\ns2\n", "line 3 has 1 cell, expected 2"),
    ("sample;type\ns1;A\n", "'sample;type'; expected cells separated by tabs"),
    ("A\nB\nC\n", "single cell, 'A'"),
]


@pytest.mark.parametrize("content, expected", BAD_LABELS, ids=[expected for _, expected in BAD_LABELS])
def test_bad_labels(put, content, expected):
    labels = put("l.tsv", content)
    text = message(put("t.tsv", TABLE), labels)
    assert text.startswith(f"{labels}: ") and expected in text


def test_missing_names_are_counted_and_the_first_few_named(put):
    names = [f"s{i}" for i in range(9)]
    path = put("t.tsv", "g\t" + "\t".join(names) + "\nA" + "\t1" * 9 + "\n")
    assert "8 of 9 samples ('s1', 's2', 's3', ...)" in message(path, put("l.tsv", "s\tl\ns0\tA\n"))


@pytest.mark.skipif(os.name != "posix", reason="POSIX files")
def test_files_that_are_none(put, tmp_path):
    assert "not a regular file" in message("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in message(tmp_path / "pipe")
    (tmp_path / "gone.tsv").symlink_to(tmp_path / "nowhere")
    assert "no such file" in message(tmp_path / "gone.tsv")
    assert "a folder, expected a file" in message(put("t.tsv", TABLE), tmp_path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user who can be refused a file")
def test_unreadable_file(put):
    path = put("t.tsv", TABLE)
    path.chmod(0)
    assert "Permission denied" in message(path)


def test_tcga_table(data_folder, monkeypatch):
    folder = data_folder / "tcga-mirna"
    if not folder.is_dir():
        pytest.skip(f"no tcga-mirna in {data_folder}")
    monkeypatch.setenv("FEDMAVG_DATA", str(data_folder))
    dataset = read("tcga-mirna")
    assert dataset.samples.shape == (8917, 401)
    assert len(dataset.label_names) == 20 and dataset.label_names == sorted(dataset.label_names)
    assert np.bincount(dataset.labels).min() > 100
    with gzip.open(folder / "tcga_mirna_20types.tsv.gz", "rt") as stream:
        lines = [line.rstrip("\n").split("\t") for line in stream]
    for row, column in ((1, 1), (2, 3), (200, 5000), (401, 8917)):
        assert dataset.samples[column - 1, row - 1] == float(lines[row][column])
    assert (dataset.sample_names, dataset.feature_names[2]) == (lines[0][1:], lines[3][0])
    assert dataset.samples[0, 1] == 13.170 and dataset.label_names[dataset.labels[0]] == "BLCA"
