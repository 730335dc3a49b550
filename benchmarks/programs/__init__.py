"""Programs that send and handle items, one for each queue, all with the same few commands.

::

    install DSN            make the queue
    send DSN COUNT RATE    send COUNT items, each in a transaction; RATE a second, 0: no pauses
    bulk DSN COUNT         send COUNT items at once
    work DSN COUNT SECONDS handle COUNT items, or for SECONDS, like a worker or consumer

Each prints a line of JSON at its end, and ``work`` prints "ready" when it is. An item holds the
time it was sent, by the clock that all processes on a machine share (CLOCK_MONOTONIC), so that the
handler, which does nothing else, can compute its delay. `benchmarks._program` starts them.
"""
