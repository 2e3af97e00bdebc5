"""The movielens source: formats, titles, duplicates, the download, and what is said about bad input."""

import csv
import gzip
import hashlib
import io
import sys
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedmavg_mpi import store
from fedmavg_mpi.cli import main
from fedmavg_mpi.config import Config, DataConfig
from fedmavg_mpi.datasets import load, movielens, ratings_files
from fedmavg_mpi.errors import ConfigError, DataError

CSV = "userId,movieId,rating,timestamp\n10,3,4.0,100\n9,20,0,101\n9,3,3.5,102\n"
CELLS = {("9", "3"): 3.5, ("9", "20"): 0.0, ("10", "3"): 4.0}
PLAIN = "1::2::3::4\n"


def read(path, **keys):
    return load(Config(data=DataConfig(source="movielens", path=str(path), **keys)), 0)


def cells(dataset):
    """The stored ratings by the ids' own spelling."""
    samples = dataset.samples.tocoo()
    pairs = zip(samples.coords[0], samples.coords[1], samples.data.tolist())
    return {(dataset.sample_names[i], dataset.feature_names[j]): value for i, j, value in pairs}


def message(path, **keys):
    with pytest.raises(DataError) as caught:
        read(path, **keys)
    text = str(caught.value)
    assert text.isprintable() and str(path) in text
    return text


@pytest.fixture
def put(tmp_path):
    """Write a file (text, or bytes; gzip by its suffix) and give its path."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


@pytest.fixture
def pack(tmp_path):
    """Write a zip of the files given by name."""

    def write(files, name="set.zip", **options):
        with zipfile.ZipFile(tmp_path / name, "w", **options) as archive:
            for member, content in files.items():
                archive.writestr(member, content)
        return tmp_path / name

    return write


def check_small(dataset):
    assert cells(dataset) == CELLS
    assert (dataset.sample_names, dataset.feature_names) == (["9", "10"], ["3", "20"])
    assert dataset.rating_range == (0.0, 4.0) and dataset.samples.nnz == 3
    assert dataset.samples.dtype == np.float64 and dataset.samples.indices.dtype == np.int32
    assert dataset.samples.has_canonical_format


@pytest.mark.parametrize(
    "name, text",
    [
        ("ratings.csv", CSV),
        ("ratings.csv.gz", CSV),
        ("ratings.csv", "\ufeff" + CSV.replace("\n", "\r\n")),
        ("ratings.csv", CSV.rstrip("\n")),
        ("ratings.csv", CSV + "\n\n"),
        ("ratings.csv", CSV.replace("\n", "\n\n")),
        ("ratings.csv", CSV.replace("10,3,", '"10", 3 ,').replace("3.5", "+35e-1")),
        ("u.data", CSV.partition("\n")[2].replace(",", "\t")),
        ("u1.base", CSV.partition("\n")[2].replace(",", "\t")),
        ("ratings.dat", CSV.partition("\n")[2].replace(",", "::")),
        ("ratings.dat.gz", "\ufeff" + CSV.partition("\n")[2].replace(",", "::").replace("\n", "\r\n")),
        ("mine.csv", "note,Score,ITEM,user_id\nä,4,3,10\n,0,20,9\nx,3.5,3,9\n"),
        ("mine.tsv", "user\titem\trating\n10\t3\t4\n9\t20\t0\n9\t3\t3.5\n"),
        ("mine.csv", 'User ID,movie,movie_id,rating\n10,"a ""b"", c",3,4\n9,d,20,0\n9,"a ""b"", c",3,3.5\n'),
    ],
)
def test_formats_hold_the_same_ratings(put, name, text):
    dataset = read(put(name, text))
    check_small(dataset)
    assert dataset.titles is None


@pytest.mark.parametrize("name", ["ratings.csv", "ratings.csv.gz", "mine.csv"])
def test_folder_and_zip_are_searched(put, pack, tmp_path, name):
    content = gzip.compress(CSV.encode()) if name.endswith(".gz") else CSV
    files = {"README.txt": "r", "links.csv": "a,b\n1,2\n", f"__MACOSX/._{name}": "junk", f"ml/{name}": content}
    check_small(read(pack(files)))
    check_small(read(pack({**files, f"ml/old/{name}": "junk"}, compression=zipfile.ZIP_LZMA)))
    (tmp_path / "set.zip").unlink()
    put("links.csv", "a,b\n1,2\n")
    put(name, CSV)
    check_small(read(tmp_path))


@pytest.mark.parametrize(
    "name, text, titles_name, titles",
    [
        ("ratings.csv", CSV, "movies.csv", 'movieId,title,genres\n3,"Née ""x"", 1995",A|B\n77,Other,C\n'.encode()),
        ("ratings.csv", CSV, "movies.csv", b'\xef\xbb\xbfmovieId,title\r\n3,"N\xc3\xa9e ""x"", 1995"\r\n'),
        ("u.data", CSV.partition("\n")[2].replace(",", "\t"), "u.item", b'3|N\xe9e "x", 1995|01-Jan-1995||0|1\n'),
        ("ratings.dat", CSV.partition("\n")[2].replace(",", "::"), "movies.dat", b'3::N\xe9e "x", 1995::Drama\r\n'),
    ],
)
def test_titles_are_read_from_beside_the_ratings(put, pack, tmp_path, name, text, titles_name, titles):
    archive = pack({f"ml/{name}": text, f"ml/{titles_name}": titles, f"other/{titles_name}": b"3|wrong"})
    path = put(f"data/{name}", text)
    put(f"data/{titles_name}", titles)
    for given_path in (archive, path, path.parent):
        dataset = read(given_path)
        check_small(dataset)
        assert dataset.titles == ['Née "x", 1995', ""]


@pytest.mark.parametrize("beside", ["Movies.csv", "MOVIES.CSV.gz"])
def test_titles_are_found_in_any_case(put, beside):
    path = put("Ratings.csv", CSV)
    put(beside, "movieId,title\n3,Three\n")
    assert read(path).titles == read(path.parent).titles == ["Three", ""]


def test_titles_keep_joiners_and_are_cut_where_they_are_endless(put):
    path = put("ratings.csv", CSV)
    put("movies.csv", "movieId,title\n3,\u0645\u06cc\u200c\u062e \x1b[1m\n20," + "word " * 1_000_000)
    first, second = read(path).titles
    assert first == "\u0645\u06cc\u200c\u062e  [1m"
    assert len(second) <= 500 and second.endswith("word ...")


@pytest.mark.parametrize("row", ['3,"An open quote,A', '3,"Closed" and more,A'])
def test_a_quote_in_the_titles_swallows_nothing(put, row):
    path = put("ratings.csv", CSV)
    put("movies.csv", f"movieId,title,genres\n77,x,y\n{row}\n20,Twenty,B\n")
    with pytest.raises(DataError, match=r"movies\.csv: line 3: broken quotes"):
        read(path)


def test_long_names_cost_what_they_are_long(put, tmp_path):
    path = put("ratings.csv", CSV + "".join(f"{i},{i},3,1\n" for i in range(100, 3000)) + "u" * 1000 + ",3,2,1\n")
    put("movies.csv", "movieId,title\n3," + "t" * 10_000 + "\n")
    dataset = read(path)
    store.write(tmp_path / "s.h5", dataset, np.arange(len(dataset.sample_names)), "by_user")
    assert (tmp_path / "s.h5").stat().st_size < 1e6
    found = store.ClientStore(tmp_path / "s.h5")
    assert found.names("sample_names") == dataset.sample_names and found.names("titles") == dataset.titles


def test_ids_are_text_in_order_of_value_then_of_text(put):
    ids = ["b", "-3", "007", "7", "a b", "9223372036854775807", "10", "é", "+8", "1.0"]
    expected = ["-3", "007", "7", "+8", "10", "9223372036854775807", "1.0", "a b", "b", "é"]
    dataset = read(put("r.csv", "user,item,rating\n" + "".join(f"{name},{name},1\n" for name in ids)))
    assert dataset.sample_names == dataset.feature_names == expected
    assert cells(dataset) == {(name, name): 1.0 for name in ids}
    assert read(put("ratings.dat", b"1::J\xf6rg::2::3\n")).feature_names == ["Jörg"]


@pytest.mark.parametrize(
    "rows, kept",
    [
        ("1,1,2,50\n1,1,3,60\n1,1,4,55\n", 3),
        ("1,1,2,50\n1,1,3,50\n2,1,4,55\n", 3),
        ("1,1,2,5.5\n1,1,3,5.25\n2,1,4,1\n", 2),
        ("1,1,2,1700000000000000002\n1,1,3,1700000000000000001\n", 2),
        ("1,1,2,-5\n 1 ,1,3,-6\n", 2),
        ("1,1,2," + "0" * 5000 + "7\n1,1,3,6\n", 2),
    ],
)
def test_of_duplicates_the_last_is_kept(put, capsys, rows, kept):
    dataset = read(put("r.csv", "user,item,rating,timestamp\n" + rows))
    assert cells(dataset)["1", "1"] == kept
    assert capsys.readouterr().err == f"{rows.count('1,1,') + rows.count(' ,1,') - 1} duplicate ratings: kept the last of each\n"
    untimed = "".join(row.rpartition(",")[0] + "\n" for row in rows.splitlines() if row.strip().startswith("1"))
    assert cells(read(put("r.csv", "user,item,rating\n" + untimed))) == {("1", "1"): float(untimed.split(",")[-1])}


def test_stated_range_is_kept_and_nothing_is_said_without_duplicates(put, capsys):
    path = put("r.csv", CSV)
    assert read(path, rating_minimum=-1.0, rating_maximum=5.0).rating_range == (-1.0, 5.0)
    assert read(path, rating_maximum=4.0).rating_range == (0.0, 4.0)
    text = message(path, rating_minimum=0.5, rating_maximum=5.0)
    assert "line 3" in text and "0.5 to 5" in text
    assert read(put("r.csv", "user,item,rating\n1,1,-2.5\n1,2,3\n")).rating_range == (-2.5, 3.0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("identity", ["a\u00a0b", "\u0645\u06cc\u200c\u062e", "\U0001f468\u200d\U0001f469", "0" * 500 + "7"])
def test_ids_may_hold_joiners_and_zeros(put, identity):
    dataset = read(put("r.csv", f"user,item,rating\n{identity},{identity},2\n"))
    assert dataset.sample_names == dataset.feature_names == [identity]


IDS = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.integers(1, 30).map(str),
    st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters=":\ufeff"), min_size=1),
).filter(lambda text: not (text.lstrip("+-").isdecimal() and not -(2**63) <= int(text) < 2**63))
ROWS = st.lists(st.tuples(IDS, IDS, st.floats(-10, 10), st.integers(0, 2**40)), min_size=1, max_size=20)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, block=st.sampled_from([1, 40, 1 << 20]), end=st.sampled_from(["\n", "\r\n"]))
def test_ratings_come_back_from_every_format(put, monkeypatch, rows, block, end):
    monkeypatch.setattr(ratings_files, "_BLOCK", block)
    expected = {}
    for user, item, rating, _ in sorted(rows, key=lambda row: row[3]):
        expected[user, item] = rating
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end).writerows(
        [("timestamp", "movieId", "userId", "rating"), *((t, i, u, r) for u, i, r, t in rows)]
    )
    assert cells(read(put("ratings.csv", text.getvalue()))) == expected
    for name, mark in (("u.data", "\t"), ("ratings.dat", "::")):
        text = "".join(mark.join(map(str, row)) + end for row in rows)
        assert cells(read(put(name, text))) == expected


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(*[st.integers(0, 99)] * 2, st.decimals(-99, 99, places=3), st.integers(0, 9)), min_size=1),
    mark=st.sampled_from([",", "\t", "::"]),
)
def test_blocks_of_plain_numbers_are_read_as_their_lines(put, monkeypatch, rows, mark):
    header = "" if mark == "::" else mark.join(["user", "item", "rating", "timestamp"]) + "\n"
    path = put("ratings.txt", header + "".join(mark.join(map(str, row)) + "\n" for row in rows))
    with monkeypatch.context() as context:
        context.setattr(ratings_files, "_read_lines", None)
        fast = read(path)
    with monkeypatch.context() as context:
        context.setattr(ratings_files, "_read_numbers", lambda *arguments: None)
        slow = read(path)
    assert cells(fast) == cells(slow)
    assert (fast.sample_names, fast.feature_names) == (slow.sample_names, slow.feature_names)


@pytest.mark.parametrize(
    "line, words",
    [
        ("1,2,5.5,4", "5.5 is outside"),
        ("1,2,,4", "'' is missing"),
        ("1,2,nan,4", "'nan' is missing"),
        ("1,2,inf,4", "'inf' is infinite"),
        ("1,2,1e999,4", "'1e999' is infinite"),
        ("1,2,four,4", "'four' isn't a number"),
        ("1,2,1_0,4", "'1_0' isn't a number"),
        ("1,2,3,now", "the timestamp 'now' isn't a number"),
        ("1,2,3,", "the timestamp '' is missing"),
        ("1,2,3", "3 cells"),
        ("1,2,3,4,5", "5 cells"),
        ("1", "1 cell "),
        (",2,3,4", "the user id is empty"),
        ("1, ,3,4", "the item id is empty"),
        ("9223372036854775808,2,3,4", "the user id '9223372036854775808' overflows 64 bits"),
        ("1,-9223372036854775809,3,4", "the item id '-9223372036854775809' overflows"),
        ("1," + "9" * 5000 + ",3,4", "overflows 64 bits"),
        ("1,a\0b,3,4", "control character"),
        ("1,a\u2028b,3,4", "control character"),
        ("1," + "x" * 1001 + ",3,4", "has 1001 characters"),
        ("0" * 5000 + "1,2,3,4", "has 5001 characters"),
        ('1,"2,3,4', "broken quotes"),
    ],
)
@pytest.mark.parametrize("block", [1, 1 << 20])
def test_bad_line_is_named(put, monkeypatch, line, words, block):
    monkeypatch.setattr(ratings_files, "_BLOCK", block)
    path = put("ratings.csv", f"userId,movieId,rating,timestamp\r\n1,1,3,4\r\n2,1,3,4\r\n{line}\r\n3,3,3,3\r\n")
    text = message(path, rating_minimum=0.5, rating_maximum=5.0)
    assert "line 4:" in text and words in text and "userId" not in text


def test_bad_line_is_named_without_a_header(put):
    assert "line 1: the rating 'x'" in message(put("u.data", "1\t2\tx\t4\n"))
    assert "line 2: 3 cells (separated by '::')" in message(put("ratings.dat", "1::2::3::4\n1::2::3\n"))
    assert "line 1: the rating '' is missing" in message(put("ratings.dat", "1::2::::4\n"))


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "empty"),
        ("\n\n", "line 1 is empty"),
        (CSV[: CSV.index("\n") + 1], "a header only"),
        (CSV[: CSV.index("\n")] + "\n\r\n\n", "a header only"),
        ("a,b,c\n1,2,3\n", "no column user (userid, user) and no column item"),
        ("userId,stars,when\n1,2,3\n", "'userId', 'stars', 'when'"),
        ("user\titem\tstars\n1\t2\t3\n", "no column rating (rating, score) among 'user', 'item', 'stars'"),
        ("user;item;rating\n1;2;3\n", "separated by commas or tabs"),
        ("1,2,3\n1,3,3\n", "no column user"),
        ("user,item,rating,Rating\n1,2,3,4\n", "several columns called rating"),
        (CSV.encode("utf-16"), "byte 0xff isn't text"),
        (b"user,item,rating\n1,2,3\n1,\xe9,3\n", "line 3: byte 0xe9 isn't text"),
    ],
)
def test_unusable_file(put, text, words):
    assert words in message(put("ratings.csv", text))


def test_broken_archives(put, pack, tmp_path):
    path = put("ratings.csv.gz", CSV * 20)
    path.write_bytes(path.read_bytes()[:-9])
    assert "truncated or corrupt gzip" in message(path)
    assert "not gzip" in message(put("r2.csv", CSV).rename(tmp_path / "r2.csv.gz"))
    big = CSV + "".join(f"{i},{i * i},{i % 5},{i}\n" for i in range(2000))
    path = pack({"ratings.csv": big}, compression=zipfile.ZIP_DEFLATED)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "truncated or corrupt zip" in message(path)
    path.write_bytes(b"")
    assert "truncated or corrupt zip" in message(path)
    rng = np.random.default_rng(0)
    for _ in range(100):  # whatever is broken, it is said in one line, or harmless
        broken = bytearray(whole)
        for place in rng.integers(0, len(whole), 3):
            broken[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        try:
            read(path)
        except DataError as error:
            assert str(error).isprintable()


def test_folder_or_zip_without_the_file_lists_what_was_found(put, pack, tmp_path):
    put("set/a.txt", "x")
    put("set/movies.csv", "movieId,title\n1,x\n")
    for path in (tmp_path / "set", pack({"a.txt": "x", "movies.csv": ""})):
        text = message(path)
        assert "no ratings file among 2 files ('a.txt', 'movies.csv')" in text and "u.data" in text
    assert "among 0 files" in message(pack({}))
    put("set/u.data", "1\t2\t3\t4")
    put("set/ratings.dat", PLAIN)
    assert "2 ratings files ('ratings.dat', 'u.data')" in message(tmp_path / "set")
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="data.path"):
        read("")


def test_table_of_titles_without_its_columns(put):
    path = put("ratings.csv", CSV)
    titles = put("movies.csv", "a,b\n1,2\n")
    with pytest.raises(DataError, match="columns 'a', 'b', expected movieId and title") as caught:
        read(path)
    assert str(titles) in str(caught.value)


@pytest.fixture
def server(monkeypatch, pack):
    """A stand-in for pooch, which hands out a zip of ``CSV``."""
    monkeypatch.setattr(movielens, "RATINGS_SHA256", hashlib.sha256(CSV.encode()).hexdigest())
    calls = []

    def retrieve(url, known_hash, fname, path):
        calls.append(url)
        path.mkdir(exist_ok=True)
        return str(pack({"ml-latest-small/ratings.csv": CSV}).rename(path / fname))

    fake = SimpleNamespace(retrieve=retrieve, get_logger=lambda: SimpleNamespace(setLevel=lambda level: None), calls=calls)
    monkeypatch.setitem(sys.modules, "pooch", fake)
    return fake


def test_fetch_downloads_once_and_is_loaded(server, tmp_path):
    for _ in range(2):
        path = movielens.fetch(tmp_path / "new")
        assert path == tmp_path / "new" / "ml-latest-small.zip"
        check_small(read(path))
    assert server.calls == [movielens.URL]


def test_a_broken_copy_from_before_is_to_be_removed(server, tmp_path):
    (tmp_path / "ml-latest-small.zip").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataError, match="truncated or corrupt zip.*remove it to have ml-latest-small.zip downloaded"):
        movielens.fetch(tmp_path)
    assert server.calls == [] and (tmp_path / "ml-latest-small.zip").exists()
    (tmp_path / "ml-latest-small.zip").unlink()
    check_small(read(movielens.fetch(tmp_path)))


def test_prepare_checks_the_place_before_it_downloads(server, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    for out, words in (("none/s.h5", "no such directory"), ("file/s.h5", "not a directory"), ("file", "exists")):
        assert main(["data", "prepare", "movielens", "--out", str(tmp_path / out)]) == 2
        assert words in capsys.readouterr().err
    assert main(["data", "prepare", "movielens", "--set", "data.normalize=unit", "--out", str(tmp_path / "s.h5")]) == 2
    with pytest.raises(SystemExit):
        main(["data", "prepare", "movielens", "--path", "", "--out", str(tmp_path / "s.h5")])
    assert server.calls == [] and [path.name for path in tmp_path.iterdir()] == ["file"]
    assert main(["data", "prepare", "movielens", "--out", str(tmp_path / "s.h5")]) == 0
    assert len(server.calls) == 1


def test_fetch_that_fails_says_where_to_put_the_file(server, monkeypatch, tmp_path):
    monkeypatch.setattr(movielens, "RATINGS_SHA256", "0" * 64)
    with pytest.raises(DataError, match="expected 0000.*--path"):
        movielens.fetch(tmp_path / "new")
    assert not (tmp_path / "new" / "ml-latest-small.zip").exists()

    def refuse(*arguments, **keys):
        raise ConnectionError("name resolution\nfailed")

    server.retrieve = refuse
    with pytest.raises(DataError, match="name resolution failed.*put ml-latest-small.zip .* into .*new, or give --path"):
        movielens.fetch(tmp_path / "new")
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match="pip install pooch"):
        movielens.fetch(tmp_path / "new")


def test_real_set(data_folder, tmp_path, capsys):
    folder = data_folder / "ml-latest-small"
    dataset = read(folder, rating_minimum=0.5, rating_maximum=5.0)
    assert dataset.samples.shape == (610, 9724) and dataset.samples.nnz == 100836
    assert dataset.rating_range == (0.5, 5.0) == (dataset.samples.data.min(), dataset.samples.data.max())
    assert dataset.titles[0] == "Toy Story (1995)" and all(dataset.titles)
    assert dataset.sample_names == [str(i) for i in range(1, 611)] and dataset.feature_names[-1] == "193609"
    assert cells(dataset)["1", "6"] == 4.0 and capsys.readouterr().err == ""
    with zipfile.ZipFile(tmp_path / "ml-latest-small.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("ratings.csv", "movies.csv"):
            archive.write(folder / name, f"ml-latest-small/{name}")
    zipped = read(movielens.fetch(tmp_path))  # the file is there, and of the right checksum: nothing is downloaded
    assert (zipped.samples != dataset.samples).nnz == 0 and zipped.titles == dataset.titles
