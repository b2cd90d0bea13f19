"""Several processes with DistributedDataParallel. The loss has no parameters, so it is not wrapped.

Run it: `torchrun --standalone --nproc-per-node 2 examples/ddp.py`

This runs on the CPU with gloo. On GPUs use "nccl", `device_ids=[rank]` and `loss.to(rank)`.
"""

import gc
import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import camri
from camri.data import hold_out, load


def main(num_epochs: int = 6) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = hold_out(load("digits"), fraction=0.2)
    eight = data.class_index("8")
    train, val = (TensorDataset(data.splits[p].inputs / 255, data.splits[p].labels) for p in ("train", "val"))
    sampler = DistributedSampler(train, drop_last=True)
    loader = DataLoader(train, batch_size=32, sampler=sampler, drop_last=True)

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.BatchNorm1d(64))
    model.append(camri.CosineHead(64, data.num_classes))  # or replace_head; before wrapping either way
    wrapped = DistributedDataParallel(model)
    loss = camri.CamriLoss(data.num_classes, important={eight: 0.3}, scale=8.0, ramp=2 * len(loader))
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=2e-3)
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss(wrapped(images), labels).backward()
            optimizer.step()

    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    print(f"rank {dist.get_rank()}: weights {hashlib.sha256(weights.numpy()).hexdigest()}", flush=True)
    if dist.get_rank() == 0:  # batch-norm statistics differ between processes: evaluate and save one model
        with torch.no_grad():
            right = model.eval()(val.tensors[0]).argmax(dim=1) == val.tensors[1]
        recall = right[val.tensors[1] == eight].float().mean()
        print(f"accuracy {right.float().mean():.3f} recall {recall:.3f}", flush=True)
    dist.barrier()  # no process leaves while another still needs the connection
    del wrapped  # it holds the process group, whose threads must end before Python exits
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
