"""Checks of queues, consumers and rotation: functions of the judgement of their readings.

`pgqpy status` lists what they find, except notes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from shlex import quote

from pgqpy._runtime.words import ago, duration, plural
from pgqpy.doctor._finding import Finding, Verdict, note, ok, problem, warning
from pgqpy.doctor._look import Check, Look
from pgqpy.doctor._readings import Failure, ForeignLock, Group, Server, Transaction, group_in
from pgqpy.doctor._status import ConsumerState, ConsumerStatus, Judgement, QueueState, QueueStatus

#: The operation that the ticker records for maintenance that it does not run.
REFUSED = "pgq.maint_refused"
#: The name in pgq._lock_keys() of the lock by which a ticker leads.
LEAD = "the ticker's lead"

Find = Callable[[Judgement], Iterator[Finding]]
_FIND: dict[str, Find] = {}


def _of_queues(name: str, *needs: str) -> Callable[[Find], Check]:
    """Make a function of the judgement a check."""

    def declare(find: Find) -> Check:
        def look(at: Look) -> Iterator[Finding]:
            return find(at.judgement)

        look.__doc__ = find.__doc__
        _FIND[name] = find
        return Check(name, look, needs)

    return declare


@_of_queues("maintenance", "pgq.ticker_failure")
def maintenance(state: Judgement) -> Iterator[Finding]:
    """What the ticker, or its maintenance, tried last and could not do (pgq.ticker_failure)."""
    for failure in state.readings.failures:
        if failure.operation == REFUSED:
            yield warning(
                f"{failure.error} (for {duration(failure.age)})",
                "drop it if it is not yours; what maintenance runs must belong to the ticker's "
                "role, to pgq_owner or to a superuser, and so must its schema",
            )
            continue
        argument = f" of {failure.argument}" if failure.argument is not None else ""
        yield problem(
            f"the ticker has failed in {failure.operation}{argument} for {duration(failure.age)}: "
            f"{failure.error}",
            "remove the cause; the ticker tries again by itself, and does everything else "
            "meanwhile",
        )
    yield ok("the ticker reports no failures")


@_of_queues("ticks")
def ticks(state: Judgement) -> Iterator[Finding]:
    """The age of each queue's last tick, with regard to its settings and its new events."""
    for queue in state.queues:
        if queue.state is QueueState.NO_TICKER:
            last = "no tick yet" if queue.tick_age is None else f"last tick {ago(queue.tick_age)}"
            remedy = "keep `pgqpy ticker` running"
            if state.readings.server.standby_lag is not None:
                remedy += " for the primary, and see whether this standby follows it"
            yield problem(
                f"{queue.queue}: no ticker is running ({last}), so its events are not delivered",
                remedy,
            )
        elif queue.state is QueueState.PAUSED:
            yield note(
                f"{queue.queue}: its ticks are paused, so its events are not delivered",
                f"pgqpy queue config {quote(queue.queue)} ticker_paused false",
            )
    ages = [queue.tick_age for queue in state.queues if queue.tick_age is not None]
    oldest = f"; the oldest last tick was made {ago(max(ages))}" if ages else ""
    yield ok(f"ticks of {plural(len(state.queues), 'queue')} are on time{oldest}")


@_of_queues("failing consumers", "pgq.failing_consumer")
def failing_consumers(state: Judgement) -> Iterator[Finding]:
    """Consumers whose open batch has failed and is retried, with the error."""
    for queue in state.queues:
        for consumers in _by_group(state, queue, ConsumerState.FAILING):
            yield _failing(queue, [each for _, each in consumers], state.patience)
    number = sum(len(queue.consumers) for queue in state.queues)
    yield ok(f"{plural(number, 'consumer')}, no batch fails")


@_of_queues("stuck consumers")
def stuck_consumers(state: Judgement) -> Iterator[Finding]:
    """Consumers behind that have neither opened nor finished a batch for long; worst first."""
    found: list[tuple[int, Finding]] = []
    unseen: Counter[str] = Counter()
    for queue in state.queues:
        for consumers in _by_group(state, queue, ConsumerState.STUCK):
            stuck = [each for _, each in consumers]
            group = consumers[0][0]
            if group is None:
                [consumer] = stuck
                if state.readings.groups is None and (name := group_in(consumer.consumer)):
                    unseen[f"{name} of {queue.queue}"] += 1
                    continue
                batch = f" in batch {consumer.current_batch}" if consumer.current_batch else ""
                subject = f"{consumer.consumer} is stuck{batch}"
                remedy = (
                    "start it again; only if its events are not wanted any more: "
                    f"pgqpy consumer unregister {quote(queue.queue)} {quote(consumer.consumer)}"
                )
            else:
                subject = (
                    f"{len(stuck)} of {plural(group.partitions, 'partition')} of group "
                    f"{group.name} {'is' if len(stuck) == 1 else 'are'} stuck"
                )
                remedy = (
                    "start a worker; only if its events are not wanted any more: "
                    f"pgqpy group drop {quote(queue.queue)} {quote(group.name)}"
                )
            told = problem(f"{queue.queue}: {subject}, {_behind(queue, stuck)}", remedy)
            found.append((max(each.pending_events or 0 for each in stuck), told))
    yield from (told for _, told in sorted(found, key=lambda pair: -pair[0]))
    if unseen:
        yield problem(
            f"{plural(unseen.total(), 'partition')} stuck in groups that your role may not see: "
            f"{', '.join(unseen)}",
            "start their workers; look again as a member of pgq_reader",
        )
    yield ok("all consumers that are behind work")


@_of_queues("paused consumers", "pgq.get_paused_consumers(text)")
def paused_consumers(state: Judgement) -> Iterator[Finding]:
    """Consumers and groups that are paused (pgq.pause_consumer), and what waits for them."""
    for queue in state.queues:
        for consumers in _by_group(state, queue, ConsumerState.PAUSED):
            paused = [each for _, each in consumers]
            group = consumers[0][0]
            name = paused[0].consumer if group is None else group.name
            yield note(
                f"{queue.queue}: {name} is paused, {_behind(queue, paused)}",
                f"to end it: pgqpy consumer resume {quote(queue.queue)} {quote(name)}",
            )
    yield ok("no consumer is paused")


@_of_queues("parked keys", "pgq.get_group_info(text,text)")
def parked_keys(state: Judgement) -> Iterator[Finding]:
    """Keys of consumer groups whose events are parked and not retried by themselves."""
    known = {queue.queue for queue in state.queues}
    for group in state.readings.groups or ():
        if group.keys_given_up and group.queue in known:
            number = group.keys_given_up
            yield warning(
                f"{group.queue}: {plural(number, 'key')} of group {group.name} failed too often: "
                f"{'it is' if number == 1 else 'they are'} not retried",
                f"see why: pgqpy group parked {quote(group.queue)} {quote(group.name)}; "
                "then unpark",
            )
    yield ok(f"{plural(len(state.readings.groups or ()), 'group')}, no key waits for a decision")


@_of_queues("rotation")
def rotation(state: Judgement) -> Iterator[Finding]:
    """Whether event tables are rotated when that is due, and what each rotation waits for."""
    for queue in state.queues:
        if queue.rotation_due_in is None:
            continue
        told = (ConsumerState.STUCK, ConsumerState.FAILING)
        known = {each.consumer for each in queue.consumers if each.state in told}
        others = [holder for holder in queue.rotation_held_by if holder not in known]
        overdue = -queue.rotation_due_in
        if others:
            yield warning(
                f"{queue.queue}: rotation has been due for {duration(overdue)} and waits "
                f"for {', '.join(others)}",
                "it goes on by itself when that has moved on; until then the event tables grow",
            )
        elif overdue > state.patience and not queue.rotation_held_by:
            yield problem(
                f"{queue.queue}: rotation has been due for {duration(overdue)}, and nothing is "
                "known to hold it up: maintenance does not run, or fails",
                "keep `pgqpy ticker` running, and see its log",
            )
    yield ok("no rotation that is due is held up")


@_of_queues("foreign locks", "pgq.get_foreign_locks()")
def foreign_locks(state: Judgement) -> Iterator[Finding]:
    """Advisory locks of ours that roles without any role of ours hold (pgq.get_foreign_locks)."""
    for lock in state.readings.foreign_locks:
        worse = problem if lock.lock == LEAD else warning
        if lock.pid is None:
            yield worse(
                f"prepared transaction {lock.holder} of {lock.username}, which has no role of pgq, "
                f"holds up {lock.lock}",
                f"rollback prepared {_literal(lock.holder)}",
            )
        else:
            yield worse(
                f"session {lock.pid} of {lock.username} ({lock.holder or 'no name'}), which has no "
                f"role of pgq, holds up {lock.lock}",
                f"select pg_terminate_backend({lock.pid}), and see to it that it does not come "
                "back",
            )
    yield ok("only roles of pgq hold its advisory locks")


@_of_queues("old transactions")
def transactions(state: Judgement) -> Iterator[Finding]:
    """Old transactions that have written, also prepared ones: events and rotation wait for them."""
    for old in state.readings.transactions:
        here = old.database == state.readings.server.database
        where = "" if here else f" in database {old.database}"
        if old.kind == "prepared":
            gid = _literal(old.name)
            yield warning(
                f"prepared transaction {old.name} of {old.username}{where} is "
                f"{duration(old.age)} old",
                f"commit prepared {gid}, or rollback prepared {gid}",
            )
        else:
            query = f"; its last statement: {old.query}" if old.query else ""
            yield warning(
                f"session {old.name} of {old.username} ({old.application or 'no name'}, "
                f"{old.state}){where} has had a transaction open for {duration(old.age)}{query}",
                f"end it, or: select pg_terminate_backend({old.name})",
            )
    yield ok(f"no transaction that has written is older than {duration(state.patience)}")


@dataclass(frozen=True, slots=True)
class Status:
    """The output of `pgqpy status`; with --json, exactly this."""

    server: Server
    queues: list[QueueStatus]
    old_transactions: list[Transaction]
    foreign_locks: list[ForeignLock]
    failures: list[Failure]
    alerts: list[Finding]


def status_of(state: Judgement) -> Status:
    """Return the states, and what the checks above find wrong, in their order."""
    readings = state.readings
    return Status(
        readings.server,
        state.queues,
        readings.transactions,
        readings.foreign_locks,
        readings.failures,
        [
            replace(finding, check=name)
            for name, find in _FIND.items()
            for finding in find(state)
            if finding.verdict.rank >= Verdict.WARNING.rank
        ],
    )


def _by_group(
    state: Judgement, queue: QueueStatus, wanted: ConsumerState
) -> Iterator[Sequence[tuple[Group | None, ConsumerStatus]]]:
    """Return consumers in a state: first those of each group together, then each of the others."""
    left = [each for each in queue.consumers if each.state is wanted]
    for group in state.readings.groups or ():
        if group.queue == queue.queue:
            found = [each for each in left if each.consumer in group.consumers]
            left = [each for each in left if each not in found]
            if found:
                yield [(group, each) for each in found]
    yield from ([(None, each)] for each in left)


def _failing(queue: QueueStatus, consumers: list[ConsumerStatus], patience: timedelta) -> Finding:
    """Describe what is wrong with a consumer, or with the group's partition that failed last."""
    failures = [(each, each.failing) for each in consumers if each.failing is not None]
    consumer, failing = min(failures, key=lambda pair: pair[1].last_attempt)
    others = len(consumers) - 1
    also = f" (and {plural(others, 'other partition')})" if others else ""
    event = f" at event {failing.event_id}" if failing.event_id is not None else ""
    again = "its batch comes again by itself, nothing is left out"
    if failing.last_attempt > patience:
        again = f"it was last tried {ago(failing.last_attempt)}: start it again"
    return problem(
        f"{queue.queue}: {consumer.consumer}{also} fails in batch {failing.batch_id}{event}, "
        f"{plural(failing.attempts, 'time')} in {duration(failing.age)}, "
        f"{_behind(queue, consumers)}: {failing.error}",
        f"remove the cause; {again}",
    )


def _behind(queue: QueueStatus, consumers: list[ConsumerStatus]) -> str:
    """Describe when they were last seen, and how far the last of them is behind."""
    seen = min((each.last_seen for each in consumers if each.last_seen is not None), default=None)
    events = max((each.pending_events or 0 for each in consumers), default=0)
    holds = any(each.consumer in queue.rotation_held_by for each in consumers)
    waits = f"; rotation waits for {'it' if len(consumers) == 1 else 'them'}" if holds else ""
    return f"last seen {ago(seen)}, {plural(events, 'event')} behind{waits}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
