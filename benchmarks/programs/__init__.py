"""Programs that send and handle items, one for each queue, all with the same few commands.

::

    install DSN            make the queue
    send DSN COUNT RATE    so many items, each a transaction; RATE a second, 0: no pauses
    bulk DSN COUNT         so many items at once
    work DSN COUNT SECONDS handle so many items, or for so long, as a worker or consumer does

Each prints a line of JSON at its end, and ``work`` a line "ready" when it is. An item says when it
was sent, by the clock that all processes on a machine share (CLOCK_MONOTONIC), so that the handler,
which does nothing else, knows how long it took. `benchmarks.program` starts them.
"""
