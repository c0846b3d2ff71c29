"""Times of CuPy's reductions, scans, sorts and random numbers beside ours, one line each: what, elements, our microseconds,
CuPy's, and their ratio. Times are medians, of calls that follow each other on the device.

    SPMDTEST_DEVICE=cuda go test -run '^$' -bench Library -benchtime 1x ./spmd/vector | tee ours.txt
    python3 bench/peers/cupy_vector.py ours.txt
"""
import re
import sys

import cupy as cp

ours = {}
if len(sys.argv) > 1:
    for line in open(sys.argv[1]):
        found = re.match(r"BenchmarkLibrary/(\w+)/(\d+)\S*\s.*?([\d.e+-]+) us", line)
        if found:
            ours[found[1], int(found[2])] = float(found[3])


def time(fn):
    times = []
    for _ in range(3):
        fn()
    for _ in range(20):
        start, end = cp.cuda.Event(), cp.cuda.Event()
        start.record()
        for _ in range(10):
            fn()
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(start, end) * 100)
    return sorted(times)[len(times) // 2]


def measure(what, n, *ways):
    """Of several ways to the same CuPy's quickest counts."""
    theirs = min(time(fn) for fn in ways)
    mine = ours.get((what, n))
    print(f"{what:16} {n:10} {mine or float('nan'):11.2f} {theirs:11.2f} {(mine or float('nan')) / theirs:7.3f}", flush=True)


rng = cp.random.default_rng(1)
print(f"{'':16} {'elements':>10} {'ours us':>11} {'CuPy us':>11} {'ratio':>7}")
for n in 10_000, 1_000_000, 100_000_000:
    x, y = cp.random.randn(n, dtype=cp.float32), cp.random.randn(n, dtype=cp.float32)
    x8 = cp.random.randn(n, dtype=cp.float64)
    keep = cp.random.randint(0, 2, n, dtype=cp.int8).astype(bool)
    measure("sum", n, lambda: x.sum())
    measure("dot", n, lambda: cp.dot(x, y))
    measure("max", n, lambda: x.max())
    measure("argmin", n, lambda: x.argmin())
    measure("histogram", n, lambda: cp.histogram(x, 256, (-4, 4)))
    measure("select", n, lambda: x[keep], lambda: cp.compress(keep, x))
    measure("scan_float32", n, lambda: cp.cumsum(x))
    measure("scan_float64", n, lambda: cp.cumsum(x8))
    measure("scan_int32", n, lambda: cp.cumsum(x.view(cp.int32), dtype=cp.int32))
    measure("sort_float32", n, lambda: cp.sort(x))
    measure("sort_uint32", n, lambda: cp.sort(x.view(cp.uint32)))
    measure("sort_float64", n, lambda: cp.sort(x8))
    measure("sort_int64", n, lambda: cp.sort(x8.view(cp.int64)))
    measure("argsort_float32", n, lambda: cp.argsort(x))
    measure("uniform_float32", n, lambda: cp.random.rand(n, dtype=cp.float32), lambda: rng.random(n, dtype=cp.float32))
    measure("uniform_float64", n, lambda: cp.random.rand(n), lambda: rng.random(n))
    measure("normal_float32", n, lambda: cp.random.randn(n, dtype=cp.float32), lambda: rng.standard_normal(n, dtype=cp.float32))
    measure("normal_float64", n, lambda: cp.random.randn(n), lambda: rng.standard_normal(n))
