"""A client of Flower. Its actors import it, so that what it keeps is kept from one client to the next."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy
from work import LR, StepCount, Told, lenet5, shard

app, counted, module = ClientApp(), StepCount(), lenet5()
torch.set_num_threads(1)


@app.train()
def train(message: Message, context: Context) -> Message:
    asked, before = message.content["config"], counted.count
    inputs, targets = shard(int(context.node_config["partition-id"]), int(asked["images"]))
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), lr=LR)
    for _ in range(int(asked["epochs"])):
        for batch in torch.randperm(len(inputs)).split(int(asked["batch"])):
            optimiser.zero_grad()
            cross_entropy(module(inputs[batch]), targets[batch]).backward()
            optimiser.step()
    Told(str(asked["report"])).steps(counted.count - before)
    metrics = MetricRecord({"num-examples": len(inputs)})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)
