"""A worker's run, from its first claim until it stops."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import cast

from pgqpy._runtime.acompat import AsyncWaker, Waker
from pgqpy._runtime.backoff import Backoff
from pgqpy._runtime.failure import soon
from pgqpy.errors import PERMANENT, PgqError, TaskQueueNotFound, is_transient
from pgqpy.log import logger
from pgqpy.tasks._notifier import Notifier
from pgqpy.tasks._outcome import Released
from pgqpy.tasks._settings import Settings
from pgqpy.tasks._worker.claimer import Claimer
from pgqpy.tasks._worker.completer import Completer, Hooks
from pgqpy.tasks._worker.completion import Completion
from pgqpy.tasks._worker.exchange import LOCK_NOT_AVAILABLE, Exchange
from pgqpy.tasks._worker.executor import Executor
from pgqpy.tasks._worker.leases import Claim, Leases

#: The maximum seconds until an outcome is reported, unless the next one takes longer.
_PROMPT = 0.02
#: The seconds in which a cancelled task may clean up.
_CLEAN_UP = 1.0


class Loop:
    """The loop: complete tasks and claim the next ones, in one round trip; work on them."""

    def __init__(self, settings: Settings, hooks: Hooks, waker: AsyncWaker | Waker) -> None:
        self._settings = settings
        self._hooks = hooks
        self._io = hooks._io
        self._waker = cast(AsyncWaker, waker)
        self._completer = Completer(settings, hooks)
        self._executor = Executor(settings, hooks, self._completer, waker)
        self._claimer = Claimer(settings, self.leases)
        self._exchange = Exchange(settings, self._io)
        self._notifier: Notifier | None = None
        if (listen_dsn := settings.database.listen_dsn) is not None:
            self._notifier = Notifier(self._io, listen_dsn, "pgq_task", settings.queues, "tasks")
        #: The concurrency slots that work.
        self._slots = self._io.slots(waker.wake)
        #: Outcomes that the server may not know yet.
        self._uncompleted: list[Completion] = []
        self._completed_at = 0.0
        #: A claimed task that begins after all waiting tasks are released: if it ends this process,
        #: no other task loses an attempt.
        self._suspect: Claim | None = None
        self._away = Backoff(0.1, settings.reconnect_cap)
        #: When to wait no longer for running tasks; known from the end of the loop on.
        self._wait_until: float | None = None

    @property
    def leases(self) -> Leases:
        """The tasks that the worker has."""
        return self._completer.leases

    async def run(self) -> None:
        """Work until the worker stops, or until there is nothing to do."""
        settings = self._settings
        name = settings.database.claimant
        try:
            await self._exchange.connection()
            logger.info("worker %s started", name, extra=settings.fields)
            while not self._hooks.stopping:
                self._end_hanging()
                if self._slots.failed:
                    # As at a signal. Then `_leave` raises it.
                    self._hooks.stopping = True
                    break
                try:
                    if not await self._turn():
                        break
                except PgqError as error:
                    missing = isinstance(error, TaskQueueNotFound)
                    if missing and await self._exchange.forget_dropped():
                        continue
                    if settings.until_empty or isinstance(error, PERMANENT):
                        raise
                    await self._database_away(error)
            await self._leave()
            logger.info("worker %s stopped", name, extra=settings.fields)
        finally:
            self._executor.halted = True
            await self._io.call(self._slots.close, self._patience())
            # After an error: report the outcomes that can be reported at once.
            try:
                with suppress(Exception):
                    await self._leave()
            finally:
                self.leases.close()
                await self._executor.close()
                await self._exchange.close()
                if self._notifier is not None:
                    await self._notifier.close()

    async def _turn(self) -> bool:
        """Run one round. False if there is nothing to do."""
        if self.leases.waiting:
            if self._settings.in_slots:
                free = self._settings.concurrency - len(self._slots)
                for _ in range(min(len(self.leases.waiting), free)):
                    self._io.start(self._slots, self._executor.work)
            else:
                await self._executor.work(until=monotonic() + _PROMPT)
            if self._hooks.stopping:
                return True
        now = monotonic()
        able = now >= self._completer.not_before
        if able and now >= self._exchange.push_at:
            await self._exchange.push_due()
        answers = self._heard and self._claimer.answers(now)
        running, ended = len(self._slots), len(self._executor.ended)
        looks = able and (answers or self._claimer.looks(now, running, ended))
        room = self._claimer.room(running, ended) if looks else 0
        if room or self._completion_is_due(now):
            await self._complete_and_claim(room)
            if room and answers:
                self._claimer.answered(now)
            if monotonic() >= self._exchange.sweep_at and await self._exchange.sweep():
                self._claimer.look_soon()
            return True
        busy = self._slots or self.leases.waiting
        if self._settings.until_empty and self._claimer.done and not busy:
            return False
        if able and now >= self._exchange.sweep_at and await self._exchange.sweep():
            self._claimer.look_soon()
        await self._wait(now)
        return True

    @property
    def _heard(self) -> bool:
        return self._notifier is not None and self._notifier.heard

    def _completion_is_due(self, now: float) -> bool:
        if not (self._executor.ended or self._uncompleted):
            return False
        return not (self._slots and self.leases.waiting) or now >= self._completed_at + _PROMPT

    async def _wait(self, now: float) -> None:
        """Wait for a task, for the end of one, or until it is time to poll."""
        not_before = self._completer.not_before
        room = self._claimer.room(len(self._slots), len(self._executor.ended))
        heard = self._heard
        # Otherwise a notification could not be answered.
        able = bool(room) and now >= not_before
        wakes_at = self._claimer.wakes_at(heard and able) if room else self._exchange.sweep_at
        until = max(wakes_at, not_before)
        if self._executor.ended:
            until = min(until, self._completed_at + _PROMPT)
        until = min(until, max(self._exchange.push_at, not_before))
        seconds = max(until - now, 0.001)
        if self._notifier is None or heard or not able:
            await self._io.call(self._waker.wait, seconds)
        # Tasks before the first LISTEN were not notified: poll once more.
        elif await self._notifier.open():
            self._claimer.look_soon()
        else:
            await self._notifier.wait(self._waker, seconds)

    async def _complete_and_claim(self, room: int) -> None:
        """Report outcomes, and claim ``room`` tasks, in one round trip and one transaction."""
        while self._executor.ended:
            self._uncompleted.append(self._executor.ended.popleft())
        heard = self._notifier.take() if self._notifier is not None and room else set()
        busy = bool(self._slots)
        conn = await self._exchange.connection()
        completions = await self._completer.prepare(conn, self._uncompleted)
        again = bool(room) and self._claimer.dry
        # First those that notifications have named, and nothing else: then the task begins.
        named = self._exchange.among(heard) if again and not self._settings.until_empty else []
        arm = again and not (self._settings.until_empty or named)
        # A claim misses tasks that a sweep has yet to bring forward, some of which this worker's
        # tasks may have pushed or unblocked.
        last = again and self._settings.until_empty and not (busy or completions.all)
        try:
            answers, due, rows = await self._exchange.ask(
                conn, completions, room, arm=arm, last=last, named=named
            )
        except PgqError as error:
            if last and error.sqlstate == LOCK_NOT_AVAILABLE:
                # The next round tries again.
                return
            if not self._uncompleted or is_transient(error) or conn.closed:
                raise
            await self._completer.complete_each(conn, self._uncompleted)
            return
        self._away.reset()
        self._uncompleted = []
        self._completed_at = monotonic()
        if room:
            self._claimer.done = last and not rows
            self._take_up(self._claimer.claimed(room, rows, due, self._completed_at))
            if named:
                self._claimer.look_at_all()
        if completions.all:
            await self._completer.report(completions, answers)
        if self._suspect is not None:
            suspect, self._suspect = self._suspect, None
            try:
                await self._complete_and_claim(0)
            finally:
                self._add([suspect])

    def _take_up(self, claims: list[Claim]) -> None:
        """Take the claimed tasks; if one may have ended a worker, release the others first."""
        if claims:
            self._executor.batch_size = self._claimer.share
        suspect = next((claim for claim in claims if claim.suspect), None)
        alone = len(claims) + len(self.leases.waiting) == 1
        if suspect is not None:
            self._claimer.beware(suspect, alone=alone)
        if suspect is None or alone:
            self._add(claims)
            return
        self._suspect = suspect
        for claim in [*self.leases.take_waiting(), *claims]:
            if claim is not suspect:
                self._executor.ended.append(Completion(claim, Released(None)))

    def _add(self, claims: list[Claim]) -> None:
        for claim in self.leases.add(claims):
            # Its lease had ended, and this worker has it again.
            self._completer.lost(claim)

    # --- trouble, and the end

    async def _database_away(self, error: PgqError) -> None:
        """Reconnect, after a pause."""
        pause = self._away.pause(error)
        logger.log(
            self._away.level,
            "worker %s lost the database: %s; again %s",
            self._settings.database.claimant,
            str(error).partition("\n")[0],
            soon(pause),
            extra=self._settings.fields | {"pause": pause},
        )
        await self._exchange.close()
        await self._io.call(self._hooks.on_error, error)
        if not self._hooks.stopping:
            await self._io.call(self._waker.wait, pause)

    def _end_hanging(self) -> None:
        """Fail the tasks whose handlers hang; stop if no slot will be free any more."""
        full = len(self._slots) == self._settings.concurrency
        stuck = self._hooks._stuck() if full else None
        while (hung := self._hooks._hung()) is not None:
            task, error = hung
            claim = self.leases.claims().get(task.id)
            # Else it was lost, or has ended meanwhile.
            if claim is not None and claim.task is task and claim.interrupt is not None:
                claim.lost = True
                outcome = self._completer.outcome_of_error(claim, error)
                self._executor.ended.append(Completion(claim, outcome))
        if stuck is not None:
            self._wait_until = 0.0
            self._slots.fail(stuck)

    async def _leave(self) -> None:
        """Release waiting tasks, wait for the running ones, and report their outcomes."""
        away = Backoff(0.1, 2)
        failures = 0
        cancelled = False
        while True:
            for claim in self.leases.take_waiting():
                self._executor.ended.append(Completion(claim, Released(None)))
            if not self._executor.ended and not self._uncompleted:
                patience = self._patience()
                if not self._slots:
                    break
                if patience != 0:
                    seconds = 1 if patience is None else min(patience, 1)
                    await self._io.call(self._waker.wait, seconds)
                elif not cancelled:
                    cancelled = True
                    for claim in self.leases.claims().values():
                        logger.warning(
                            "task %s of queue %s is released while it runs: the worker stops",
                            claim.task.id,
                            claim.task.queue,
                            extra=self._settings.fields | {"task_id": claim.task.id},
                        )
                    await self._io.call(self._slots.cancel, _CLEAN_UP)
                elif not self._abandon():
                    break
                continue
            try:
                await self._complete_and_claim(0)
            except PgqError as error:
                failures += 1
                if isinstance(error, PERMANENT) or failures > 5 or not self._hooks.stopping:
                    raise
                await self._io.call(self._waker.wait, away.pause())
        self._slots.check()

    def _patience(self) -> float | None:
        """Return the seconds to wait for running tasks. None: no limit."""
        if self._wait_until is None:
            if self._settings.stop_timeout is None:
                return None
            self._wait_until = monotonic() + self._settings.stop_timeout
        return max(self._wait_until - monotonic(), 0)

    def _abandon(self) -> bool:
        """Give the running tasks back. False if there are none."""
        claims = self.leases.claims().values()
        for claim in claims:
            claim.lost = True
            self._executor.ended.append(Completion(claim, Released(None)))
        return bool(claims)
