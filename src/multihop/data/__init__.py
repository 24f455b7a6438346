"""Benchmark data: official formats in, one prepared layout out (see :mod:`multihop.data.splits`)."""
