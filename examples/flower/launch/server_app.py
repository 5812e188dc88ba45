"""On Flower's side: tell every node where the run is served, and wait until all have done what they could."""

from __future__ import annotations

import time
from logging import INFO

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    wanted = context.run_config
    server = ConfigRecord({"url": str(wanted["url"]), "invite": str(wanted["invite"])})
    seconds = 60.0 * float(wanted["minutes"])  # that a message may be under way: as long as the run
    messages = [
        Message(RecordDict({"server": server}), dst_node_id=node, message_type=MessageType.TRAIN, ttl=seconds)
        for node in arrived(grid, int(wanted["nodes"]))
    ]
    for reply in grid.send_and_receive(messages, timeout=seconds):
        done = reply.error.reason if reply.has_error() else f"{reply.content['done']['tasks']} tasks"
        log(INFO, "node %s: %s", reply.metadata.src_node_id, done)


def arrived(grid: Grid, count: int) -> list[int]:
    """The nodes, once there are so many."""
    while len(nodes := list(grid.get_node_ids())) < count:
        time.sleep(1)
    return nodes
