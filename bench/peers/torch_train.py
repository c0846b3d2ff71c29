"""What bench train measures, in PyTorch: a peer of it.

    python3 -m torch.distributed.run --standalone --nproc-per-node N torch_train.py --model gpt2 --batch 64

A GPT-2 learns from random tokens, compiled, with autocast to bfloat16 and fused AdamW; over several GPUs it is
torch.compile(DistributedDataParallel(model)), the order PyTorch's documentation asks for. Rank 0 prints one JSON line.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
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

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).float().view(-1, PADDED), targets.view(-1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=SHAPES, default="gpt2")
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
    parallel = DistributedDataParallel(model, device_ids=[local], gradient_as_bucket_view=True) if ranks > 1 else model
    compiled = torch.compile(parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(0, VOCABULARY, (args.batch, args.seq + 1), device=device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
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
        print(json.dumps({"tok_s": ranks * args.batch * args.seq / seconds, "ms": seconds * 1e3,
                          "mem_gb": torch.cuda.max_memory_reserved() / 1e9}), flush=True)
    dist.barrier()
    torch.cuda.synchronize()
    os._exit(0)


main()
