"""MPI's collectives as mpi4py calls them: a peer of bench sweep.

    mpirun -np N python3 mpi4py_peer.py --memory host --case allreduce:float32:1024:100 ...

A case is op:type:elements:calls. elements is the length of a rank's larger buffer. calls are made back to back in one timed
iteration. Rank 0 prints one JSON line for each case: times per call of the slowest rank, in microseconds, and how many
elements were wrong.

--memory host    buffers in host memory
--memory staged  CuPy arrays, copied to and from host memory around each call
--memory aware   CuPy arrays handed to an MPI that is built for them
"""
import argparse
import array
import json
import time

from mpi4py import MPI

TYPES = {
    "float32": ("f", MPI.FLOAT), "float64": ("d", MPI.DOUBLE), "int8": ("b", MPI.INT8_T), "uint8": ("B", MPI.UINT8_T),
    "int32": ("i", MPI.INT32_T), "uint32": ("I", MPI.UINT32_T), "int64": ("q", MPI.INT64_T), "uint64": ("Q", MPI.UINT64_T),
}
ROOT = 0
PERIOD = 7  # of the inputs

world = MPI.COMM_WORLD
rank, ranks = world.rank, world.size


def value(r, i):
    """Element i of rank r's input: small, so that sums are exact in every type up to 127 ranks."""
    return (r + i % PERIOD) % 2


def total(i):
    return sum(value(r, i) for r in range(ranks))


def sequence(code, n, element):
    """n elements of a sequence that repeats after PERIOD."""
    once = array.array(code, [element(i) for i in range(PERIOD)])
    return (once * (n // PERIOD + 1))[:n]


def expected(op, code, n, part):
    """What dst holds afterwards; None where this rank gets nothing."""
    mine = rank * part
    if op in ("reduce", "gather") and rank != ROOT or op == "pingpong" and rank > 1:
        return None
    if op in ("allreduce", "reduce"):
        return sequence(code, n, total)
    if op == "reducescatter":
        return sequence(code, part, lambda i: total(mine + i))
    if op in ("allgather", "gather"):
        return sum((sequence(code, part, lambda i, r=r: value(r, i)) for r in range(ranks)), array.array(code))
    if op == "alltoall":
        return sum((sequence(code, part, lambda i, r=r: value(r, mine + i)) for r in range(ranks)), array.array(code))
    if op == "scatter":
        return sequence(code, part, lambda i: value(ROOT, mine + i))
    if op == "sendrecv":
        return sequence(code, n, lambda i: value((rank - 1) % ranks, i))
    return sequence(code, n, lambda i: value(0, i))  # broadcast and ping-pong


def collective(op, src, dst):
    """The call on two buffers, each [memory, datatype]."""
    right, left = (rank + 1) % ranks, (rank - 1) % ranks

    def pingpong():
        if rank == 0:
            world.Send(src, 1)
            world.Recv(dst, 1)
        elif rank == 1:
            world.Recv(dst, 0)
            world.Send(dst, 0)

    return {
        "allreduce": lambda: world.Allreduce(src, dst, MPI.SUM),
        "reduce": lambda: world.Reduce(src, dst, MPI.SUM, ROOT),
        "broadcast": lambda: world.Bcast(dst, ROOT),
        "allgather": lambda: world.Allgather(src, dst),
        "reducescatter": lambda: world.Reduce_scatter_block(src, dst, MPI.SUM),
        "alltoall": lambda: world.Alltoall(src, dst),
        "gather": lambda: world.Gather(src, dst, ROOT),
        "scatter": lambda: world.Scatter(src, dst, ROOT),
        "sendrecv": lambda: world.Sendrecv(src, right, recvbuf=dst, source=left),
        "pingpong": pingpong,
    }[op]


def measure(case, args):
    op, dtype, n, calls = case.split(":")
    n, calls = int(n), int(calls)
    code, mpi = TYPES[dtype]
    part = n // ranks
    nsrc = part if op in ("allgather", "gather") else n
    ndst = part if op in ("reducescatter", "scatter") else n
    src = sequence(code, nsrc, lambda i: value(rank, i))
    dst = array.array(code, [99]) * ndst
    if op == "broadcast" and rank == ROOT:
        dst = src[:]

    if args.memory == "host":
        step = collective(op, [src, mpi], [dst, mpi])
        fetch = lambda: dst
    else:
        import cupy
        import numpy
        cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
        dsrc, ddst = cupy.asarray(numpy.frombuffer(src, dtype)), cupy.asarray(numpy.frombuffer(dst, dtype))
        device = cupy.cuda.Device()
        device.synchronize()
        fetch = lambda: array.array(code, ddst.get().tobytes())
        if args.memory == "aware":
            call = collective(op, [dsrc, mpi], [ddst, mpi])

            def step():
                call()
                device.synchronize()
        else:
            hsrc, hdst = dsrc.get(), ddst.get()
            call = collective(op, [hsrc, mpi], [hdst, mpi])
            out = hdst if op == "broadcast" else hsrc

            def step():
                (ddst if op == "broadcast" else dsrc).get(out=out)
                call()
                ddst.set(hdst)
                device.synchronize()

    us = array.array("d")
    for k in range(-args.warmup, args.iters):
        world.Barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            step()
        mine = (time.perf_counter() - begin) * 1e6 / calls
        slowest = world.allreduce(mine, MPI.MAX)
        if k >= 0:
            us.append(slowest / 2 if op == "pingpong" else slowest)  # half a round trip

    want, got = expected(op, code, n, part), fetch()
    bad = 0
    if want is not None and want.tobytes() != got.tobytes():
        bad = sum(a != b for a, b in zip(want, got))
    bad = world.allreduce(bad, MPI.SUM)
    if rank == 0:
        us = sorted(us)
        k = len(us)
        print(json.dumps({
            "app": "sweep", "op": op, "ranks": ranks, "dtype": dtype, "elements": n, "bytes": n * src.itemsize,
            "in_place": op == "broadcast", "calls": calls, "iters": k, "min_us": us[0],
            "median_us": (us[(k - 1) // 2] + us[k // 2]) / 2, "p99_us": us[(k * 99 + 99) // 100 - 1], "max_us": us[-1],
            "wrong": bad, "ok": bad == 0}), flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--memory", choices=("host", "staged", "aware"), default="host")
    p.add_argument("--iters", type=int, default=20)
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--case", action="append", required=True)
    args = p.parse_args()
    for case in args.case:
        measure(case, args)


main()
