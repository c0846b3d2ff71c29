"""Times of CuPy's products of a CSR matrix and a vector, by cuSPARSE: elements, microseconds (median of device times).

    python3 bench/peers/cupy_sparse.py

BenchmarkMultiply of spmd/blas prints ours. The matrix is the five-point stencil of a square, in float64.
"""
import math

import cupy as cp
import cupyx
from cupyx import cusparse


def stencil(side):
    n = side * side
    row = cp.arange(n, dtype=cp.int32)
    i, j = row // side, row % side
    inside = cp.stack([i > 0, j > 0, cp.ones(n, bool), j < side - 1, i < side - 1], axis=1)
    columns = cp.stack([row - side, row - 1, row, row + 1, row + side], axis=1)[inside]
    values = cp.broadcast_to(cp.array([-1.0, -1, 4, -1, -1]), (n, 5))[inside]
    start = cp.zeros(n + 1, cp.int32)
    start[1:] = cp.cumsum(inside.sum(axis=1)).astype(cp.int32)
    return cupyx.scipy.sparse.csr_matrix((values, columns, start), shape=(n, n))


def measure(what, fn):
    times = []
    for _ in range(3):
        fn()
    for _ in range(30):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        for _ in range(10):
            fn()
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, end) * 100)
    print(f"{what} {sorted(times)[len(times) // 2]:.2f}", flush=True)


for n in 10**4, 10**6, 10**8:
    a = stencil(math.isqrt(n // 5))
    x = cp.ones(a.shape[0])
    y = cp.empty_like(x)
    measure(n, lambda: a @ x)
    measure(f"{n} into memory that is there", lambda: cusparse.spmv(a, x, y, 1.0, 0.0))
    del a, x, y
    cp.get_default_memory_pool().free_all_blocks()
