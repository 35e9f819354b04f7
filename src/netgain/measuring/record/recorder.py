"""Turns exchanges into entries beside the proxy: one thread reads, hashes and writes, so that passing bytes on never waits."""

import logging
import queue
import threading
from collections.abc import Callable

from netgain.measuring.record.entry import Entry
from netgain.measuring.record.hashing import Hasher
from netgain.measuring.record.journal import Journal
from netgain.measuring.record.observation import Observation
from netgain.measuring.record.reading import to_entry

_WAITING = 4096  # exchanges
_WAITING_BYTES = 256 << 20

_log = logging.getLogger(__name__)


class Recorder:
    """Owns the journal until `close`. What finds too much waiting is counted as lost in the journal."""

    def __init__(
        self,
        journal: Journal,
        hasher: Hasher,
        *,
        with_text: bool,
        on_entry: Callable[[Entry], object] = lambda entry: None,
    ) -> None:
        self.journal = journal
        self._hasher = hasher
        self._with_text = with_text
        self._on_entry = on_entry
        self._waiting: queue.Queue[Observation | None] = queue.Queue()
        self._bytes = 0
        self._overflow = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="netgain-record", daemon=True)
        self._thread.start()

    def take(self, seen: Observation) -> None:
        """An exchange has ended. Returns at once."""
        with self._lock:
            if self._waiting.qsize() >= _WAITING or self._bytes + seen.kept_bytes > _WAITING_BYTES:
                self._overflow += 1
                return
            self._bytes += seen.kept_bytes
        self._waiting.put(seen)

    @property
    def lost(self) -> int:
        return self.journal.lost + self._overflow

    def close(self) -> None:
        """Write what waits, and end the journal."""
        self._waiting.put(None)
        self._thread.join()
        if self._overflow:
            self.journal.lose("they came faster than they could be written", self._overflow)
            self._overflow = 0
        self.journal.close()

    def _run(self) -> None:
        while (seen := self._waiting.get()) is not None:
            try:
                entry = to_entry(seen, self._hasher, with_text=self._with_text)
                self.journal.write(entry)
                self._on_entry(entry)
            except Exception as error:  # a fault here must not end the recording
                self.journal.lose(f"an exchange could not be read ({error!r})")
            finally:
                with self._lock:
                    self._bytes -= seen.kept_bytes
