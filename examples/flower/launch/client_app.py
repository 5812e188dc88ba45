"""On each node: one message starts a device, which works until the run is over; one reply says what it did.

The node's owner says where its data are and where the device may keep its key: in --node-config, not in the message.
"""

from __future__ import annotations

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedasmu import Device

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    told, here = message.content["server"], context.node_config
    device = Device(
        str(told["url"]),
        data=str(here["data"]),
        state=str(here["state"]),
        invite=str(told["invite"]),
        say=lambda line: print(line, flush=True),
    )
    device.run()
    return Message(RecordDict({"done": MetricRecord({"tasks": device.tasks})}), reply_to=message)
