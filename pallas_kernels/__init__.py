"""Paged attention over a block pool, usable without pagedjax: reference, XLA and Pallas.

Every implementation of an op takes the arguments of `reference`; kernels also take tiles and a
device. Shapes: B rows, S query tokens, H query
heads, K kv heads, G = H / K, D head dim, L layers, N blocks in the pool, T tokens per block,
P blocks per table row. Pools are `[L, N, K, T, D]` and are passed whole with a layer index:
slicing a layer out would copy it. Imports jax and numpy alone.
"""
