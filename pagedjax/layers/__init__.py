"""The parts of a transformer layer, the paged KV pool, and the interface to the attention kernels.

Imports `pallas_kernels`, `architecture`, `devices` and `config`.
"""
