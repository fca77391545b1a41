"""The events by which the streams of a decode step wait for each other."""

from __future__ import annotations

import torch


class StepEvents:
    """routed: a layer's inputs and picks are there; copied: so are its experts; decided: what is copied for
    the next layer is. Each was recorded once, so that it has a handle and nobody waits for ever.
    """

    def __init__(self, device: torch.device) -> None:
        self.routed, self.copied, self.decided = (torch.cuda.Event() for _ in range(3))
        for event in (self.routed, self.copied, self.decided):
            event.record(torch.cuda.current_stream(device))
