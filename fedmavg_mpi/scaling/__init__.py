"""Scaling studies: runs over numbers of ranks, and a cost model that is fitted to measured pieces and compared with them."""
