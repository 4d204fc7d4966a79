"""Each bug changes one line of the controller's behaviour. The observer finds it and names the right invariant."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
from benchmarks.schedules import scheduled

from posttrain.controller import staleness
from posttrain.controller.controller import Controller
from posttrain.controller.invariants import INVARIANTS
from posttrain.controller.messages import (
    Deliver,
    End,
    Interrupt,
    Lead,
    Loaded,
    Publish,
    Restart,
    Resumed,
    Row,
    Scored,
    Stop,
    Submit,
)
from posttrain.controller.parts import EngineState

SEEDS = range(3000)


class DecodesLostRowsTwice(Controller):
    def _submit(self, name, row):
        super()._submit(name, row)
        if self._groups[row.group].rows[row.g].attempt > 1:
            super()._submit(name, row)


class LeavesOthersAtWhatIsGivenUp(Controller):
    def _give_up(self, number, cause):
        super()._give_up(number, cause)
        self._commands = [command for command in self._commands if not isinstance(command, Interrupt)]


class ForgetsThePlaceOfAVoid(Controller):
    @property
    def _accepted(self):
        return super()._accepted + self.counts["voided"]


class BelievesEarlierAttempts(Controller):
    def holds(self, engine, row, attempt):
        found = self._row(row)
        return found is not None and found.engine is not None and not found.ended

    def _take_from(self, name, row):
        for engine in self._engines.values():
            engine.rows.discard(row)
        self._groups[row.group].rows[row.g].engine = None


class TriesRowsForEver(Controller):
    def _place_again(self, row, cause):
        if self._row(row) is not None:
            self._unplaced.add(row.group)


class OverwritesWhatIsRead(Controller):
    def _publish(self):
        if self._phase == "blocked":
            self._phase = "publishing"
            self._order(Publish(self._version))


class TrainsTheNewestFirst(Controller):
    def _deliver(self):
        self._finished.reverse()
        super()._deliver()
        self._finished.sort()


class TrainsInTheOrderOfArrival(Controller):
    def _scored(self, event):
        super()._scored(event)
        if event.group in self._finished:
            self._finished.remove(event.group)
            self._finished.append(event.group)


class AdmitsOneTooMany(Controller):
    @property
    def _accepted(self):
        return super()._accepted - 1


class AdmitsOneTooFew(Controller):
    @property
    def _accepted(self):
        return super()._accepted + (1 if self._version == 1 else 0)


class TakesNoLeadForOne(Controller):
    def __init__(self, limits, **given):
        super().__init__(replace(limits, run_ahead=max(1, limits.run_ahead)), **given)


class SamplesAheadOfThePublication(Controller):
    def _begin(self):
        phase, self._phase = self._phase, "asked"
        super()._begin()
        self._phase = phase


class BelievesAnyVersion(Controller):
    def _drew(self, event):
        engine = self._engines.get(event.engine)
        if engine is not None and self.holds(event.engine, event.row, event.attempt):
            engine.progress += event.count


class BelievesAnyLoad(Controller):
    def _loaded(self, event):
        engine = self._engines.get(event.engine)
        if engine is not None and engine.loading is not None:
            event = Loaded(event.engine, engine.loading)
        super()._loaded(event)


class SubmitsToOldWeights(Controller):
    def _load(self):
        """Weights are loaded only when the engine has nothing else to do."""
        for name, engine in self._engines.items():
            if engine.version is None or not engine.rows:
                published, others = self._published, self._engines
                self._engines = {name: engine}
                super()._load()
                self._published, self._engines = published, others


class SubmitsWhileWeightsAreLoaded(Controller):
    def _place(self):
        class Ready(EngineState):
            def ready(self, newest):
                return self.joined and self.version is not None

        for engine in self._engines.values():
            engine.__class__ = Ready
        super()._place()


class SpreadsAGroup(Controller):
    def _place(self):
        for number in sorted(self._unplaced):
            rows = self._groups[number].rows
            ready = sorted(name for name, engine in self._engines.items() if engine.ready(self._published))
            for g, row in enumerate(rows):
                if ready and row.engine is None and not row.ended:
                    self._submit(ready[g % len(ready)], Row(number, g))
            if ready:
                self._unplaced.discard(number)


class ForgetsLostEngines(Controller):
    def _lose(self, name, cause, again=False):
        super()._lose(name, cause, again)
        self._commands = [command for command in self._commands if not isinstance(command, Restart)]


class StartsEnginesForEver(Controller):
    def _lose(self, name, cause, again=False):
        if name in self._engines:
            self._engines[name].losses = min(self._engines[name].losses, self.limits.attempts - 2)
        super()._lose(name, cause, again)


class StartsRowsFromTheirPrompt(Controller):
    def _order(self, command):
        if isinstance(command, Submit):
            command = Submit(command.engine, command.row, command.attempt, 0)
        super()._order(command)


class DeliversWithoutBeingAsked(Controller):
    def _deliver(self):
        if self._phase == "between":
            self._phase = "asked"
        super()._deliver()

    def _trainer_was(self, phase, event):
        pass


class DeliversOneTooFew(Controller):
    def _order(self, command):
        if isinstance(command, Deliver) and len(command.groups) > 1:
            command = Deliver(command.version, command.groups[:-1])
        super()._order(command)


class TrainsAGroupTwice(Controller):
    def _trained(self, event):
        again = self._training[:1]
        super()._trained(event)
        self._finished = [*again, *self._finished]


class TrainsWhatIsVoided(Controller):
    def _scored(self, event):
        super()._scored(Scored(event.group, trains=True))


class DropsWhatIsOld(Controller):
    def _deliver(self):
        if len(self._finished) > self.limits.prompts_per_step:
            del self._finished[0]
        super()._deliver()


class ForgetsLostRewards(Controller):
    def _scoring_lost(self, number, cause):
        self._scoring.discard(number)


class ForgetsTheDeadlineOfRewards(Controller):
    def _all_waits(self):
        return (wait for wait in super()._all_waits() if wait.kind != "score")


class IgnoresDeadlines(Controller):
    def _late(self, wait):
        self._ignore()


class SavesNothingOfAStepUnderWay(Controller):
    def state(self):
        return {**super().state(), "finished": list(self._finished)}


class SavesRowsWithoutTheirTokens(Controller):
    def state(self):
        state = super().state()
        for group in state["in_flight"]:
            group["rows"] = [{"spans": [], "ended": row["ended"]} for row in group["rows"]]
        return state


class ForgetsGroupsThatWereBeingScored(Controller):
    @classmethod
    def restored(cls, limits, state, *, engines=()):
        controller = super().restored(limits, state, engines=engines)
        controller._unscored.clear()
        return controller


class BeginsThoughTheRunIsToEnd(Controller):
    def _end(self, cause):
        super()._end(cause)
        self._ending = None


class GoesOnAfterTheEnd(Controller):
    def _stop(self, cause, *, failed):
        self._order(Stop(cause, failed))


class ScoresWhatIsEvaluated(Controller):
    def _ended(self, event):
        evaluated = self._groups.get(event.row.group)
        super()._ended(event)
        if event.row.group < 0 and evaluated is not None and evaluated.ended:
            self._groups[event.row.group] = evaluated
            self._unscored.add(event.row.group)


class EvaluatesWithOldWeights(Controller):
    def _place(self):
        for number in [number for number in sorted(self._unplaced) if number < 0]:
            for name, engine in self._engines.items():
                if engine.joined and engine.version is not None and number in self._unplaced:
                    self._unplaced.discard(number)
                    for g in range(len(self._groups[number].rows)):
                        if not self._groups[number].rows[g].ended:
                            self._submit(name, Row(number, g))
        super()._place()


class AnswersWithItsFirstRow(Controller):
    def _ended(self, event):
        if event.row.group < 0 and self._held(event) is not None:
            for row in self._groups[event.row.group].rows:
                row.ended = True
        super()._ended(event)


class CountsEvaluationsAsInFlight(Controller):
    @property
    def in_flight(self):
        return len(self._groups)


class ForgetsEvaluationsOfLostEngines(Controller):
    def _place_again(self, row, cause):
        super()._place_again(row, cause)
        if row.group < 0:
            self._unplaced.discard(row.group)


class KeepsItsFirstLead(Controller):
    def _learn(self, event):
        if not isinstance(event, Lead):
            super()._learn(event)


class TrainsWhileEnginesHoldMemory(Controller):
    @property
    def _has_room(self):
        return True


class StartsEnginesWhileItTrains(Controller):
    def _order(self, command):
        if isinstance(command, End):
            self._engines[command.engine].down = False
            command = Restart(command.engine)
        super()._order(command)


class WakesEnginesWhileItTrains(Controller):
    @property
    def _memory_is_the_trainers(self):
        return super()._memory_is_the_trainers and self._phase == "asked"


class LeavesEnginesAsleep(Controller):
    def _load(self):
        everybody = self._engines
        self._engines = {name: engine for name, engine in everybody.items() if not engine.asleep}
        super()._load()
        self._engines = everybody


class ForgetsTheDeadlineOfASleep(Controller):
    def _all_waits(self):
        return (wait for wait in super()._all_waits() if wait.kind != "sleep")


class NeverStartsWhatDiedAsleep(Controller):
    def _restart(self):
        pass


class DrawsWhileTheEnvironmentAnswers(Controller):
    def _may_be_placed(self, row):
        found = self._groups[row.group].rows[row.g]
        return not found.ended and found.engine is None

    def _paused(self, event):
        super()._paused(event)
        if event.row in self._away:
            self._unplaced.add(event.row.group)


class OpensNoEnvironment(Controller):
    def _open(self):
        self._unopened.clear()


class ForgetsWhoComesBack(Controller):
    def _back(self, event):
        super()._back(event)
        self._unplaced.discard(event.row.group)


class KeepsTokensOfAnEarlierBeginning(Controller):
    def _back(self, event):
        super()._back(replace(event, anew=False) if isinstance(event, Resumed) else event)


class KeepsTokensOfTurnsThatBeginAnew(Controller):
    def _enter(self, number, group, *, turns):
        spans = [row.spans for row in group.rows]
        super()._enter(number, group, turns=turns)
        for row, own in zip(group.rows, spans, strict=True):
            row.spans = own


class ForgetsTheDeadlineOfEnvironments(Controller):
    def _all_waits(self):
        return (wait for wait in super()._all_waits() if wait.kind != "act")


BUGS = {
    DecodesLostRowsTwice: "holders",
    LeavesOthersAtWhatIsGivenUp: "holders",
    ForgetsThePlaceOfAVoid: "places",
    BelievesEarlierAttempts: "attempts",
    TriesRowsForEver: "attempts",
    OverwritesWhatIsRead: "buffers",
    TrainsTheNewestFirst: "order",
    TrainsInTheOrderOfArrival: "order",
    AdmitsOneTooMany: "admission",
    AdmitsOneTooFew: "places",
    SamplesAheadOfThePublication: "admission",
    BelievesAnyVersion: "versions",
    BelievesAnyLoad: "versions",
    SubmitsToOldWeights: "weights",
    TakesNoLeadForOne: "synchronous",
    SubmitsWhileWeightsAreLoaded: "weights",
    SpreadsAGroup: "together",
    ForgetsLostEngines: "engines",
    StartsEnginesForEver: "engines",
    StartsRowsFromTheirPrompt: "tokens",
    DeliversWithoutBeingAsked: "batch",
    DeliversOneTooFew: "batch",
    TrainsAGroupTwice: "once",
    TrainsWhatIsVoided: "once",
    DropsWhatIsOld: "order",
    ForgetsLostRewards: "rewards",
    ForgetsTheDeadlineOfRewards: "owners",
    IgnoresDeadlines: "engines",
    SavesNothingOfAStepUnderWay: "state",
    SavesRowsWithoutTheirTokens: "state",
    ForgetsGroupsThatWereBeingScored: "rewards",
    BeginsThoughTheRunIsToEnd: "ends",
    GoesOnAfterTheEnd: "ends",
    ScoresWhatIsEvaluated: "evaluation",
    EvaluatesWithOldWeights: "weights",
    AnswersWithItsFirstRow: "evaluation",
    CountsEvaluationsAsInFlight: "places",
    ForgetsEvaluationsOfLostEngines: "places",
    KeepsItsFirstLead: "places",
    TrainsWhileEnginesHoldMemory: "memory",
    StartsEnginesWhileItTrains: "memory",
    WakesEnginesWhileItTrains: "memory",
    LeavesEnginesAsleep: "weights",
    ForgetsTheDeadlineOfASleep: "owners",
    NeverStartsWhatDiedAsleep: "memory",
    DrawsWhileTheEnvironmentAnswers: "turns",
    OpensNoEnvironment: "turns",
    ForgetsWhoComesBack: "places",
    KeepsTokensOfAnEarlierBeginning: "tokens",
    KeepsTokensOfTurnsThatBeginAnew: "tokens",
    ForgetsTheDeadlineOfEnvironments: "owners",
}
"""Bugs, each with the invariant that it breaks."""


LONG_IN_COMING = {
    LeavesOthersAtWhatIsGivenUp: 44,
    BelievesEarlierAttempts: 284,
    OverwritesWhatIsRead: 695,
    BelievesAnyVersion: 5,
    BelievesAnyLoad: 34,
    DropsWhatIsOld: 10,
    SavesNothingOfAStepUnderWay: 21,
    SavesRowsWithoutTheirTokens: 12,
    ForgetsGroupsThatWereBeingScored: 423,
    GoesOnAfterTheEnd: 43,
    CountsEvaluationsAsInFlight: 22,
    ForgetsEvaluationsOfLostEngines: 36,
    KeepsItsFirstLead: 9,
    TrainsWhileEnginesHoldMemory: 14,
    StartsEnginesWhileItTrains: 29,
    WakesEnginesWhileItTrains: 13,
    LeavesEnginesAsleep: 14,
    ForgetsTheDeadlineOfASleep: 14,
    NeverStartsWhatDiedAsleep: 75,
    KeepsTokensOfAnEarlierBeginning: 5,
    KeepsTokensOfTurnsThatBeginAnew: 1908,
}
"""Bugs that take long to show, each with a seed shortly before one that shows it. The search begins there, and
goes through all other seeds if a change of the controller has moved that schedule."""


def names_found(bug: type[Controller], expected: str) -> set[str]:
    """Return the invariants broken in the first failing schedules, up to the one that breaks the expected invariant."""
    found: set[str] = set()
    begins = LONG_IN_COMING.get(bug, 0)
    for seed in chain(SEEDS[begins:], SEEDS[:begins]):
        try:
            found |= {broken.name for broken in scheduled(seed, controller=bug).broken}
        except (KeyError, ValueError):  # the bug has crashed the controller itself
            continue
        if expected in found:
            break
    return found


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_by_its_name(bug):
    assert BUGS[bug] in names_found(bug, BUGS[bug])


def test_a_bound_that_is_one_too_large_is_found(monkeypatch):
    true = staleness.kept
    monkeypatch.setattr(
        staleness, "kept", lambda version, versions, bound, every=1: true(version, versions, bound + 1, every)
    )
    assert "age" in names_found(Controller, "age")


def test_every_invariant_is_broken_by_some_bug():
    assert set(BUGS.values()) | {"age"} == set(INVARIANTS)
