# The mean loss of a modern model over some sequences, and its gradients, by the program of docs/modern.md in float64. The loss and the names and sizes
# of the tensors are printed; their gradients, as float32, go to a file one behind the other. Called by TestModernGradientsInPyTorch.
import json, sys

import torch
import torch.nn.functional as F

program, folder, to, sequences = sys.argv[1], sys.argv[2], sys.argv[3], json.load(sys.stdin)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
names = {"__name__": "read"}
exec(compile(open(program).read(), program, "exec"), names)
config = json.load(open(folder + "/config.json"))
weights = {n: w.to(device).double().requires_grad_() for n, w in names["load_file"](folder + "/model.safetensors").items()}
loss = 0
for s in sequences:
    tokens = torch.tensor(s)
    part = F.cross_entropy(names["logits"](config, weights, tokens[:-1]), tokens[1:]) / len(sequences)
    part.backward()
    loss += part.item()
with open(to, "wb") as f:
    for w in weights.values():
        f.write(w.grad.float().cpu().numpy().tobytes())
print(json.dumps({"loss": loss, "tensors": [{"name": n, "len": w.numel()} for n, w in weights.items()]}))
