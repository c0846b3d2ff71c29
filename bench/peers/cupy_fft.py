"""Times of CuPy's Fourier transforms, one line each: shape, microseconds (median of device times).

    python3 bench/peers/cupy_fft.py

BenchmarkForward of spmd/fft prints ours. Both are cuFFT's, out of place, of complex64; CuPy plans once, as we do.
"""
import cupy as cp
from cupyx.scipy.fft import get_fft_plan


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


for name, shape, axes in (("10000", (10000,), (0,)), ("1000x1000", (1000, 1000), (1,)), ("1000000", (10**6,), (0,)),
                          ("10000x10000", (10000, 10000), (0, 1)), ("100000000", (10**8,), (0,))):
    x = cp.ones(shape, cp.complex64)
    y = cp.empty_like(x)
    plan = get_fft_plan(x, axes=axes)
    measure(name, lambda: plan.fft(x, y, cp.cuda.cufft.CUFFT_FORWARD))
    del x, y, plan
    cp.get_default_memory_pool().free_all_blocks()
