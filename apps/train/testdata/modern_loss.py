# The mean loss of a modern model, by the program of docs/modern.md, over the sequences of some tokens one after the other.
# Called by TestModernInPyTorch.
import json, sys

import torch
import torch.nn.functional as F

program, folder, seq, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), torch.tensor(json.load(sys.stdin))
names = {"__name__": "read"}
exec(compile(open(program).read(), program, "exec"), names)
config, weights = json.load(open(folder + "/config.json")), names["load_file"](folder + "/model.safetensors")
losses = []
with torch.no_grad():
    for at in range(0, len(tokens) - seq, seq):
        z = names["logits"](config, weights, tokens[at:at + seq])
        losses.append(F.cross_entropy(z, tokens[at + 1:at + seq + 1]).item())
print(sum(losses) / len(losses))
