"""The peer of bench ttl: seconds to a loss in PyTorch, on one GPU.

    python3 torch_ttl.py --model gpt2 --tokens FILE --steps 400 --batch 64
    python3 torch_ttl.py --model modern --tokens FILE --steps 111 --batch 64
    python3 torch_ttl.py --model modern-medium --tokens FILE --steps 40 --batch 32

gpt2 is GPT-2 124M by AdamW. modern is a decoder of the same width and depth by Muon, modern-medium one of
gpt2-medium's, with AdamW for embeddings, head and scalars: rotary positions, normed queries and keys, squared ReLU, RMS
norms without weights, an untied head, embeddings added to values, skips from the first half to the second. Both are
compiled and learn in bfloat16 with float32 weights, from the sequences of bin/train in its order, and validate on its
part. Validating is not in the seconds, nor are three whole steps before, in which all is compiled and after which all
is as it was. One JSON line each validation.
"""
import argparse
import json
import math
import time

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

from torch_loss import Order

VOCAB, SEQ = 50304, 1024


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


class GPT2(nn.Module):
    def __init__(self, layers, heads, width):
        super().__init__()
        self.heads = heads
        self.wte, self.wpe = nn.Embedding(VOCAB, width), nn.Embedding(SEQ, width)
        self.layers = nn.ModuleList(nn.ModuleDict(dict(
            ln1=nn.LayerNorm(width), qkv=nn.Linear(width, 3 * width), proj=nn.Linear(width, width),
            ln2=nn.LayerNorm(width), fc=nn.Linear(width, 4 * width), proj2=nn.Linear(4 * width, width))) for _ in range(layers))
        self.lnf = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02 / (math.sqrt(2 * layers) if ".proj" in name else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, targets):
        b = tokens.size(0)
        x = self.wte(tokens) + self.wpe.weight
        for layer in self.layers:
            q, k, v = layer["qkv"](layer["ln1"](x)).view(b, SEQ, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["proj"](y.transpose(1, 2).flatten(2))
            x = x + layer["proj2"](F.gelu(layer["fc"](layer["ln2"](x)), approximate="tanh"))
        return F.cross_entropy(F.linear(self.lnf(x), self.wte.weight).view(-1, VOCAB).float(), targets.view(-1))

    def optimizers(self, _):
        matrices = [p for p in self.parameters() if p.dim() > 1]
        vectors = [p for p in self.parameters() if p.dim() < 2]
        return [adam([(matrices, 1.5e-3, 0.1), (vectors, 1.5e-3, 0.0)], (0.9, 0.95), 1e-8)]

    @staticmethod
    def rate(step, steps):
        """A rise over 40 steps, then a cosine to a tenth."""
        return min((step + 1) / 40, 1) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / steps)))


class Modern(nn.Module):
    def __init__(self, layers, heads, width):
        super().__init__()
        self.layers, self.heads, size = layers, heads, width // heads
        matrix = lambda out, of: nn.Parameter(torch.empty(out, of).uniform_(-1, 1) * (3**0.5 * 0.5 * of**-0.5))
        self.wte = nn.Embedding(VOCAB, width)
        self.values = nn.ModuleList(nn.Embedding(VOCAB, width) for _ in range(3))
        self.head = matrix(VOCAB, width)
        self.qkv = nn.ParameterList(matrix(3 * width, width) for _ in range(layers))
        self.proj = nn.ParameterList(matrix(width, width) for _ in range(layers))
        self.fc = nn.ParameterList(matrix(4 * width, width) for _ in range(layers))
        self.proj2 = nn.ParameterList(matrix(width, 4 * width) for _ in range(layers))
        self.value_mix = nn.Parameter(torch.tensor([[0.5, 0.5]] * layers))
        self.skip = nn.Parameter(torch.ones(layers // 2))
        nn.init.normal_(self.wte.weight, 0, 1)
        frequencies = (1 / 1024) ** torch.linspace(0, 1, size // 4)
        angles = torch.outer(torch.arange(SEQ), torch.cat([frequencies, torch.zeros(size // 4)]))
        self.register_buffer("cos", angles.cos()[None, :, None])
        self.register_buffer("sin", angles.sin()[None, :, None])

    def turned(self, x):
        a, b = x.chunk(2, -1)
        c, s = self.cos.to(x.dtype), self.sin.to(x.dtype)
        return torch.cat([a * c + b * s, b * c - a * s], -1)

    def forward(self, tokens, targets):
        b, L = tokens.size(0), self.layers
        x = norm(self.wte(tokens).bfloat16())
        values = [e(tokens).bfloat16() for e in self.values]
        values += [None] * (L - 6) + values
        kept = []
        for l in range(L):
            if l >= L // 2:
                x = x + self.skip[l - L // 2].bfloat16() * kept.pop()
            q, k, v = F.linear(norm(x), self.qkv[l].bfloat16()).view(b, SEQ, 3, self.heads, -1).unbind(2)
            q, k, v = self.turned(norm(q)), self.turned(norm(k)), self.value_mix[l, 0].bfloat16() * v
            if values[l] is not None:
                v = v + self.value_mix[l, 1].bfloat16() * values[l].view(b, SEQ, self.heads, -1)
            y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, scale=0.12)
            x = x + F.linear(y.transpose(1, 2).flatten(2), self.proj[l].bfloat16())
            x = x + F.linear(F.relu(F.linear(norm(x), self.fc[l].bfloat16())).square(), self.proj2[l].bfloat16())
            if l < L // 2:
                kept.append(x)
        logits = F.linear(norm(x), self.head.bfloat16()).float()
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))

    def optimizers(self, batch):
        embeddings = [self.wte.weight, *[e.weight for e in self.values]]
        return [Muon([*self.qkv, *self.proj, *self.fc, *self.proj2], 0.03 * min(1, batch / 64) ** 0.5),
                adam([(embeddings, 0.3, 0.0), ([self.head], 0.005, 0.0), ([self.value_mix, self.skip], 0.02, 0.0)], (0.8, 0.95), 1e-10)]

    @staticmethod
    def rate(step, steps):
        """Constant, then a line over the second half to a twentieth."""
        return min(1, (1 - step / steps) / 0.5) * 0.95 + 0.05


def adam(groups, betas, eps):
    return torch.optim.AdamW([dict(params=p, lr=lr, base=lr, weight_decay=decay) for p, lr, decay in groups], betas=betas, eps=eps, fused=True)


@torch.compile(dynamic=False)
def orthogonal(g):
    """Newton-Schulz: the nearest matrix with equal singular values, of each matrix of a batch. The coefficients are Polar Express's."""
    x = g.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    for a, b, c in [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)]:
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if tall else x


class Muon:
    def __init__(self, params, lr):
        self.param_groups = [dict(lr=lr, base=lr)]
        self.shapes = {}
        for p in params:
            self.shapes.setdefault(p.shape, []).append(p)
        self.momenta = {shape: torch.zeros(len(ps), *shape, device="cuda") for shape, ps in self.shapes.items()}
        self.steps = 0

    @torch.no_grad()
    def step(self):
        momentum = 0.85 + 0.1 * min(self.steps / 300, 1)
        self.steps += 1
        for shape, ps in self.shapes.items():
            g, m = torch.stack([p.grad for p in ps]), self.momenta[shape]
            m.lerp_(g, 1 - momentum)
            scale = self.param_groups[0]["lr"] * max(1, shape[0] / shape[1]) ** 0.5
            torch._foreach_add_(ps, list(orthogonal(g.lerp(m, momentum)).float().unbind()), alpha=-scale)


# The models: form, layers, heads, width.
MODELS = {"gpt2": (GPT2, 12, 12, 768), "modern": (Modern, 12, 12, 768), "modern-medium": (Modern, 24, 16, 1024)}


class Text:
    """The sequences of bin/train among the tokens of a file of llm.c."""

    def __init__(self, name, batch, seed):
        tokens = np.fromfile(name, dtype="<u2")[512:]
        self.order, self.batch = Order(len(tokens), SEQ, batch, seed), batch
        self.tokens = torch.from_numpy(tokens.astype(np.int32)).cuda()
        self.val = max(len(tokens) // 20, batch * SEQ + 1)

    def at(self, begins):
        places = torch.tensor(begins, device="cuda")[:, None] + torch.arange(SEQ + 1, device="cuda")
        x = self.tokens[places].long()
        return x[:, :-1].contiguous(), x[:, 1:].contiguous()

    def step(self, number):
        return self.at([self.order.begin(number * self.batch + j) for j in range(self.batch)])

    def validation(self, sequences, most):
        windows = (self.val - 1) // SEQ
        n = min(sequences, windows)
        begins = [len(self.tokens) - self.val + i * windows // n * SEQ for i in range(n)]
        return [self.at(begins[i:i + most]) for i in range(0, n - n % most, most)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=list(MODELS), required=True)
    p.add_argument("--tokens", required=True)
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--seed", type=int, default=42)
    p.add_argument("--val-every", type=int, default=0)
    p.add_argument("--val-sequences", type=int, default=1024)
    p.add_argument("--mode", default="default", help="of torch.compile")
    args = p.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    make, *shape = MODELS[args.model]
    model, text = make(*shape).cuda(), Text(args.tokens, args.batch, args.seed)
    net = torch.compile(model, dynamic=False, mode=args.mode)
    checks = text.validation(args.val_sequences, args.batch)

    def loss_of(x, y):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return net(x, y)

    def validate():
        with torch.no_grad():
            return sum(loss_of(x, y).item() for x, y in checks) / len(checks)

    def learn(step, optimizers):
        loss = loss_of(*text.step(step))
        loss.backward()
        if make is GPT2:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in optimizers:
            for group in o.param_groups:
                group["lr"] = group["base"] * make.rate(step, args.steps)
            o.step()
        model.zero_grad(set_to_none=True)
        return loss.detach().clone()

    first = [p.detach().clone() for p in model.parameters()]
    optimizers = model.optimizers(args.batch)
    for step in range(3):
        learn(step, optimizers)
    validate()
    with torch.no_grad():
        torch._foreach_copy_(list(model.parameters()), first)
    del first
    optimizers = model.optimizers(args.batch)
    torch.cuda.synchronize()
    begin, spent, losses = time.time(), 0.0, []
    for step in range(args.steps):
        losses.append(learn(step, optimizers))
        last = step + 1 == args.steps
        if last or args.val_every and (step + 1) % args.val_every == 0:
            torch.cuda.synchronize()
            spent += time.time() - begin
            print(json.dumps({"step": step + 1, "tokens": (step + 1) * args.batch * SEQ, "seconds": spent, "val_loss": validate(),
                              "loss": torch.stack(losses[-10:]).mean().item(), "tok_s": (step + 1) * args.batch * SEQ / spent}), flush=True)
            torch.cuda.synchronize()
            begin = time.time()


main()
