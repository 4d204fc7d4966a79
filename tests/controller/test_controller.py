"""The commands of the controller, event by event."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from posttrain.controller.controller import Controller
from posttrain.controller.messages import (
    Asked,
    Command,
    Deliver,
    Dismiss,
    Drew,
    End,
    Ended,
    Ending,
    Evaluate,
    Evaluated,
    Finished,
    GiveUp,
    Interrupt,
    Joined,
    Late,
    Limits,
    Load,
    Loaded,
    Lost,
    Open,
    Paused,
    Publish,
    Published,
    Restart,
    Resumed,
    Returned,
    Row,
    Score,
    Scored,
    ScoringLost,
    Sleep,
    Slept,
    Stop,
    Submit,
    Trained,
    Wait,
)


def limits(**changes: Any) -> Limits:
    return Limits(**{"prompts_per_step": 2, "group_size": 2, "last_version": 3, **changes})


def started(engines: str = "a", **changes: Any) -> tuple[Controller, list[Command]]:
    """Return a controller whose engines have version 0, and its first submits."""
    controller = Controller(limits(**changes), engines=engines)
    for engine in engines:
        controller.handle(Joined(engine))
    controller.handle(Published(0))
    commands = [command for engine in engines for command in controller.handle(Loaded(engine, 0))]
    return controller, commands


def answer(controller: Controller, commands: Iterable[Command], version: int = 0, count: int = 3) -> list[Command]:
    """Decode all submitted rows to their end, and return the resulting commands."""
    ordered: list[Command] = []
    for submit in commands:
        if isinstance(submit, Submit):
            said = (submit.engine, submit.row, submit.attempt)
            ordered += controller.handle(Drew(*said, version, count))
            ordered += controller.handle(Ended(*said))
    return ordered


def scored(controller: Controller, commands: Iterable[Command]) -> list[Command]:
    """Give all requested rewards, and return the resulting commands."""
    ordered: list[Command] = []
    for score in commands:
        if isinstance(score, Score):
            ordered += controller.handle(Scored(score.group))
    return ordered


def waiting(controller: Controller) -> set[tuple[str, str]]:
    return {(wait.kind, wait.owner) for wait in controller.waits()}


def test_a_synchronous_step():
    controller, commands = started()
    assert commands == [Submit("a", Row(group, g), 1, 0) for group in (0, 1) for g in (0, 1)]
    assert controller.handle(Asked()) == []
    assert answer(controller, commands) == [Score(0), Score(1)]
    assert waiting(controller) == {("score", "rewards")}
    assert controller.handle(Scored(1)) == []
    assert controller.handle(Scored(0)) == [Deliver(0, (0, 1))]
    assert controller.handle(Trained(1)) == [Publish(1)], "no row is sampled with old weights"
    assert controller.handle(Published(1)) == [Load("a", 1)]
    assert controller.handle(Loaded("a", 1)) == [Submit("a", Row(group, g), 1, 0) for group in (2, 3) for g in (0, 1)]


def in_turns(**changes: Any) -> tuple[Controller, list[Command]]:
    """Return a controller with one group per step and rows with turns, and its commands to their environments."""
    controller = Controller(limits(prompts_per_step=1, turns=True, **changes), engines="a")
    controller.handle(Joined("a"))
    opened = [command for command in controller.handle(Published(0)) if isinstance(command, Open)]
    controller.handle(Loaded("a", 0))
    return controller, opened


def test_a_row_of_several_turns_is_with_its_environment_or_with_an_engine():
    """Environments start before the first turn, and again after each, in parallel. Only the group waits for them."""
    controller, opened = in_turns()
    one, other = Row(0, 0), Row(0, 1)
    assert opened == [Open(one), Open(other)]
    assert waiting(controller) == {("act", "environments"), ("ask", "trainer")}
    assert controller.handle(Resumed(one)) == [Submit("a", one, 1, 0)]
    controller.handle(Drew("a", one, 1, 0, 5))
    assert controller.handle(Paused("a", one, 1)) == []
    assert waiting(controller) == {("act", "environments"), ("ask", "trainer")}, "the engine may not count as late"
    assert controller.handle(Ended("a", one, 1)) == [], "the event belongs to an attempt that is over"
    assert controller.handle(Resumed(one)) == [Submit("a", one, 2, 5)]
    controller.handle(Drew("a", one, 2, 0, 3))
    controller.handle(Paused("a", one, 2))
    assert controller.handle(Finished(one)) == []
    assert controller.handle(Finished(other)) == [Score(0)], "the other row is over before its first turn"
    assert controller.handle(Resumed(one)) == [], "the row is over"


def test_a_row_whose_environment_failed_begins_anew():
    controller, _ = in_turns()
    row = Row(0, 0)
    controller.handle(Resumed(row))
    controller.handle(Drew("a", row, 1, 0, 5))
    controller.handle(Paused("a", row, 1))
    assert controller.handle(Resumed(row, anew=True)) == [Submit("a", row, 2, 0)]


def test_a_turn_under_way_goes_on_elsewhere_and_what_is_away_stays():
    controller, _ = in_turns(run_ahead=1)
    controller.handle(Resumed(Row(0, 0)))
    controller.handle(Drew("a", Row(0, 0), 1, 0, 5))
    assert controller.handle(Lost("a", "killed")) == [Restart("a")]
    controller.handle(Joined("a"))
    assert controller.handle(Loaded("a", 0)) == [Submit("a", Row(0, 0), 2, 5)]


def test_open_trajectories_begin_anew_in_a_run_that_goes_on():
    """Finished trajectories are kept."""
    controller, _ = in_turns()
    for row in (Row(0, 0), Row(0, 1)):
        controller.handle(Resumed(row))
        controller.handle(Drew("a", row, 1, 0, 5))
        controller.handle(Paused("a", row, 1))
    controller.handle(Finished(Row(0, 1)))
    state = json.loads(json.dumps(controller.state()))
    again = Controller.restored(limits(prompts_per_step=1, turns=True), state, engines="a")
    assert again.handle(Joined("a")) == [Open(Row(0, 0))]
    again.handle(Published(0))
    again.handle(Loaded("a", 0))
    assert again.handle(Resumed(Row(0, 0))) == [Submit("a", Row(0, 0), 1, 0)]
    again.handle(Drew("a", Row(0, 0), 1, 0, 2))
    again.handle(Paused("a", Row(0, 0), 1))
    assert again.handle(Finished(Row(0, 0))) == [Score(0)]


def test_a_group_whose_environments_never_answer_is_given_up():
    controller, _ = in_turns()
    [wait] = [wait for wait in controller.waits() if wait.kind == "act"]
    [given_up, *opened] = controller.handle(Late(wait))
    assert given_up == GiveUp(0, "an environment gave no answer within the deadline")
    assert opened == [Open(Row(1, 0)), Open(Row(1, 1))], "another prompt takes its place"


def test_the_last_engine_is_not_waited_for_in_environments():
    """Their rows could not be drawn, and if the number of open rows is limited, the others would never begin."""
    controller, _ = in_turns(attempts=1)
    controller.handle(Resumed(Row(0, 0)))
    controller.handle(Asked())
    [*_, stop] = controller.handle(Lost("a", "was killed"))
    assert isinstance(stop, Stop)
    assert "no engine is left; the last, a, was lost: was killed" in stop.cause
    assert waiting(controller) == set()


def due(engines: str = "a", **changes: Any) -> tuple[Controller, list[Command]]:
    """Return a controller whose engines share the trainer's device, once the groups of its first step are complete."""
    controller, commands = started(engines, in_turns=True, **changes)
    controller.handle(Asked())
    return controller, scored(controller, answer(controller, commands))


def test_on_one_device_engines_sleep_before_a_step_is_trained_and_wake_to_load_its_weights():
    controller, commands = due()
    assert commands == [Sleep("a")]
    assert waiting(controller) == {("sleep", "a")}
    assert controller.handle(Slept("a")) == [Deliver(0, (0, 1))]
    assert controller.handle(Trained(1)) == [Publish(1)]
    assert waiting(controller) == {("publish", "trainer")}, "a sleeping engine is not late"
    assert controller.handle(Published(1)) == [Load("a", 1)]
    assert controller.handle(Loaded("a", 1)) == [Submit("a", Row(group, g), 1, 0) for group in (2, 3) for g in (0, 1)]


def test_the_batch_waits_for_all_engines_to_sleep():
    controller, commands = due("ab")
    assert commands == [Sleep("a"), Sleep("b")]
    assert controller.handle(Slept("b")) == []
    assert controller.handle(Slept("b")) == [], "the engine reported it twice"
    assert controller.handle(Slept("a")) == [Deliver(0, (0, 1))]


def test_an_engine_that_keeps_its_memory_is_ended_and_started_again_when_the_step_is_over():
    controller, _ = due()
    assert controller.handle(Lost("a", "keeps its memory")) == [End("a"), Deliver(0, (0, 1))]
    assert waiting(controller) == {("train", "trainer")}
    controller.handle(Trained(1))
    assert controller.handle(Published(1)) == [Restart("a")]
    assert controller.handle(Joined("a")) == [Load("a", 1)]


def test_an_engine_that_never_manages_to_sleep_stays_away():
    controller, _ = due(attempts=2)
    controller.handle(Lost("a", "keeps its memory"))
    controller.handle(Trained(1))
    controller.handle(Published(1))
    controller.handle(Joined("a"))
    commands = controller.handle(Loaded("a", 1))
    controller.handle(Asked())
    assert scored(controller, answer(controller, commands, version=1)) == [Sleep("a")]
    assert controller.handle(Lost("a", "keeps its memory"))[0] == Dismiss("a"), (
        "rows that it finished in between do not reset the count"
    )


def test_an_engine_that_does_not_fall_asleep_is_late():
    controller, _ = due()
    [wait] = controller.waits()
    assert controller.handle(Late(wait)) == [End("a"), Deliver(0, (0, 1))]


def test_an_engine_that_dies_asleep_is_started_again_when_the_step_is_over():
    controller, _ = due()
    controller.handle(Slept("a"))
    assert controller.handle(Lost("a", "was killed")) == [End("a")]
    assert controller.handle(Trained(1)) == [Publish(1)]
    assert controller.handle(Published(1)) == [Restart("a")]


def test_an_engine_that_somebody_starts_while_a_step_is_trained_is_told_to_sleep():
    controller, _ = due()
    controller.handle(Slept("a"))
    assert controller.handle(Joined("a")) == [Sleep("a")]
    assert waiting(controller) == {("sleep", "a"), ("train", "trainer")}
    controller.handle(Trained(1))
    assert controller.handle(Published(1)) == [], "the engine is woken only after it has fallen asleep"
    assert controller.handle(Slept("a")) == [Load("a", 1)]


def test_engines_on_the_trainers_device_cannot_be_ahead_of_it():
    with pytest.raises(ValueError, match="cannot be ahead"):
        limits(in_turns=True, run_ahead=1)


def test_a_run_ends_with_its_last_version():
    controller, commands = started(last_version=1)
    controller.handle(Asked())
    scored(controller, answer(controller, commands))
    assert controller.handle(Trained(1)) == [Publish(1)], "engines evaluate the last version, too"
    assert controller.handle(Published(1)) == [Load("a", 1)]
    assert controller.handle(Loaded("a", 1)) == [], "no step would train a group that begins now"
    assert controller.handle(Asked()) == [Stop("done", failed=False)]
    assert controller.waits() == frozenset()
    assert controller.handle(Asked()) == []


def test_an_evaluation_goes_before_all_else_and_is_answered_by_the_weights_of_its_version():
    controller, commands = started(run_ahead=1)
    assert len(commands) == 8, "the rows of two steps have begun"
    asked = controller.handle(Evaluate(-1, 3))
    assert asked == [Submit("a", Row(-1, g), 1, 0) for g in range(3)]
    assert waiting(controller) == {("draw", "a")}, "the trainer itself waits for the evaluation"
    assert controller.in_flight == 4
    assert [group["group"] for group in controller.state()["in_flight"]] == [0, 1, 2, 3]
    assert answer(controller, asked) == [Evaluated(-1)]
    assert waiting(controller) == {("draw", "a"), ("ask", "trainer")}
    assert controller.handle(Asked()) == []


def test_an_evaluation_waits_for_the_weights_of_its_version_and_moves_with_its_engine():
    controller, commands = started("ab")
    controller.handle(Asked())
    scored(controller, answer(controller, commands))
    controller.handle(Trained(1))
    controller.handle(Published(1))
    assert controller.handle(Evaluate(-1, 1)) == [], "no engine has version 1"
    assert Submit("a", Row(-1, 0), 1, 0) in controller.handle(Loaded("a", 1))
    controller.handle(Loaded("b", 1))
    controller.handle(Drew("a", Row(-1, 0), 1, 1, 4))
    assert Submit("b", Row(-1, 0), 2, 4) in controller.handle(Lost("a", "was killed"))


def test_an_evaluation_that_no_engine_can_answer_is_given_up():
    controller, _ = started(attempts=1)
    controller.handle(Evaluate(-1, 1))
    commands = controller.handle(Returned("a", Row(-1, 0), 1))
    assert [command.group for command in commands if isinstance(command, GiveUp)] == [-1]


def test_an_evaluation_comes_between_a_publication_and_the_next_batch():
    controller, _ = started(publish_every=2)
    with pytest.raises(ValueError, match="below 0"):
        controller.handle(Evaluate(0, 1))
    controller, commands = started()
    controller.handle(Asked())
    scored(controller, answer(controller, commands))
    with pytest.raises(ValueError, match="while the trainer is training"):
        controller.handle(Evaluate(-1, 1))


def test_a_judge_asks_while_the_trainer_waits_and_no_batch_comes_before_its_answer():
    controller, commands = started()
    controller.handle(Asked())
    ended = answer(controller, commands)
    question = controller.handle(Evaluate(-1, 1))
    assert question == [Submit("a", Row(-1, 0), 1, 0)]
    assert not [command for command in scored(controller, ended) if isinstance(command, Deliver)]
    told = answer(controller, question)
    assert [type(command) for command in told] == [Evaluated, Deliver]


def test_rows_of_a_prompt_go_together_to_the_engine_that_has_the_fewest():
    _, commands = started("ab", run_ahead=1)
    engines = [(command.row.group, command.engine) for command in commands if isinstance(command, Submit)]
    assert sorted(set(engines)) == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]


def test_an_engine_that_is_still_loading_has_its_share_kept_for_it():
    controller = Controller(limits(run_ahead=1), engines="ab")
    for event in (Published(0), Joined("a"), Joined("b")):
        controller.handle(event)
    first = controller.handle(Loaded("a", 0))
    assert {command.row.group for command in first if isinstance(command, Submit)} == {0, 2}
    second = controller.handle(Loaded("b", 0))
    assert {command.row.group for command in second if isinstance(command, Submit)} == {1, 3}


def test_the_place_of_a_voided_group_goes_to_another_prompt():
    controller, commands = started()
    answer(controller, commands)
    assert controller.handle(Scored(0, trains=False)) == [Submit("a", Row(2, g), 1, 0) for g in (0, 1)]
    answer(controller, [Submit("a", Row(2, g), 1, 0) for g in (0, 1)])
    controller.handle(Asked())
    controller.handle(Scored(2))
    assert controller.handle(Scored(1)) == [Deliver(0, (1, 2))], "the older group comes first, whenever it was scored"


def test_a_publication_waits_until_nobody_reads_what_it_overwrites():
    controller, commands = started("ab", run_ahead=3, prompts_per_step=1, last_version=5)
    answer(controller, commands)
    for group in range(4):
        controller.handle(Scored(group))
    assert controller.handle(Asked()) == [Deliver(0, (0,))]
    controller.handle(Trained(1))
    assert controller.handle(Published(1))[:2] == [Load("a", 1), Load("b", 1)]
    controller.handle(Loaded("a", 1))
    controller.handle(Asked())
    assert controller.handle(Trained(2))[0] == Publish(2), "the buffer of version 0 is free"
    assert controller.handle(Published(2))[0] == Load("a", 2)
    controller.handle(Asked())
    assert Publish(3) not in controller.handle(Trained(3)), "b still reads version 1"
    assert ("load", "b") in waiting(controller)
    assert controller.handle(Loaded("b", 1))[:2] == [Publish(3), Load("b", 2)]


def test_an_engine_that_comes_later_gets_the_newest_weights():
    controller, _ = started(run_ahead=1)
    assert controller.handle(Joined("late")) == [Load("late", 0)]


@pytest.mark.parametrize("event", [Lost("a", "was killed"), Late(Wait("draw", "a", 1 + 3, 0))])
def test_rows_of_a_lost_engine_go_on_elsewhere_from_their_tokens(event):
    controller, commands = started("ab")
    controller.handle(Drew("a", Row(0, 1), 1, 0, 3))
    assert controller.handle(event) == [Restart("a"), Submit("b", Row(0, 0), 2, 0), Submit("b", Row(0, 1), 2, 3)]
    assert controller.handle(Drew("a", Row(0, 1), 1, 0, 5)) == []
    assert controller.handle(Ended("a", Row(0, 1), 1)) == []
    assert controller.state()["in_flight"][0]["rows"][1] == {"spans": [[0, 3]], "ended": False}
    assert controller.state()["counts"]["ignored"] == 2
    assert ("join", "a") in waiting(controller)
    assert commands


@pytest.mark.parametrize(
    "lie",
    [Drew("a", Row(0, 0), 1, 1, 3), Loaded("a", 1)],
    ids=["a version that was not published", "weights that it was not given"],
)
def test_an_engine_that_lies_is_lost(lie):
    controller, _ = started("ab")
    assert controller.handle(lie)[0] == Restart("a")


def test_an_engine_that_draws_with_weights_older_than_it_said_is_lost():
    controller, commands = started("ab", run_ahead=1)
    assert answer(controller, commands[:4]) == [Score(0), Score(2)]
    controller.handle(Scored(0))
    controller.handle(Scored(2))
    controller.handle(Asked())
    controller.handle(Trained(1))
    controller.handle(Published(1))
    assert not any(isinstance(c, Restart) for c in controller.handle(Drew("b", Row(1, 0), 1, 0, 2))), (
        "the engine is still loading"
    )
    controller.handle(Loaded("b", 1))
    assert controller.handle(Drew("b", Row(1, 0), 1, 0, 2))[0] == Restart("b")


def test_an_engine_that_is_lost_too_often_stays_away_and_the_last_one_ends_the_run():
    controller, _ = started(attempts=2, max_given_up=100)
    assert controller.handle(Lost("a", "was killed")) == [Restart("a")]
    controller.handle(Joined("a"))
    controller.handle(Loaded("a", 0))
    commands = controller.handle(Asked()) + controller.handle(Lost("a", "was killed"))
    cause = "row 0 was lost 2 times since its last token: a, which was killed"
    assert commands[:3] == [Dismiss("a"), GiveUp(0, cause), GiveUp(1, cause)]
    assert commands[3:] == [Stop("no engine is left; the last, a, was lost: was killed", failed=True)]


def test_engines_that_never_start_end_the_run_before_anything_is_published():
    """The trainer cannot publish before, because an engine tells it the layout of the weights."""
    controller = Controller(limits(attempts=2), engines="ab")
    commands = [c for name in "aabb" for c in controller.handle(Lost(name, "exited with code 1"))]
    assert commands[:3] == [Restart("a"), Dismiss("a"), Restart("b")]
    assert commands[3:] == [
        Dismiss("b"),
        Stop("no engine is left; the last, b, was lost: exited with code 1", failed=True),
    ]


def test_a_row_that_no_engine_survives_takes_its_group_with_it():
    controller, _ = started("ab", attempts=2)
    controller.handle(Lost("a", "was killed"))
    commands = controller.handle(Lost("b", "was killed"))
    given_up = [command.group for command in commands if isinstance(command, GiveUp)]
    assert given_up == [0], "group 0 was at a, then at b; group 1 was only at b"


def test_a_row_that_gets_on_in_each_attempt_is_never_given_up():
    controller, _ = started("ab", attempts=2, prompts_per_step=1, group_size=1)
    for attempt in range(1, 20):
        engine = "a" if controller.holds("a", Row(0, 0), attempt) else "b"
        controller.handle(Drew(engine, Row(0, 0), attempt, 0, 1))
        (submit,) = controller.handle(Returned(engine, Row(0, 0), attempt))
        assert isinstance(submit, Submit)
        assert (submit.attempt, submit.drawn) == (attempt + 1, attempt)


def test_the_other_rows_of_what_is_given_up_are_interrupted():
    controller, _ = started("ab", attempts=2, prompts_per_step=1)
    controller.handle(Returned("a", Row(0, 0), 1))
    assert controller.handle(Returned("b", Row(0, 0), 2))[:2] == [
        Interrupt("a", Row(0, 1), 1),
        GiveUp(0, "row 0 was lost 2 times since its last token: b returned it unfinished"),
    ]


def test_lost_rewards_are_asked_for_again_and_then_given_up():
    controller, commands = started()
    answer(controller, commands)
    assert controller.handle(ScoringLost(0, "killed")) == [Score(0)]
    (late,) = (wait for wait in controller.waits() if (wait.kind, wait.progress) == ("score", 0))
    assert controller.handle(Late(late)) == [Score(0)]
    assert controller.handle(Late(late)) == [], "the wait has been answered"
    given_up, *submits = controller.handle(ScoringLost(0, "killed"))
    assert given_up == GiveUp(0, "its rewards were asked for 3 times: killed")
    assert submits == [Submit("a", Row(2, g), 1, 0) for g in (0, 1)]


def test_when_nobody_scores_the_run_ends():
    controller, commands = started(attempts=1, max_given_up=2)
    answer(controller, commands)
    controller.handle(ScoringLost(0, "killed"))
    assert controller.handle(ScoringLost(1, "killed"))[-1] == Stop(
        "2 groups in a row were abandoned; the last: its rewards were asked for once: killed", failed=True
    )


@pytest.mark.parametrize(("event", "limit"), [(Scored, "max_voided"), (ScoringLost, "max_given_up")])
def test_a_resumed_run_ends_where_the_other_would_have_ended(event, limit):
    controller, commands = started(attempts=1, **{limit: 2})
    answer(controller, commands)
    how = {"trains": False} if event is Scored else {"cause": "killed"}
    controller.handle(event(0, **how))
    again = Controller.restored(controller.limits, json.loads(json.dumps(controller.state())))
    again.handle(Published(0))
    expected = controller.handle(event(1, **how))[-1]
    assert isinstance(expected, Stop)
    assert again.handle(event(1, **how))[-1] == expected


def test_a_trainer_that_is_late_ends_the_run():
    for kind, told in {"publish": 1, "ask": 3, "train": 4}.items():
        controller = Controller(limits(), engines="a")
        commands: list[Command] = []
        for event in (Joined("a"), Published(0), Loaded("a", 0), Asked())[:told]:
            commands = controller.handle(event) or commands
        scored(controller, answer(controller, commands))
        (wait,) = (wait for wait in controller.waits() if wait.kind == kind)
        (stop,) = controller.handle(Late(wait))
        assert isinstance(stop, Stop)
        assert stop.failed
        assert stop.cause.startswith("the engines waited for the trainer, which did not")


def test_no_engine_at_all_ends_the_run():
    controller = Controller(limits())
    controller.handle(Published(0))
    (stop,) = controller.handle(Late(Wait("join", "engines", 0)))
    assert stop == Stop(
        "the trainer waited for engines, which did not start within the deadline (version 0)", failed=True
    )


def test_a_run_that_is_to_end_takes_its_rows_back_first():
    controller, _ = started(prompts_per_step=1)
    assert controller.handle(Ending("stopped by the user")) == [Interrupt("a", Row(0, g), 1) for g in (0, 1)]
    assert waiting(controller) == {("draw", "a")}
    controller.handle(Drew("a", Row(0, 0), 1, 0, 4))
    assert controller.handle(Returned("a", Row(0, 0), 1)) == []
    assert controller.handle(Ended("a", Row(0, 1), 1)) == [Stop("stopped by the user", failed=False)]
    (group,) = controller.state()["in_flight"]
    assert group["rows"] == [{"spans": [[0, 4]], "ended": False}, {"spans": [], "ended": True}]


def test_a_run_that_is_to_end_does_not_wait_for_a_dead_engine():
    controller, _ = started()
    controller.handle(Ending("stopped by the user"))
    assert controller.handle(Lost("a", "was killed")) == [Dismiss("a"), Stop("stopped by the user", failed=False)]


def test_a_run_goes_on_from_its_state():
    controller, commands = started(run_ahead=1)
    first, *others = [command for command in commands if isinstance(command, Submit)]
    answer(controller, [first, others[0]])
    controller.handle(Drew("a", others[1].row, 1, 0, 7))
    answer(controller, others[4:6])
    controller.handle(Scored(0))
    state = json.loads(json.dumps(controller.state()))
    assert state == controller.state()
    assert (state["next_group"], state["finished"]) == (4, [0])
    again = Controller.restored(controller.limits, state, engines="b")
    assert again.state() == state
    assert again.handle(Published(0)) == [], "group 3 still has to be decoded"
    again.handle(Joined("b"))
    submits = [command for command in again.handle(Loaded("b", 0)) if isinstance(command, Submit)]
    assert [(s.row, s.drawn) for s in submits if s.row.group == 1] == [(Row(1, 0), 7), (Row(1, 1), 0)]


def test_groups_being_trained_are_in_the_state_and_trained_again():
    controller, commands = started()
    controller.handle(Asked())
    scored(controller, answer(controller, commands))
    again = Controller.restored(controller.limits, controller.state())
    again.handle(Published(0))
    assert again.handle(Asked()) == [Deliver(0, (0, 1))]


def test_rewards_that_were_not_known_are_asked_for_again():
    controller, commands = started()
    answer(controller, commands)
    again = Controller.restored(controller.limits, controller.state())
    assert again.handle(Published(0)) == [Score(0), Score(1)]


def test_versions_between_publications_are_sampled_with_the_last_one():
    controller, commands = started(publish_every=2)
    controller.handle(Asked())
    scored(controller, answer(controller, commands))
    assert controller.handle(Trained(1)) == [Submit("a", Row(group, g), 1, 0) for group in (2, 3) for g in (0, 1)]
    assert waiting(controller) == {("ask", "trainer"), ("draw", "a")}


def test_a_trainer_that_breaks_the_order_of_its_own_steps_is_told():
    controller, _ = started()
    with pytest.raises(ValueError, match="while the trainer is between; it must be training"):
        controller.handle(Trained(1))
