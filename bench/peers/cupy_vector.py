"""Times of CuPy's sums and dot products, one line each: what, elements, microseconds (median of device times).

    python3 bench/peers/cupy_vector.py

BenchmarkReductions of spmd/gokernel/sample prints ours.
"""
import cupy as cp


def measure(what, n, fn):
    times = []
    for _ in range(3):
        fn()
    for _ in range(50):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        for _ in range(10):
            fn()
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, end) * 100)
    print(f"{what} {n} {sorted(times)[len(times) // 2]:.2f}")


for n in 10_000, 1_000_000, 100_000_000:
    x, y = cp.ones(n, cp.float32), cp.full(n, 2, cp.float32)
    measure("sum", n, lambda: x.sum())
    measure("dot", n, lambda: cp.dot(x, y))
    measure("max", n, lambda: x.max())
