"""What a run is asked to do: frozen dataclasses, read from TOML and written back with every default resolved."""

import dataclasses
import difflib
import math
import os
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path

from fedmavg_mpi.errors import ConfigError
from fedmavg_mpi.text import fits_a_line


def key(default, doc, *, choices=None, minimum=None, above=None, below=None, maximum=None):
    """A configuration key: its default, its line of the reference and the values it takes."""
    limits = {"choices": choices, "minimum": minimum, "above": above, "below": below, "maximum": maximum}
    return field(default=default, metadata={"doc": doc, **limits})


@dataclass(frozen=True)
class DataConfig:
    """Where the samples come from."""

    source: str = key(
        "synthetic", "where the samples come from", choices=("synthetic", "movielens", "expression", "matrix", "store")
    )
    path: str = key("", "file or folder of the data; a relative one is looked for below $FEDMAVG_DATA first")
    labels: str = key("", "label table or vector beside the data; empty: found in the data's folder, or none")
    samples_in: str = key("rows", "matrix: whether rows or columns of the file are samples", choices=("rows", "columns"))
    normalize: str = key(
        "none",
        "samples: none; offset: each feature less its 5th percentile, floored at 0; unit: each sample scaled to norm 1",
        choices=("none", "offset", "unit"),
    )
    n_features: int = key(2000, "synthetic: M", minimum=1)
    n_samples: int = key(10000, "synthetic: N", minimum=1)
    n_clusters: int = key(20, "synthetic: number of clusters", minimum=1)
    snr_db: float = key(-3.0, "synthetic: signal to noise ratio in decibels", minimum=-100.0, maximum=100.0)
    outlier_fraction: float = key(0.03, "synthetic: share of samples replaced by outliers", minimum=0.0, below=1.0)
    test_fraction: float = key(
        0.2, "ratings: the probability of each rating to be held out to test, drawn per seed", above=0.0, below=1.0
    )
    rating_minimum: float = key(
        0.0, "ratings: the stated range's low end, to which the data are held; both ends 0: as seen in the data"
    )
    rating_maximum: float = key(0.0, "ratings: the stated range's high end")


@dataclass(frozen=True)
class PartitionConfig:
    """Which client holds which sample."""

    scheme: str = key(
        "clustered",
        "iid: equal parts at random (Case 1); clustered: k-means groups (Case 2); label_skew: Dirichlet over labels; "
        "by_user: a client a user (ratings)",
        choices=("iid", "clustered", "label_skew", "by_user"),
    )
    n_clients: int = key(100, "P (by_user: the number of users, whatever stands here)", minimum=1)
    alpha: float = key(0.5, "label_skew: concentration of the Dirichlet distribution; smaller is more uneven", above=0.0)


@dataclass(frozen=True)
class ModelConfig:
    """What is factorized, and how it is regularized."""

    kind: str = key(
        "clustering",
        "clustering: orthogonal non-negative factorization; ratings: factorization over the observed ratings",
        choices=("clustering", "ratings"),
    )
    n_components: int = key(20, "K", minimum=1)
    init: str = key(
        "random",
        "clustering: random; or a start that looks at the data, counted as set-up: kmeans_parallel (its centres), robust (those of cal, "
        "outliers left out), nndsvd",
        choices=("random", "kmeans_parallel", "robust", "nndsvd"),
    )
    rho: float = key(1e-8, "clustering: orthogonality penalty, in units of |X|^2 / N", minimum=0.0)
    nu: float = key(1e-10, "clustering: ridge on H, in units of |X|^2 / N", minimum=0.0)
    regularization: float = key(0.1, "ratings: ridge lambda on the factors", minimum=0.0)
    bias_regularization: float = key(1.0, "ratings: ridge on the biases", minimum=0.0)
    start_deviation: float = key(0.1, "ratings with biases: standard deviation of the factors at the start", above=0.0)
    biases: bool = key(False, "ratings: a bias for each item (shared) and each user (private) on top of the mean rating")


@dataclass(frozen=True)
class AlgorithmConfig:
    """How a round goes."""

    name: str = key(
        "fedmavg",
        "fedmavg; fedavg: PCP with constant Q2; gradient_sharing: all clients, one step on W; gossip (ratings): no server, each user "
        "sends its W to a random other; centralized: pooled at the server; for clustering sncp: centralized with penalty continuation; "
        "kmeans++: pooled k-means; kmeans_parallel, bel, cal: k-means from what clients send once, by oversampled seeds, coresets or "
        "summaries with outliers (what a name fixes wins over other keys, and what it has no use for has no effect)",
        choices=(
            "fedmavg",
            "fedavg",
            "gradient_sharing",
            "gossip",
            "centralized",
            "sncp",
            "kmeans++",
            "kmeans_parallel",
            "bel",
            "cal",
        ),
    )
    q1: int = key(10, "local steps on H_p in a round", minimum=0)
    q2: int = key(10, "local steps on W in a round (the first round's, when diminishing)", minimum=1)
    q2_schedule: str = key(
        "diminishing", "diminishing: floor(Q2 / s) + 1 in round s; constant: Q2", choices=("diminishing", "constant")
    )
    clients_per_round: int = key(
        0, "m, draws a round with replacement by client size; 0 or at least P: all clients once", minimum=0
    )
    participation: str = key(
        "pcc", "pcc: clients that are not drawn still update their H_p; pcp: they do nothing", choices=("pcc", "pcp")
    )
    step_size_w: str = key(
        "global", "global: from H H' of all clients (paper); local: from the client's own", choices=("global", "local")
    )
    curvature_factor_w: float = key(
        5.0, "the 5 of the step size d = 5 lambda_max (paper): larger is slower and steadier", above=0.0
    )
    penalty_continuation: bool = key(False, "clustering: raise rho in stages until the clusters are settled")
    stage_rounds: int = key(200, "penalty continuation: longest stage, in rounds", minimum=1)
    upload_dtype: str = key(
        "same",
        "clustering, with gather: same; float32 or bfloat16: a client sends W_p - W rounded, and adds what that leaves over to its next",
        choices=("same", "float32", "bfloat16"),
    )
    upload: str = key(
        "dense",
        "dense: a client sends its whole copy of W (paper); rows (ratings): only the rows that it rated, the same result, "
        "and it shows the server which items were rated",
        choices=("dense", "rows"),
    )
    summary_size: int = key(
        0,
        "kmeans_parallel: points expected in a round of seeding (0: 2 K); bel: points sampled over all clients (0: 10 K); "
        "cal: points that a client draws in a step (0: 2 max(log N_p, K))",
        minimum=0,
    )
    seeding_rounds: int = key(5, "kmeans_parallel: rounds of seeding", minimum=1)
    outlier_share: float = key(0.03, "cal: share of the samples that are left out as outliers", minimum=0.0, below=1.0)


@dataclass(frozen=True)
class AggregationConfig:
    """How the drawn clients' copies of W are averaged."""

    method: str = key(
        "reduce",
        "reduce: sums of ranks to the server; allreduce: the drawn ranks get the average too; "
        "gather: each copy is sent and summed in client order, the same bits on any number of ranks",
        choices=("reduce", "allreduce", "gather"),
    )
    weighting: str = key(
        "clients",
        "clients: every row of W is averaged over all draws (paper); rows (ratings): over the draws that rated it",
        choices=("clients", "rows"),
    )


@dataclass(frozen=True)
class StopConfig:
    """When a run ends."""

    max_rounds: int = key(500, "round limit", minimum=0)
    rel_tol: float = key(
        1e-8,
        "relative change of the objective a round below which the run stops (a stage of penalty continuation: this or 1e-5, the larger)",
        minimum=0.0,
    )


@dataclass(frozen=True)
class RunConfig:
    """Everything else about one run."""

    seed: int = key(0, "seed of every draw", minimum=0)
    dtype: str = key("float64", "precision of the data and the factors", choices=("float64", "float32"))
    evaluate_every: int = key(1, "rounds between evaluations (objective, stop rule, metrics); 0: only at the end", minimum=0)
    checkpoint_every: int = key(
        50, "rounds between checkpoints, from which --resume goes on; 0: only where a signal stops the run", minimum=0
    )
    save_local_factors: bool = key(False, "keep H in the run file; it is the clients' own and leaves them only if asked for")
    threads: int = key(1, "BLAS threads a rank", minimum=1)
    products: str = key(
        "auto",
        "clustering, dense samples: tiles: the products with X by compiled kernels for narrow factors (one thread a rank); blas; auto: "
        "the faster one, measured once a machine and shape and kept in the user's cache folder (the run file says which)",
        choices=("auto", "tiles", "blas"),
    )
    placement: str = key(
        "size",
        "size: the most samples that a rank has are as few as can be; measured: the most seconds, by a trial before the first round "
        "(with reduce the last bits then vary from run to run)",
        choices=("size", "measured"),
    )
    progress: str = key("auto", "auto: on the server's standard error; off: none", choices=("auto", "off"))


@dataclass(frozen=True)
class Config:
    """A whole run's configuration, one attribute a section."""

    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    model: ModelConfig = ModelConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    aggregation: AggregationConfig = AggregationConfig()
    stop: StopConfig = StopConfig()
    run: RunConfig = RunConfig()


def read(path, overrides=(), kind=Config):
    """Read a configuration file.

    Parameters
    ----------
    path : path-like or None
        TOML file; None starts from the defaults.
    overrides : iterable of str
        ``section.key=value`` settings of a Config that win over the file; the value is TOML, or else a bare string.
    kind : type
        The dataclass of sections that the file describes.

    Returns
    -------
    Config, or what ``kind`` says

    Raises
    ------
    ConfigError
        An unreadable file, an unknown section or key, a value of the wrong type or out of range.
    """
    tables = {}
    if path is not None:
        try:
            text = Path(path).read_bytes().decode()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; give the path of a TOML configuration") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not text in UTF-8; give the path of a TOML configuration") from None
        tables = _parse(text, path)
    for setting in overrides:
        name, equals, value = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if not equals or not dot:
            raise ConfigError(f"--set {setting!r}: expected section.key=value, as in --set run.seed=1")
        if isinstance(tables.setdefault(section, {}), dict):
            tables[section][key] = _override_value(section, key, value.strip())
    return _build(tables, path or "--set", kind)


def parse(text):
    """The configuration that :func:`to_toml` wrote."""
    return _build(_parse(text, "config.toml"), "config.toml")


def to_toml(config):
    """The configuration as TOML, every key present."""
    lines = []
    for section in fields(config):
        lines.append(f"[{section.name}]")
        values = getattr(config, section.name)
        lines += [f"{key.name} = {_toml_value(getattr(values, key.name))}" for key in fields(values)]
        lines.append("")
    return "\n".join(lines)


def as_dict(config):
    """The configuration as a dict of sections, each a dict of keys."""
    return dataclasses.asdict(config)


def replace(config, section, **changes):
    """A copy of ``config`` with keys of one section changed."""
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **changes)})


def find_data(path):
    """Where the data lie: below ``$FEDMAVG_DATA`` if a relative path exists there, else the path as it stands."""
    base = os.environ.get("FEDMAVG_DATA")
    if base and path and not Path(path).is_absolute() and (Path(base) / path).exists():
        return Path(base) / path
    return Path(path)


def _parse(text, origin):
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a plain ValueError
        raise ConfigError(f"{origin}: not valid TOML: {error}") from None


def _override_value(section, key, text):
    """The value of a setting, in TOML; or as it stands, where it is none or where a text that isn't quoted is wanted."""
    wanted = {name: found.type for name, found in _keys(section).items()}.get(key)
    if wanted is str and not (len(text) > 1 and text[0] == text[-1] and text[0] in ("'", '"')):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _keys(section):
    """The keys of a section by name; none for an unknown one."""
    known = {found.name: found.type for found in fields(Config)}
    return {key.name: key for key in fields(known[section])} if section in known else {}


def _build(tables, origin, kind=Config):
    sections = {section.name: section.type for section in fields(kind)}
    for name, table in tables.items():
        if name not in sections:
            raise ConfigError(f"{origin}: unknown section {name!r}{_nearest(name, sections)}")
        if not isinstance(table, dict):
            raise ConfigError(f"{origin}: {name} = {table!r}, expected a section [{name}]")
    return kind(**{name: _build_section(section, name, tables.get(name, {}), origin) for name, section in sections.items()})


def _build_section(section, name, table, origin):
    keys = {key.name: key for key in fields(section)}
    for found in table:
        if found not in keys:
            raise ConfigError(f"{origin}: unknown key {f'{name}.{found}'!r}{_nearest(found, keys)}")
    return section(**{found: _check(value, keys[found], f"{origin}: {name}.{found}") for found, value in table.items()})


def _check(value, key, where):
    """The value in the key's type, if the key can take it."""
    kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", tuple: "a list of strings"}
    if key.type is float and type(value) is int:
        value = float(value)
    if key.type is tuple and type(value) is list and all(type(item) is str for item in value):
        value = tuple(value)
    if type(value) is not key.type:
        raise ConfigError(f"{where} = {value!r}, expected {kinds[key.type]}")
    limit = key.metadata
    if limit["choices"] is not None and value not in limit["choices"]:
        raise ConfigError(f"{where} = {value!r} is unknown{_nearest(value, limit['choices'])}")
    texts = {str: (value,), tuple: value}.get(key.type, ())
    if not all(map(fits_a_line, texts)):
        raise ConfigError(f"{where} = {ascii(value)}, expected text without control characters, in UTF-8")
    if key.type is float and not math.isfinite(value):
        raise ConfigError(f"{where} = {value}, expected a finite number")
    for name, broken, words in (
        ("minimum", lambda bound: value < bound, "at least"),
        ("maximum", lambda bound: value > bound, "at most"),
        ("above", lambda bound: value <= bound, "above"),
        ("below", lambda bound: value >= bound, "below"),
    ):
        if limit[name] is not None and broken(limit[name]):
            raise ConfigError(f"{where} = {value}, expected {words} {limit[name]}")
    if key.type is int and value >= 2**63:
        raise ConfigError(f"{where} = {value}, expected below 2^63")
    return value


def _nearest(word, known):
    """The words that would have been understood, the likeliest first."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{guess} known: {', '.join(known)}"


def _toml_value(value):
    """A value of a key in TOML; texts fit a line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)
