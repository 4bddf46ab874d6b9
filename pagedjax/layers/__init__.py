"""The parts of a transformer layer, the paged pool, and the seam to the attention kernels.

Imports `pallas_kernels`, `devices`, `config`.
"""
