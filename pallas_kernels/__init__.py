"""Paged attention over a block pool, usable without pagedjax: reference, XLA and Pallas.

Every implementation of an operation takes the arguments of its `reference` version; kernels also
take tiles and a device. Shapes: B rows, S query tokens, H query heads, K kv heads, G = H / K, D
head dim, L layers, N blocks in the pool, T tokens per block, P blocks per block table row, A
partial sums of a product. Pools are `[L, N, K, T, D]` and are passed whole with a layer index:
slicing a layer out would copy it. Imports only jax and numpy.
"""
