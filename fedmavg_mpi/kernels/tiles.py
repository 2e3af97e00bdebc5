"""The two products of a narrow factor with samples, W'X and XZ, in tiles that stay in registers.

BLAS is made for large square matrices: for a factor of some twenty components it reaches half of its own rate or less. Here a
tile of 5 components by 4 samples (W'X), or 5 components by 4 vectors of features (XZ), is summed in registers; features and
samples are taken in blocks, so that the factor's part stays in the innermost cache; and the samples that come next are asked
for while these are worked on, so that memory and arithmetic go on at once. Compilers don't find this form by themselves, so
the innermost loops are written in LLVM's vectors, which it turns into the machine's own, whatever their width.

Any entry of a product is summed in an order that depends on the number of features (W'X) or samples (XZ) alone, not on the
samples beside it.
"""

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.core.errors import NumbaTypeError
from numba.extending import intrinsic

from fedmavg_mpi.kernels.jit import jit

# As numba's code generator has them: "" asks for none beyond the processor family's, and some numba doesn't use by itself.
_FEATURES = (get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES).split(",")
VECTOR_BYTES = 64 if "+avx512f" in _FEATURES else 32 if "+avx" in _FEATURES else 16
LINE_BYTES = 64  # of a cache
COMPONENTS = 5 if VECTOR_BYTES == 64 else 2  # of a tile: with 16 registers in place of 32 no more than 2 x 4 sums stay in them
BESIDE = 4  # samples (W'X), or vectors of features (XZ), of a tile
BLOCK_BYTES = 1536  # of a row of W, in W'X: its rows and those of the tile's samples stay in the innermost cache
BLOCK_SAMPLES = 20  # samples that are worked on in turn, and that are asked for ahead

COMPILED = not config.DISABLE_JIT  # LLVM's vectors can't be interpreted
PROCESSOR = config.CPU_NAME or llvm.get_host_cpu_name()

_I32, _I64, _BIT = ir.IntType(32), ir.IntType(64), ir.IntType(1)


class _Vectors:
    """Emits operations on vectors of one number type."""

    def __init__(self, module, number):
        self.module = module
        self.number, self.name, self.size = (ir.DoubleType(), "f64", 8) if number == types.float64 else (ir.FloatType(), "f32", 4)
        self.lanes = VECTOR_BYTES // self.size
        self.type = ir.VectorType(self.number, self.lanes)
        self.zero = ir.Constant(self.type, [0.0] * self.lanes)

    def declared(self, name, result, arguments):
        """LLVM's own function of this name."""
        return self.module.globals.get(name) or ir.Function(self.module, ir.FunctionType(result, arguments), name)

    def load(self, build, pointer, mask=None, lanes=None):
        vector = ir.VectorType(self.number, lanes or self.lanes)
        pointer = build.bitcast(pointer, vector.as_pointer())
        if mask is None:
            value = build.load(pointer)
            value.align = self.size
            return value
        name = f"llvm.masked.load.v{vector.count}{self.name}.p0"
        call = self.declared(name, vector, [pointer.type, _I32, mask.type, vector])
        return build.call(call, [pointer, _I32(self.size), mask, ir.Constant(vector, [0.0] * vector.count)])

    def store(self, build, value, pointer, mask=None):
        pointer = build.bitcast(pointer, value.type.as_pointer())
        if mask is None:
            build.store(value, pointer).align = self.size
            return
        name = f"llvm.masked.store.v{value.type.count}{self.name}.p0"
        call = self.declared(name, ir.VoidType(), [value.type, pointer.type, _I32, mask.type])
        build.call(call, [value, pointer, _I32(self.size), mask])

    def first_lanes(self, build, count, lanes=None):
        """The mask of the first ``count`` lanes."""
        lanes = lanes or self.lanes
        return build.icmp_signed("<", ir.Constant(ir.VectorType(_I64, lanes), list(range(lanes))), _spread(build, count, lanes))

    def multiply_add(self, build, x, y, z):
        return build.call(self.declared(f"llvm.fmuladd.v{self.lanes}{self.name}", self.type, [self.type] * 3), [x, y, z])

    def spread(self, build, value):
        """A vector of one value."""
        return _spread(build, value, self.lanes)

    def prefetch(self, build, pointer):
        """Ask for a cache line, for the outer caches: it mustn't take the places through which the inner one is filled."""
        byte = ir.IntType(8).as_pointer()
        call = self.declared("llvm.prefetch.p0", ir.VoidType(), [byte, _I32, _I32, _I32])
        build.call(call, [build.bitcast(pointer, byte), _I32(0), _I32(1), _I32(1)])

    def sums(self, build, vectors):
        """The sum over lanes of each of four vectors, as one vector of four."""
        width = 1
        while len(vectors) > 1 and width < self.lanes:  # neighbouring lanes of two vectors are added at once, side by side
            even = [i + j + side for i in range(0, self.lanes, 2 * width) for side in (0, self.lanes) for j in range(width)]
            odd = [i + width for i in even]
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [build.fadd(_pick(build, x, y, even), _pick(build, x, y, odd)) for x, y in pairs]
            width *= 2
        if len(vectors) > 1:  # of two lanes each
            vectors = [_pick(build, *vectors, list(range(BESIDE)))]
        (total,) = vectors
        while total.type.count > BESIDE:
            half = total.type.count // 2
            low, high = (_pick(build, total, total, list(range(i, i + half))) for i in (0, half))
            total = build.fadd(low, high)
        return total


def _pick(build, x, y, lanes):
    return build.shuffle_vector(x, y, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))


def _spread(build, value, lanes):
    undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    return _pick(build, build.insert_element(undefined, value, _I32(0)), undefined, [0] * lanes)


def _function(module, name, arguments):
    """A function to be filled and a builder in it, or the one of this name that is there already and None."""
    if name in module.globals:
        return module.globals[name], None
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def _loop(build, count, step, carried, body):
    """``carried = body(i, carried)`` for i = 0, step, ... below ``count``; leaves the builder after it and returns the last."""
    before = build.block
    head, inside, after = (build.append_basic_block(name) for name in ("head", "inside", "after"))
    build.branch(head)
    build.position_at_end(head)
    index = build.phi(_I64)
    index.add_incoming(_I64(0), before)
    now = []
    for value in carried:
        now.append(build.phi(value.type))
        now[-1].add_incoming(value, before)
    build.cbranch(build.icmp_signed("<", index, count), inside, after)
    build.position_at_end(inside)
    for phi, value in zip(now, body(index, now), strict=True):
        phi.add_incoming(value, build.block)
    index.add_incoming(build.add(index, step), build.block)
    build.branch(head)
    build.position_at_end(after)
    return now


def _rows(build, pointer, stride, count):
    return [build.gep(pointer, [build.mul(stride, _I64(i))]) for i in range(count)]


def _feature_sums(module, number, n_components):
    """out[k, i] (+)= sum_m w[k, m] x[i, m], of ``n_components`` components and up to 4 samples; ``ahead`` is asked for meanwhile."""
    vectors = _Vectors(module, number)
    pointer = vectors.number.as_pointer()
    name = f"feature_sums_{vectors.name}_{n_components}"
    function, build = _function(module, name, [pointer, _I64, pointer, _I64, pointer, _I64, _I64, _I64, _BIT, pointer])
    if build is None:
        return function
    w, w_stride, x, x_stride, out, out_stride, n_samples, n_features, adds, ahead = function.args
    w_rows = _rows(build, w, w_stride, n_components)
    x_rows = []
    for i in range(BESIDE):  # in place of a sample that is missing the last one
        here = build.select(build.icmp_signed("<", _I64(i), n_samples), _I64(i), build.sub(n_samples, _I64(1)))
        x_rows.append(build.gep(x, [build.mul(here, x_stride)]))

    def multiply(at, sums, mask=None):
        x_here = [vectors.load(build, build.gep(row, [at]), mask) for row in x_rows]
        w_here = [vectors.load(build, build.gep(row, [at]), mask) for row in w_rows]
        pairs = ((left, right) for left in w_here for right in x_here)
        return [vectors.multiply_add(build, left, right, total) for (left, right), total in zip(pairs, sums, strict=True)]

    def body(at, sums):
        vectors.prefetch(build, build.gep(ahead, [at]))
        return multiply(at, sums)

    lanes = _I64(vectors.lanes)
    whole = build.mul(build.sdiv(n_features, lanes), lanes)
    sums = _loop(build, whole, lanes, [vectors.zero] * (n_components * BESIDE), body)
    rest = vectors.first_lanes(build, build.sub(n_features, whole))
    sums = _loop(build, build.sub(n_features, whole), lanes, sums, lambda at, sums: multiply(build.add(whole, at), sums, rest))
    present = vectors.first_lanes(build, n_samples, BESIDE)
    for k, row in enumerate(_rows(build, out, out_stride, n_components)):
        total = vectors.sums(build, sums[BESIDE * k : BESIDE * (k + 1)])
        before = vectors.load(build, row, present, BESIDE)
        before = build.select(adds, before, ir.Constant(before.type, [0.0] * BESIDE))
        vectors.store(build, build.fadd(before, total), row, present)
    build.ret_void()
    return function


def _sample_sums(module, number, n_components, whole):
    """out[k, m] = max(floor, start[k, m] + sum_i z[i, k] x[i, m]), of ``n_components`` components.

    Of 4 vectors of features; of as many features as there are where not ``whole``.
    """
    vectors = _Vectors(module, number)
    pointer = vectors.number.as_pointer()
    name = f"sample_sums_{vectors.name}_{n_components}_{'whole' if whole else 'part'}"
    function, build = _function(module, name, [pointer, _I64] * 4 + [_I64, _I64, vectors.number, pointer])
    if build is None:
        return function
    z, z_stride, x, x_stride, start, start_stride, out, out_stride, n_samples, n_features, floor, ahead = function.args
    places = [_I64(i * vectors.lanes) for i in range(BESIDE)]
    masks = [None if whole else vectors.first_lanes(build, build.sub(n_features, place)) for place in places]

    def tile(pointer, stride):
        rows = _rows(build, pointer, stride, n_components)
        return [(build.gep(row, [place]), mask) for row in rows for place, mask in zip(places, masks, strict=True)]

    def body(i, sums):
        vectors.prefetch(build, build.gep(ahead, [build.mul(i, _I64(LINE_BYTES // vectors.size))]))
        x_row, z_row = build.gep(x, [build.mul(i, x_stride)]), build.gep(z, [build.mul(i, z_stride)])
        x_here = [vectors.load(build, build.gep(x_row, [place]), mask) for place, mask in zip(places, masks, strict=True)]
        z_here = [vectors.spread(build, build.load(build.gep(z_row, [_I64(k)]))) for k in range(n_components)]
        pairs = ((left, right) for left in z_here for right in x_here)
        return [vectors.multiply_add(build, left, right, total) for (left, right), total in zip(pairs, sums, strict=True)]

    sums = _loop(build, n_samples, _I64(1), [vectors.load(build, *place) for place in tile(start, start_stride)], body)
    floor = vectors.spread(build, floor)
    for total, place in zip(sums, tile(out, out_stride), strict=True):
        total = build.select(build.fcmp_ordered("<", total, floor), floor, total)  # what is not a number stays so
        vectors.store(build, total, *place)
    build.ret_void()
    return function


def _array(context, build, kind, value):
    """Pointer and row stride (in elements) of a matrix whose rows are without gaps."""
    array = context.make_array(kind)(context, build, value)
    stride = cgutils.unpack_tuple(build, array.strides, 2)[0]
    return array.data, build.sdiv(stride, _I64(kind.dtype.bitwidth // 8))


def _check_numbers(*kinds):
    """Refuse to compile for arrays that aren't all of one precision: their bytes would be taken for other numbers."""
    if kinds[0].dtype not in (types.float64, types.float32) or any(kind.dtype != kinds[0].dtype for kind in kinds):
        raise NumbaTypeError(f"{', '.join(map(str, kinds))}: expected all float64 or all float32")


def _entry(build, matrix, row, column):
    pointer, stride = matrix
    return build.gep(pointer, [build.add(build.mul(row, stride), column)])


def _call_one_of(build, choice, functions, arguments):
    """Call ``functions[choice]``; none where there is no such one."""
    done = build.append_basic_block("done")
    switch = build.switch(choice, done)
    for value, function in functions.items():
        block = build.append_basic_block("case")
        switch.add_case(_I64(value), block)
        with build.goto_block(block):
            build.call(function, arguments)
            build.branch(done)
    build.position_at_end(done)


@intrinsic
def feature_sums_tile(typing, w, x, out, k, i, m, n_components, n_samples, n_features, adds, ahead):
    """A tile of :func:`multiply_features` whose first entries are at k, i and m; ``ahead``: elements from there to what comes next."""

    def emit(context, build, signature, values):
        w, x, out = (_array(context, build, kind, value) for kind, value in zip(signature.args[:3], values[:3], strict=True))
        k, i, m, n_components, n_samples, n_features, adds, ahead = values[3:]
        first = _entry(build, x, i, m)
        choices = {n: _feature_sums(build.module, signature.args[1].dtype, n) for n in range(1, COMPONENTS + 1)}
        given = [_entry(build, w, k, m), w[1], first, x[1], _entry(build, out, k, i), out[1], n_samples, n_features]
        _call_one_of(build, n_components, choices, [*given, build.icmp_signed("!=", adds, _I64(0)), build.gep(first, [ahead])])
        return context.get_dummy_value()

    _check_numbers(w, x, out)
    return types.void(w, x, out, *[types.int64] * 8), emit


@intrinsic
def sample_sums_tile(typing, z, x, start, out, k, i, m, n_components, n_samples, n_features, floor, ahead):
    """A tile of :func:`sum_of_samples` whose first entries are at k, i and m; ``ahead``: elements from there to what comes next."""

    def emit(context, build, signature, values):
        arrays = zip(signature.args[:4], values[:4], strict=True)
        z, x, start, out = (_array(context, build, kind, value) for kind, value in arrays)
        k, i, m, n_components, n_samples, n_features, floor, ahead = values[4:]
        number = signature.args[1].dtype
        lanes = _Vectors(build.module, number).lanes
        whole = build.zext(build.icmp_signed(">=", n_features, _I64(BESIDE * lanes)), _I64)
        kinds = [(n, part) for n in range(1, COMPONENTS + 1) for part in (0, 1)]
        choices = {2 * n + part: _sample_sums(build.module, number, n, part == 1) for n, part in kinds}
        first = _entry(build, x, i, m)
        given = [
            _entry(build, z, i, k),
            z[1],
            first,
            x[1],
            _entry(build, start, k, m),
            start[1],
            _entry(build, out, k, m),
            out[1],
        ]
        choice = build.add(build.mul(n_components, _I64(2)), whole)
        _call_one_of(build, choice, choices, [*given, n_samples, n_features, floor, build.gep(first, [ahead])])
        return context.get_dummy_value()

    _check_numbers(z, x, start, out)
    return types.void(z, x, start, out, *[types.int64] * 6, x.dtype, types.int64), emit


@jit
def _has_whole_rows(array):
    return array.shape[1] < 2 or array.size == 0 or array.strides[1] == array.itemsize


@jit
def multiply_features(w, x, out):
    """``out[k, i] = sum_m w[k, m] x[i, m]``: W'X of the samples x.

    Parameters
    ----------
    w : ndarray (K x M)
    x : ndarray (n x M)
    out : ndarray (K x n)
        Rows of all three without gaps, of one precision.
    """
    n_components, n_features = w.shape
    if x.shape[1] != n_features or out.shape != (n_components, x.shape[0]):
        raise ValueError("shapes that don't fit each other")  # or memory beyond them would be read and written
    if not (_has_whole_rows(w) and _has_whole_rows(x) and _has_whole_rows(out)):
        raise ValueError("rows with gaps")
    block = BLOCK_BYTES // x.itemsize
    if n_features == 0:
        out[:] = 0
    for first in range(0, x.shape[0], BLOCK_SAMPLES):
        last = min(first + BLOCK_SAMPLES, x.shape[0])
        # From the block's first sample to what is asked for, a line with each vector; after the last block nothing comes.
        ahead = BLOCK_SAMPLES * n_features if last < x.shape[0] else 0
        for m in range(0, n_features, block):
            width = min(block, n_features - m)
            for i in range(first, last, BESIDE):
                for k in range(0, n_components, COMPONENTS):
                    components, samples = min(COMPONENTS, n_components - k), min(BESIDE, last - i)
                    away = ahead - (i - first) * n_features - m
                    feature_sums_tile(w, x, out, k, i, m, components, samples, width, m > 0, away)
                    if k < BESIDE * COMPONENTS:  # all of the next block has been asked for by then
                        ahead += width


@jit
def sum_of_samples(z, x, start, out, floor):
    """``out[k, m] = max(floor, start[k, m] + sum_i z[i, k] x[i, m])``.

    Parameters
    ----------
    z : ndarray (n x K)
        n >= 1.
    x : ndarray (n x M)
    start, out : ndarray (K x M)
        One array or two that don't overlap. Rows of all four without gaps, of one precision.
    floor : float
        Of the same precision.
    """
    n_components, n_features = out.shape
    if z.shape != (x.shape[0], n_components) or x.shape[1] != n_features or start.shape != out.shape:
        raise ValueError("shapes that don't fit each other")  # as above
    if not (_has_whole_rows(z) and _has_whole_rows(x) and _has_whole_rows(start) and _has_whole_rows(out)):
        raise ValueError("rows with gaps")
    line = LINE_BYTES // x.itemsize
    width = BESIDE * VECTOR_BYTES // x.itemsize
    none = x.dtype.type(-np.inf)
    for i in range(0, x.shape[0], BLOCK_SAMPLES):
        samples = min(BLOCK_SAMPLES, x.shape[0] - i)
        is_last = i + samples == x.shape[0]
        ahead = 0 if is_last else BLOCK_SAMPLES * n_features
        bound = floor if is_last else none
        for m in range(0, n_features, width):
            for k in range(0, n_components, COMPONENTS):
                components = min(COMPONENTS, n_components - k)
                if i == 0:
                    sample_sums_tile(z, x, start, out, k, i, m, components, samples, n_features - m, bound, ahead - m)
                else:
                    sample_sums_tile(z, x, out, out, k, i, m, components, samples, n_features - m, bound, ahead - m)
                if k < width // line * COMPONENTS:
                    ahead += samples * line


@jit
def add_samples(z, x, out):
    """``out[k, m] += sum_i z[i, k] x[i, m]``: adds XZ of the samples x. As in :func:`sum_of_samples`, and n may be 0."""
    sum_of_samples(z, x, out, out, x.dtype.type(-np.inf))


if not COMPILED:

    def multiply_features(w, x, out):
        """As above."""
        np.matmul(w, x.T, out=out)

    def sum_of_samples(z, x, start, out, floor):
        """As above."""
        np.maximum(start + z.T @ x, floor, out=out)

    def add_samples(z, x, out):
        """As above."""
        out += z.T @ x
