"""What bench sweep measures, in PyTorch: a peer of it.

    python3 -m torch.distributed.run --standalone --nproc-per-node N torch_peer.py collectives --case allreduce:float32:1024:20 ...
    python3 -m torch.distributed.run --standalone --nproc-per-node N torch_peer.py reduce --elements 30000000
    python3 -m torch.distributed.run --standalone --nproc-per-node N torch_peer.py matvec --rows 10000 --cols 300000

A case is op:type:elements:calls. elements is the length of a rank's larger tensor. calls are made back to back in one timed
iteration. Rank 0 prints JSON lines with the times of the slowest rank, in microseconds; for reduce also every single time.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist

TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
ROOT = 0


class Job:
    """This rank, its device, and how it waits and measures."""

    def __init__(self, args):
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.iters, self.warmup = args.iters, args.warmup
        self.on_gpu = args.device == "cuda"
        if self.on_gpu:
            local = int(os.environ["LOCAL_RANK"])
            torch.cuda.set_device(local)
            self.device = torch.device("cuda", local)
            dist.init_process_group("nccl", device_id=self.device)
        else:
            self.device = torch.device("cpu")
            dist.init_process_group("gloo")
        self.graphs = {"off": [False], "on": [True], "both": [False, True]}[args.graph]

    def synchronize(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def captured(self, step, launches=1):
        """A function that replays step as one CUDA graph, a number of times."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # communicators and workspaces must exist before the capture
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()

        def replay():
            for _ in range(launches):
                graph.replay()

        return replay

    def times(self, step):
        """The times of step in microseconds, each from a barrier until the device is done, of the slowest rank."""
        us = []
        for k in range(-self.warmup, self.iters):
            dist.barrier()
            self.synchronize()
            begin = time.perf_counter()
            step()
            self.synchronize()
            if k >= 0:
                us.append((time.perf_counter() - begin) * 1e6)
        slowest = torch.tensor(us, dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return slowest.tolist()

    def emit(self, us, per, **what):
        if self.rank != 0:
            return
        us = sorted(t / per for t in us)
        k = len(us)
        print(json.dumps({
            **what, "ranks": self.ranks, "iters": k, "min_us": us[0], "median_us": (us[(k - 1) // 2] + us[k // 2]) / 2,
            "p99_us": us[(k * 99 + 99) // 100 - 1], "max_us": us[-1]}), flush=True)


def numbers(r, start, n, dtype, device):
    """Rank r's input from element start on: small, so that sums are exact in every type up to 127 ranks."""
    return ((torch.arange(start, start + n, device=device) % 7 + r) % 2).to(dtype)


def collective(job, op, src, dst):
    right, left = (job.rank + 1) % job.ranks, (job.rank - 1) % job.ranks

    def sendrecv():
        if job.ranks == 1:
            dst.copy_(src)
            return
        for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, src, right), dist.P2POp(dist.irecv, dst, left)]):
            request.wait()

    mine = job.rank == ROOT
    return {
        "allreduce": lambda: dist.all_reduce(dst),  # in place: PyTorch has no other
        "reduce": lambda: dist.reduce(dst, ROOT),
        "broadcast": lambda: dist.broadcast(dst, ROOT),
        "allgather": lambda: dist.all_gather_into_tensor(dst, src),
        "reducescatter": lambda: dist.reduce_scatter_tensor(dst, src),
        "alltoall": lambda: dist.all_to_all_single(dst, src),
        "gather": lambda: dist.gather(src, list(dst.chunk(job.ranks)) if mine else None, ROOT),
        "scatter": lambda: dist.scatter(dst, list(src.chunk(job.ranks)) if mine else None, ROOT),
        "sendrecv": sendrecv,
    }[op]


def expected(job, op, n, dtype):
    """What dst holds after one call; None where this rank gets nothing."""
    part = n // job.ranks
    mine = job.rank * part
    of = lambda r, start, count: numbers(r, start, count, dtype, job.device)
    total = lambda start, count: sum(of(r, start, count) for r in range(job.ranks))
    if op in ("reduce", "gather") and job.rank != ROOT:
        return None
    if op in ("allreduce", "reduce"):
        return total(0, n)
    if op == "reducescatter":
        return total(mine, part)
    if op in ("allgather", "gather"):
        return torch.cat([of(r, 0, part) for r in range(job.ranks)])
    if op == "alltoall":
        return torch.cat([of(r, mine, part) for r in range(job.ranks)])
    if op == "scatter":
        return of(ROOT, mine, part)
    return of((job.rank - 1) % job.ranks if op == "sendrecv" else ROOT, 0, n)


def collectives(job, args):
    for case in args.case:
        op, name, n, calls = case.split(":")
        n, calls, dtype = int(n), int(calls), getattr(torch, name)
        overwrites = op in ("allreduce", "reduce", "broadcast")
        part = n // job.ranks
        src = numbers(job.rank, 0, part if op in ("allgather", "gather") else n, dtype, job.device)
        for graph in job.graphs:
            dst = src.clone() if overwrites else torch.full((part if op in ("reducescatter", "scatter") else n,), 99, dtype=dtype, device=job.device)
            if op == "broadcast" and job.rank != ROOT:
                dst.fill_(99)
            call = collective(job, op, src, dst)
            call()
            job.synchronize()
            want = expected(job, op, n, dtype)
            wrong = torch.tensor([0 if want is None else int((want != dst).sum())], device=job.device)
            dist.all_reduce(wrong)

            each = min(calls, args.graph_calls) if graph else calls
            launches = -(-calls // each)

            def step():
                for _ in range(each):
                    call()

            us = job.times(job.captured(step, launches) if graph else step)
            # PyTorch's is in place, ours is not: the work is the same but for where the result lies.
            done = each * launches
            job.emit(us, done, app="sweep", op=op, dtype=name, elements=n, bytes=n * src.element_size(), calls=done, graph=graph,
                     in_place=op == "broadcast", stream=job.on_gpu, wrong=int(wrong), ok=int(wrong) == 0)


def reduce(job, args):
    x = torch.rand(args.elements * (job.rank + 1) // job.ranks - args.elements * job.rank // job.ranks, device=job.device)
    total = torch.zeros(1, device=job.device)

    def step():
        torch.sum(x, 0, keepdim=True, out=total)
        dist.all_reduce(total)

    app(job, step, samples=True, app="reduce", dtype="float32", elements=args.elements, bytes=4 * args.elements)


def matvec(job, args):
    cols = args.cols * (job.rank + 1) // job.ranks - args.cols * job.rank // job.ranks
    w, x = torch.rand(args.rows, cols, device=job.device), torch.rand(cols, device=job.device)
    y = torch.zeros(args.rows, device=job.device)

    def step():
        torch.mv(w, x, out=y)
        dist.all_reduce(y)

    app(job, step, app="matvec", dtype="float32", rows=args.rows, cols=args.cols, bytes=4 * args.rows * args.cols)


def app(job, step, samples=False, **what):
    for graph in job.graphs:
        us = job.times(job.captured(step) if graph else step)
        if samples:
            what["samples_us"] = us
        job.emit(us, 1, graph=graph, ok=True, **what)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("what", choices=("collectives", "reduce", "matvec"))
    p.add_argument("--device", choices=("cuda", "host"), default="cuda")
    p.add_argument("--graph", choices=("off", "on", "both"), default="off")
    p.add_argument("--graph-calls", type=int, default=20, help="calls that a graph holds, which is replayed until all are made")
    p.add_argument("--iters", type=int, default=20)
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--case", action="append", default=[])
    p.add_argument("--elements", type=int, default=30_000_000)
    p.add_argument("--rows", type=int, default=10_000)
    p.add_argument("--cols", type=int, default=300_000)
    args = p.parse_args()
    job = Job(args)
    {"collectives": collectives, "reduce": reduce, "matvec": matvec}[args.what](job, args)
    dist.barrier()
    job.synchronize()
    os._exit(0)  # to destroy the group while a graph holds its collectives hangs


main()
