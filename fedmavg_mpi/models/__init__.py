"""The mathematics of each kind of factorization, without communication."""
