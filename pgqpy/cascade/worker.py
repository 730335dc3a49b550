# WARNING: generated from pgqpy/cascade/worker_async.py by tools/async_to_sync.py.
# Change that one and run `python tools/async_to_sync.py`.

"""Workers of cascaded queues: each keeps one node."""

from __future__ import annotations

from pgqpy._runtime.io import Io
from pgqpy._runtime.stoppable import Stoppable
from pgqpy.cascade._worker import PlainCascadedWorker


class CascadedWorker(PlainCascadedWorker, Stoppable):
    """Keeps a node of a cascaded queue: copies the queue from the node's provider.

    ``dsn`` is the database of the node; all else is in its schema ``pgq_node``. Copies are exact:
    ticks and events keep their ids, times and order. Events, their ticks and the node's position
    are one transaction of the node; then the provider learns of it. So whatever is killed, nothing
    is missing or comes twice. On a root it publishes the watermark, and fences the root if another
    node has taken over meanwhile; on a leaf it copies nothing, and follows the events that control
    the nodes.

    Before each transaction it reads the node's state: it waits while it is paused, and goes on at
    another provider at the same tick.
    """

    _io = Io()

    def run(self, *, until_empty: bool = False, handle_signals: bool = True) -> None:
        """Copy until `stop`, or with ``until_empty`` until there is nothing left to copy.

        Survives all errors, and notes them in the node's ``local_state.cur_error``; with
        ``until_empty`` it raises them. In the main thread SIGTERM and SIGINT stop it after the
        transaction, unless ``handle_signals`` is false.
        """
        with self._running(handle_signals=handle_signals) as waker:
            self._io.run(self._run(waker, until_empty=until_empty))

    def run_once(self) -> bool:
        """Copy what there is now, at most about ``batch_size`` events, in one transaction.

        False if there was nothing to copy. Raises any error.
        """
        return self._io.run(self._run_once())
