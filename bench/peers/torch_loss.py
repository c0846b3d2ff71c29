"""The reference of bench loss: a GPT-2 of Hugging Face's transformers learns in PyTorch as bin/train does.

    python3 torch_loss.py start --model gpt2 --seq 1024 --to FOLDER
    python3 torch_loss.py follow --from FOLDER --tokens FILE --rates FILE --batch 8 --seq 1024 --seed 42

start writes random weights, with which bin/train begins by --init-from. follow begins with them too, and takes the
same sequences as bin/train. It learns by AdamW on float32 weights, with autocast to bfloat16, compiled. The rates are the lines
of a file. It prints one JSON line a step.
"""
import argparse
import json

import numpy as np
import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

SHAPES = {"gpt2": (12, 12, 768), "gpt2-medium": (24, 16, 1024), "gpt2-large": (36, 20, 1280), "gpt2-xl": (48, 25, 1600)}
WORD = (1 << 64) - 1


def start(args):
    layers, heads, channels = SHAPES[args.model]
    torch.manual_seed(1)
    config = GPT2Config(n_layer=layers, n_head=heads, n_embd=channels, n_positions=args.seq, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    GPT2LMHeadModel(config).save_pretrained(args.to)


def mixed(x):
    """SplitMix64's output for the state x."""
    x = x + 0x9E3779B97F4A7C15 & WORD
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & WORD
    return x ^ x >> 31


class Order:
    """Where the sequences begin, as apps/train/trainer/dataset.go chooses them among n tokens."""

    def __init__(self, n, seq, batch, seed):
        learned = n - max(n // 20, batch * seq + 1)  # the rest is for validation
        self.seq, self.seed = seq, seed
        self.windows = (learned - 1) // seq
        self.windows -= self.windows > batch
        self.slack = learned - 1 - self.windows * seq

    def begin(self, number):
        epoch, i = divmod(number, self.windows)
        key = mixed(self.seed ^ mixed(epoch))
        return mixed(key) % min(self.slack + 1, self.seq) + self.place(key, i) * self.seq

    def place(self, key, i):
        """A Feistel network of six rounds, applied until the result is a window."""
        half = max(((self.windows - 1).bit_length() + 1) // 2, 1)
        mask = (1 << half) - 1
        while True:
            left, right = i >> half, i & mask
            for turn in range(6):
                left, right = right, left ^ mixed(key ^ mixed(right << 3 & WORD | turn)) & mask
            i = left << half | right
            if i < self.windows:
                return i


def follow(args):
    header = 256  # words of 32 bits
    tokens = np.fromfile(args.tokens, dtype="<u2")[2 * header:].astype(np.int64)
    order = Order(len(tokens), args.seq, args.batch, args.seed)
    model = GPT2LMHeadModel.from_pretrained(getattr(args, "from"), attn_implementation="sdpa").train()
    tokens_of_model = model.config.vocab_size
    # A multiple of 128 rows is what products of bfloat16 are fast for; the logits of those added do not count.
    model.resize_token_embeddings(pad_to_multiple_of=128, mean_resizing=False)
    model.cuda()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  betas=(0.9, 0.95), eps=1e-8, fused=True)

    @torch.compile
    def loss_of(x, y):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(x).logits[..., :tokens_of_model]
        return F.cross_entropy(logits.float().view(-1, tokens_of_model), y.reshape(-1))

    losses = []
    for step, rate in enumerate(float(line) for line in open(args.rates)):
        at = [order.begin(step * args.batch + j) for j in range(args.batch)]
        batch = torch.from_numpy(np.stack([tokens[i:i + args.seq + 1] for i in at])).cuda()
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    for value in torch.stack(losses).tolist():
        print(json.dumps({"loss": value}))


def main():
    p = argparse.ArgumentParser()
    commands = p.add_subparsers(required=True)
    one = commands.add_parser("start")
    one.set_defaults(run=start)
    one.add_argument("--model", choices=SHAPES, default="gpt2")
    one.add_argument("--to", required=True)
    two = commands.add_parser("follow")
    two.set_defaults(run=follow)
    two.add_argument("--from", required=True)
    two.add_argument("--tokens", required=True)
    two.add_argument("--rates", required=True)
    two.add_argument("--batch", type=int, required=True)
    two.add_argument("--seed", type=int, required=True)
    for command in one, two:
        command.add_argument("--seq", type=int, default=1024)
    args = p.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
