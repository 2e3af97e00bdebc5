"""W'X and XZ over a rank's samples: one class a way of forming them.

``multiply`` and ``add`` take a range of samples. Where ``by_client`` is set, the bits of a product depend on the samples that
are multiplied together with it, so that a result that mustn't depend on the number of ranks is formed client by client.
"""

import numpy as np
from scipy import sparse

from fedmavg_mpi.kernels import tiles


class Tiles:
    """Dense samples, by the compiled products for narrow factors."""

    name, by_client = "tiles", False

    def __init__(self, samples):
        self.samples = samples

    def multiply(self, w, begin, end, out):
        """``out`` (K x rows) = W'X, with w (K x M)."""
        tiles.multiply_features(w, self.samples[begin:end], out)

    def add(self, z, begin, end, out):
        """``out`` (K x M) += XZ, with z (rows x K)."""
        tiles.add_samples(z, self.samples[begin:end], out)


class Blas(Tiles):
    """Dense samples, by BLAS, in the orientations in which OpenBLAS is fastest."""

    name, by_client = "blas", True

    def multiply(self, w, begin, end, out):
        """As in :class:`Tiles`."""
        np.matmul(np.asfortranarray(w), self.samples[begin:end].T, out=out)

    def add(self, z, begin, end, out):
        """As in :class:`Tiles`."""
        out += np.ascontiguousarray(z.T) @ self.samples[begin:end]


class Sparse(Blas):
    """Sparse samples, by scipy: the cost follows the number of values."""

    name = "sparse"

    def multiply(self, w, begin, end, out):
        """As in :class:`Tiles`."""
        out[:] = (self.samples[begin:end] @ np.ascontiguousarray(w.T)).T

    def add(self, z, begin, end, out):
        """As in :class:`Tiles`."""
        out += (self.samples[begin:end].T @ z).T


DENSE = {products.name: products for products in (Tiles, Blas)}


def products_of(samples, dense):
    """The products with these samples; ``dense`` names the way for a dense matrix."""
    return Sparse(samples) if sparse.issparse(samples) else DENSE[dense](samples)
