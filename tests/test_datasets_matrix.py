"""The matrix source: every format gives the same samples, labels in each form, and what is said about bad input."""

import gzip
import io
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import sparse
from scipy.io import mmwrite

from fedmavg_mpi.config import Config, DataConfig
from fedmavg_mpi.datasets import load
from fedmavg_mpi.errors import DataError

FORMATS = ("npy", "npz", "sparse.npz", "mtx", "dense.mtx", "mtx.gz", "csv", "tsv", "csv.gz", "named.csv")


def read(path, labels="", **keys):
    return load(Config(data=DataConfig(source="matrix", path=str(path), labels=str(labels), **keys)), 0)


def message(path, labels="", **keys):
    with pytest.raises(DataError) as caught:
        read(path, labels, **keys)
    text = str(caught.value)
    assert "\n" not in text and text.isprintable()
    return text


def saved(write, *arguments, **keys):
    stream = io.BytesIO()
    write(stream, *arguments, **keys)
    return stream.getvalue()


def text_of(values, delimiter):
    return "".join(delimiter.join(map(repr, row)) + "\n" for row in values.tolist()).encode()


def content(values, form):
    """A dense matrix in one of the formats."""
    if form.endswith(".gz"):
        return gzip.compress(content(values, form[:-3]))
    if form == "named.csv":
        head = "," + ",".join(f"f{j}" for j in range(values.shape[1])) + "\n"
        return (head + "".join(f"s{i}," + ",".join(map(repr, row)) + "\n" for i, row in enumerate(values.tolist()))).encode()
    return {
        "npy": lambda: saved(np.save, values),
        "npz": lambda: saved(np.savez_compressed, x=values),
        "sparse.npz": lambda: saved(sparse.save_npz, sparse.csc_array(values)),
        "mtx": lambda: saved(mmwrite, sparse.coo_array(values)),
        "dense.mtx": lambda: saved(mmwrite, values),
        "csv": lambda: text_of(values, ","),
        "tsv": lambda: text_of(values, "\t"),
    }[form]()


@pytest.fixture
def put(tmp_path):
    def write(name, data):
        (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
        return tmp_path / name

    return write


@given(
    npst.arrays(
        np.float64, st.tuples(st.integers(1, 4), st.integers(1, 4)), elements=st.one_of(st.just(0.0), st.floats(0, 1e300))
    ),
    st.sampled_from(FORMATS),
    st.sampled_from(["rows", "columns"]),
)
def test_every_format_gives_the_same_samples(tmp_path_factory, values, form, samples_in):
    path = tmp_path_factory.mktemp("formats") / f"m.{form}"
    path.write_bytes(content(values, form))
    samples = read(path, samples_in=samples_in).samples
    expected = values if samples_in == "rows" else values.T
    if form in ("sparse.npz", "mtx", "mtx.gz"):
        assert isinstance(samples, sparse.csr_array) and samples.has_canonical_format and samples.indices.dtype == np.int32
        assert samples.nnz == np.count_nonzero(values)
        samples = samples.toarray()
    assert samples.dtype == np.float64 and samples.flags.c_contiguous
    assert np.array_equal(samples, expected)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia"])
@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix])
def test_sparse_npz_of_any_kind(put, form, kind):
    values = np.array([[0, 2.0, 0], [1, 0, 3]])
    samples = read(put("m.npz", saved(sparse.save_npz, kind(values).asformat(form)))).samples
    assert isinstance(samples, sparse.csr_array) and np.array_equal(samples.toarray(), values)


def test_duplicates_are_summed_and_zeros_dropped(put):
    mtx = "%%MatrixMarket matrix coordinate integer general\n% remark\n\n2 3 4\n1 1 5\n\n2 3 0\n1 1 2\n1 2 1"
    for path in (
        put("m.mtx", mtx),
        put("m.npz", saved(sparse.save_npz, sparse.coo_array(([5, 0, 2, 1], ([0, 1, 0, 0], [0, 2, 0, 1])), shape=(2, 3)))),
    ):
        samples = read(path).samples
        assert samples.nnz == 2 and samples.toarray().tolist() == [[7, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("coordinate pattern general\n2 2 1\n2 1\n", [[0, 0], [1, 0]]),
        ("coordinate real symmetric\n2 2 2\n2 1 3\n2 2 4\n", [[0, 3], [3, 4]]),
        ("coordinate real general\n2 2 0\n", [[0, 0], [0, 0]]),
        ("array integer general\n2 3\n1\n2\n3\n4\n5\n6\n", [[1, 3, 5], [2, 4, 6]]),
        ("array real symmetric\n2 2\n1\n2\n3\n", [[1, 2], [2, 3]]),
        ("Coordinate Real General\r\n1 2 1\r\n1 2 9\r\n", [[0, 9]]),
    ],
)
def test_matrix_market_variants(put, text, expected):
    samples = read(put("m.mtx", "%%MatrixMarket matrix " + text)).samples
    assert (samples.toarray() if sparse.issparse(samples) else samples).tolist() == expected


@pytest.mark.parametrize(
    "dtype, kept",
    [("f4", "f4"), (">f4", "f4"), ("f8", "f8"), (">f8", "f8"), ("f2", "f8"), ("i4", "f8"), ("u8", "f8"), ("?", "f8")],
)
def test_types(put, dtype, kept):
    values = np.array([[1, 0], [0, 1]])
    dense = read(put("m.npy", saved(np.save, np.asfortranarray(values.astype(dtype))))).samples
    assert dense.dtype == np.dtype(kept) and dense.dtype.isnative and np.array_equal(dense, values)
    if dtype != "f2":
        stored = read(
            put("m.npz", saved(sparse.save_npz, sparse.csr_array(values.astype(np.dtype(dtype).newbyteorder("=")))))
        ).samples
        assert stored.dtype == np.dtype(kept) and np.array_equal(stored.toarray(), values)


@pytest.mark.parametrize(
    "text, sample_names, feature_names",
    [
        ("1,2\n3,4\n", None, None),
        ("a,b\n1,2\n3,4\n", None, ["a", "b"]),
        ("s1,1,2\ns2,3,4\n", ["s1", "s2"], None),
        (",a,b\ns1,1,2\ns2,3,4\n", ["s1", "s2"], ["a", "b"]),
        (",0,1\n0,1,2\n1,3,4\n", ["0", "1"], ["0", "1"]),
        ("Sample ID,a,b\n7,1,2\n8,3,4\n", ["7", "8"], ["a", "b"]),
        ("patient_id,0,1\n7,1,2\n8,3,4\n", ["7", "8"], ["0", "1"]),
        ("who,a,b\ns1,1,2\ns2,3,4\n", ["s1", "s2"], ["a", "b"]),
        ('"","a,x","b"\n"s1","1",2\n"s2",3,4\n', ["s1", "s2"], ["a,x", "b"]),
    ],
)
def test_header_and_names_are_found_out(put, text, sample_names, feature_names):
    dataset = read(put("m.csv", text))
    assert dataset.samples.tolist() == [[1, 2], [3, 4]]
    assert (dataset.sample_names, dataset.feature_names) == (sample_names, feature_names)
    turned = read(put("m.csv", text), samples_in="columns")
    assert turned.samples.tolist() == [[1, 3], [2, 4]]
    assert (turned.sample_names, turned.feature_names) == (feature_names, sample_names)


def test_one_column_with_and_without_a_header(put):
    assert read(put("m.csv", "1\n2\n")).samples.tolist() == [[1], [2]]
    assert read(put("m.csv", "height\n1\n2\n")).feature_names == ["height"]


H = "%%MatrixMarket matrix coordinate real general\n"
A = "%%MatrixMarket matrix array real general\n"
EYE = saved(np.save, np.eye(3))
OUT_OF_RANGE = {"format": "csr", "shape": [2, 2], "data": [1.0, 1.0], "indices": [0, 999999], "indptr": [0, 1, 2]}
BAD = [
    ("m.txt", "1", "unknown suffix '.txt', expected one of .npy, .npz"),
    ("m", "1", "unknown suffix ''"),
    ("m.csv", "", "is empty"),
    ("m.csv", "a,b\n", "a header only"),
    ("m.csv", "x\ny\nz\n", "names only"),
    ("m.csv", "1,2\n3\n", "line 2 has 1 cell, expected 2"),
    ("m.csv", "1,\n", "line 1, column 2: missing value ''"),
    ("m.csv", "NA,1\n2,3\n", "line 1, column 1: missing value 'NA'"),
    ("m.csv", "a,b\n1,nan\n", "line 2, column 2 ('b'): missing value 'nan'"),
    ("m.csv", ",a\ns,-1\n", "line 2 (row 's'), column 2 ('a'): negative value '-1'"),
    ("m.csv", "a;b\n1;2\n", "'a;b'; expected cells separated by commas"),
    ("m.csv", "1;2\n", "expected cells separated by commas"),
    ("m.csv", "a\tb\n1\t2\n", "expected cells separated by commas"),
    ("m.tsv", "1,2\n", "expected cells separated by tabs"),
    ("m.csv", "x,1,2\n3,4,5\n", "unclear whether the first column is names"),
    ("m.csv", "id,a\ns,1\ns,2\n", "2 samples are called 's'"),
    ("m.csv", '"a\n', "broken quotes"),
    ("m.csv", b"\x89PNG\r\n\x1a\n\0\0", "byte 0x89 isn't text"),
    ("m.csv.gz", "1,2\n", "not gzip"),
    ("m.npy", "", "is empty"),
    ("m.npy", EYE[:-8], "not a valid npy file"),
    ("m.npy", EYE[:40], "not a valid npy file"),
    ("m.npy", EYE[:10] + b"\0{" + EYE[12:], "not a valid npy file"),
    ("m.npy", b"garbage!", "not a valid npy file"),
    ("m.npy", pickle.dumps([1]), "not a valid npy file"),
    ("m.npy", saved(np.save, np.array([[None]])), "pickled objects"),
    ("m.npy", saved(np.save, np.ones(3)), "shape (3,), expected two dimensions"),
    ("m.npy", saved(np.save, np.ones((1, 2, 3))), "shape (1, 2, 3)"),
    ("m.npy", saved(np.save, np.zeros((0, 3))), "0 samples of 3 features"),
    ("m.npy", saved(np.save, np.ones((2, 2)) * 1j), "entries of type 'complex128'"),
    ("m.npy", saved(np.save, np.array([["a"]])), "entries of type '<U1'"),
    ("m.npy", saved(np.save, np.array([["2020-01-01"]], dtype="M8[D]")), "entries of type 'datetime64[D]'"),
    ("m.npy", saved(np.save, np.array([[0, np.nan]])), "missing value (NaN) at feature 2, sample 1"),
    ("m.npy", saved(np.save, np.array([[0], [np.inf]])), "infinite value at feature 1, sample 2"),
    ("m.npy", saved(np.save, np.array([[0, -2]])), "negative value -2 at feature 2, sample 1"),
    ("m.npy", EYE.replace(b"(3, 3), }" + b" " * 16, b"(3000000000, 3000000), }" + b" "), "doesn't fit in memory"),
    ("m.npz", b"garbage", "not a valid npz file (not a zip archive)"),
    ("m.npz", saved(np.savez, x=np.eye(2))[:-30], "not a valid npz file"),
    ("m.npz", saved(np.savez, x=np.eye(2), y=np.eye(2)), "2 arrays ('x', 'y'), expected one"),
    ("m.npz", saved(np.savez), "0 arrays ()"),
    ("m.npz", saved(np.savez, x=np.array([None])), "pickled objects"),
    ("m.npz", saved(np.savez, **OUT_OF_RANGE), "not a valid sparse matrix"),
    ("m.npz", saved(np.savez, format="csr", shape=[2, 2]), "not a valid npz file"),
    ("m.npz", saved(sparse.save_npz, sparse.csr_array(np.array([[0, -1.0]]))), "negative value -1 at feature 2, sample 1"),
    ("m.mtx", "hello\n", "line 1 isn't '%%MatrixMarket matrix"),
    ("m.mtx", H, "sizes ''"),
    ("m.mtx", H + "2 3\n", "sizes '2 3'"),
    ("m.mtx", H + "2 -3 1\n1 1 1\n", "sizes '2 -3 1'"),
    ("m.mtx", H + "2 3 2\n1 1 5\n", "1 lines of 3 numbers, where line 1 and the sizes say 2 of 3"),
    ("m.mtx", H + "2 3 1\n1 1 5\n1 2 5\n", "2 lines of 3 numbers"),
    ("m.mtx", H + "2 3 2\n1 1 5\n3 3 1\n", "entry 2 is at [3.0, 3.0], outside of [2, 3]"),
    ("m.mtx", H + "2 3 1\n0 1 5\n", "entry 1 is at [0.0, 1.0]"),
    ("m.mtx", H + "2 3 1\n1 nan 5\n", "entry 1 is at [1.0, nan]"),
    ("m.mtx", H + "2 3 1\n1.5 1 5\n", "entry 1 is at [1.5, 1.0]"),
    ("m.mtx", H + "5 5 2\n1 1 5\n5 5 7-", "'7-'"),
    ("m.mtx", H + "2 3 1\n1 1 x\n", "'x'"),
    ("m.mtx", H + "2 3 2\n1 1 5\n1 1\n", "not a valid Matrix Market file"),
    ("m.mtx", H + "2 3 1\n1 2 -4\n", "negative value -4 at feature 2, sample 1"),
    ("m.mtx", H + "2 3 1\n1 2 nan\n", "missing value (NaN) at feature 2, sample 1"),
    ("m.mtx", H + "1000000000000000 3 1\n1 2 1\n", "doesn't fit in memory"),
    ("m.mtx", H.replace("general", "symmetric") + "2 3 1\n1 2 1\n", "symmetric, yet 2 x 3"),
    ("m.mtx", H.replace("real", "complex") + "2 3 1\n1 2 1 1\n", "line 1 isn't"),
    ("m.mtx", A + "2 2\n1\n2\n3\n", "3 values of type real, where the sizes say 4"),
    ("m.mtx.gz", gzip.compress(H.encode() + b"2 3 1\n1 2 1\n")[:-9], "not a valid Matrix Market file"),
    ("m.mtx.gz", H, "not gzip"),
]


@pytest.mark.parametrize("name, data, expected", BAD, ids=[f"{name}-{expected}" for name, _, expected in BAD])
def test_bad_files(put, name, data, expected):
    path = put(name, data)
    text = message(path)
    assert text.startswith(f"{path}: ") and expected in text


def test_folder_and_missing_file(tmp_path):
    assert "a folder, expected a file of .npy" in message(tmp_path)
    assert "no such file or folder" in message(tmp_path / "m.npy")


def test_values_whose_sum_overflows_are_finite(put):
    assert read(put("m.npy", saved(np.save, np.full((2, 2), 1e308)))).samples.max() == 1e308


def test_a_zip_of_something_else(put):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.txt", "hello")
    assert "shape ()" in message(put("m.npz", stream.getvalue()))


NAMED = ",a,b\nx,1,2\ny,3,4\nz,5,6\n"
PLAIN = "1,2\n3,4\n5,6\n"


@pytest.mark.parametrize(
    "matrix, name, labels",
    [
        (NAMED, "l.tsv", "sample\tlabel\nz\tB\nw\tC\ny\tA\nx\tB\n"),
        (NAMED, "l.csv", "x,B\ny,A\nz,B\n"),
        (NAMED, "l.csv", "B\nA\nB\n"),
        (PLAIN, "l.csv", "B\nA\nB\n"),
        (PLAIN, "l.csv", "label\nB\nA\nB\n"),
        (PLAIN, "l.tsv", "whatever\nB\nA\nB\n"),
        (PLAIN, "l.npy", saved(np.save, np.array(["B", "A", "B"]))),
    ],
)
def test_labels(put, matrix, name, labels):
    dataset = read(put("m.csv", matrix), put(name, labels))
    assert dataset.labels.tolist() == [1, 0, 1] and dataset.labels.dtype == np.int32
    assert dataset.label_names == ["A", "B"]


@pytest.mark.parametrize("dtype", [int, float, np.uint8])
def test_number_labels_are_sorted_by_value(put, dtype):
    dataset = read(put("m.csv", PLAIN), put("l.npy", saved(np.save, np.array([10, 9, 10], dtype=dtype))))
    assert dataset.labels.tolist() == [1, 0, 1] and dataset.label_names == ["9", "10"]


def test_labels_beside_the_matrix_are_found(put):
    put("m.labels.npy", saved(np.save, np.array([1, 0, 1])))
    assert read(put("m.csv", PLAIN)).labels.tolist() == [1, 0, 1]
    assert read(put("other.csv", PLAIN)).labels is None


@pytest.mark.parametrize(
    "matrix, name, labels, expected",
    [
        (PLAIN, "l.csv", "A\nB\n", "2 labels for 3 samples"),
        (PLAIN, "l.csv", "A\nB\nA\nB\n", "4 labels for 3 samples"),
        (PLAIN, "l.csv", "label\nB\nA\n", "2 labels for 3 samples"),
        (PLAIN, "l.csv", "x,A\ny,B\nz,A\n", "2 columns, expected labels only"),
        (PLAIN, "l.csv", "A;B\n", "expected cells separated by commas"),
        (PLAIN, "l.csv", "A\nNA\nB\n", "line 2: missing label 'NA'"),
        (NAMED, "l.csv", "x,A\ny,B\n", "no label for 1 of 3 samples ('z')"),
        (PLAIN, "l.npy", saved(np.save, np.arange(2)), "2 labels for 3 samples"),
        (PLAIN, "l.npy", saved(np.save, np.ones((3, 1))), "shape (3, 1)"),
        (PLAIN, "l.npy", saved(np.save, np.ones(3) * 1j), "type complex128"),
        (PLAIN, "l.npy", saved(np.save, np.array([1, np.nan, 2])), "entry 2: missing label 'nan'"),
        (PLAIN, "l.npy", saved(np.save, np.array(["a", None, "b"])), "pickled objects"),
    ],
)
def test_bad_labels(put, matrix, name, labels, expected):
    path = put(name, labels)
    text = message(put("m.csv", matrix), path)
    assert text.startswith(f"{path}: ") and expected in text
