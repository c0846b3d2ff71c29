# What transformers goes on with: greedy, in float32, from token ids. Called by TestSampleLikeTransformers.
import json, sys
import torch, transformers

folder, count, prompt = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
torch.set_float32_matmul_precision("highest")
device = "cuda" if torch.cuda.is_available() else "cpu"
model = transformers.GPT2LMHeadModel.from_pretrained(folder, torch_dtype=torch.float32).to(device).eval()
ids = torch.tensor([prompt], device=device)
with torch.no_grad():
    for _ in range(count):
        best = model(ids).logits[0, -1].argmax()
        ids = torch.cat([ids, best.view(1, 1)], dim=1)
print(json.dumps(ids[0, len(prompt):].tolist()))
