"""Executes a notebook, cell by cell, as Jupyter does, and writes it with its outputs: `execute.py IN OUT`.

A cell with the metadata `interrupt_at` is interrupted, as by the button of that name, once it has printed that text.
"""

import asyncio
import sys

import nbformat
from nbclient import NotebookClient

SOON = 1.0
"""Seconds in which the cell gets from what it prints to the call that waits."""


class Client(NotebookClient):
    def output(self, outs, msg, display_id, cell_index):
        cell = self.nb.cells[cell_index]
        text = cell.metadata.get("interrupt_at")
        if text and text in msg["content"].get("text", ""):
            self.interrupting = asyncio.ensure_future(self.interrupt())
        return super().output(outs, msg, display_id, cell_index)

    async def interrupt(self):
        await asyncio.sleep(SOON)
        await self.km.interrupt_kernel()


source, target = sys.argv[1:]
client = Client(nbformat.read(source, 4), allow_errors=True, timeout=80)
client.execute()
nbformat.write(client.nb, target)
