"""What bench train measures, in PyTorch: a peer of it.

    python3 -m torch.distributed.run --standalone --nproc-per-node N torch_train.py --model gpt2 --batch 64

A GPT-2 learns from random tokens, compiled, in bfloat16, with fused AdamW. --parallel is the way over several GPUs.
ddp is torch.compile(DistributedDataParallel(model)), the order PyTorch's documentation asks for, with autocast.
fsdp2 is fully_shard of each block, which is compiled before, and then of the model, as in torchtitan. What comes before
the blocks is a compiled function there, and what comes after them another. There is no autocast: weights are gathered
as bfloat16, and x between blocks is bfloat16, too, where autocast keeps float32. In both ways gradients are summed as
float32, and the loss is float32. Rank 0 prints one JSON line.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

SHAPES = {"gpt2": (12, 12, 768), "gpt2-medium": (24, 16, 1024), "gpt2-large": (36, 20, 1280), "gpt2-xl": (48, 25, 1600)}
VOCABULARY, PADDED = 50257, 50304


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.c_attn, self.attn_proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.c_fc, self.mlp_proj = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x):
        batch, tokens, channels = x.shape
        split = self.c_attn(self.ln_1(x)).view(batch, tokens, 3, self.heads, channels // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attn_proj(seen.transpose(1, 2).reshape(batch, tokens, channels))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, heads, channels, positions):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(PADDED, channels), nn.Embedding(positions, channels)
        self.blocks = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, PADDED, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.wte.weight

    def embed(self, tokens):
        return self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))

    def loss(self, x, targets):
        return F.cross_entropy(self.head(self.ln_f(x)).float().view(-1, PADDED), targets.view(-1))

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.loss(x, targets)


def shard(model):
    # fullgraph: what does not compile as a whole fails, as it would be a slow peer.
    # Weights are not broadcast, as DDP does: each rank keeps its part of those that it drew.
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fully_shard(torch.compile(block, fullgraph=True), mp_policy=policy)
    model.embed, model.loss = (torch.compile(f, fullgraph=True) for f in (model.embed, model.loss))
    return fully_shard(model, mp_policy=policy)  # the rest, where embedding and head have one weight


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=SHAPES, default="gpt2")
    p.add_argument("--parallel", choices=("ddp", "fsdp2"), default="ddp", help="on one GPU ddp is plain")
    p.add_argument("--batch", type=int, default=64, help="sequences of a rank")
    p.add_argument("--seq", type=int, default=1024)
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--warmup", type=int, default=8)
    args = p.parse_args()
    local, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(1 + dist.get_rank())
    torch.set_float32_matmul_precision("high")
    model = GPT2(*SHAPES[args.model], args.seq).to(device)
    if args.parallel == "fsdp2":
        compiled = shard(model)
    elif ranks > 1:
        compiled = torch.compile(DistributedDataParallel(model, device_ids=[local], gradient_as_bucket_view=True))
    else:
        compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(0, VOCABULARY, (args.batch, args.seq + 1), device=device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.parallel == "ddp"):
            loss = compiled(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(args.warmup):
        step()
    dist.barrier()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(args.steps):
        step()
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / args.steps
    if dist.get_rank() == 0:
        print(json.dumps({"parallel": args.parallel, "tok_s": ranks * args.batch * args.seq / seconds,
                          "ms": seconds * 1e3, "mem_gb": torch.cuda.max_memory_reserved() / 1e9}), flush=True)
    dist.barrier()
    torch.cuda.synchronize()
    os._exit(0)


main()
