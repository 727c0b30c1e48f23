"""A job without a network to speak of, with rows that do harm. Importable by workers."""

import dataclasses
import os
import time

from infodis.apps.bench import engine


@dataclasses.dataclass(frozen=True)
class InstantScore(engine.InstantScore):
    """A row that begins with `fatal` kills its worker once, one with `slow` takes a while, one with `wait` is gated.

    It waits until the file whose name is in the environment's INSTANT_GATE exists.
    """

    met: str = ""
    """A file that is made when the fatal row is met."""

    def score(self, rows):
        for row in rows:
            text = str(getattr(row, "fields", {}).get("text", ""))
            if text.startswith("slow"):
                time.sleep(0.2)
            while text.startswith("wait") and not os.path.exists(os.environ.get("INSTANT_GATE", os.curdir)):
                time.sleep(0.1)
            if text.startswith("fatal") and not os.path.exists(self.met):
                open(self.met, "w").close()
                os._exit(9)
        return super().score(rows)
