"""Questions that the machinery asks of an algorithm, so that it need not look for settings that only some have."""

from __future__ import annotations

from tests.catalogue import catalogue

from posttrain.algorithms import ALGORITHMS


def built(key, **settings):
    return ALGORITHMS[key](**settings)


@catalogue("key", ALGORITHMS)
def test_every_algorithm_answers_every_question(key):
    algorithm = built(key)
    has = algorithm.__dataclass_fields__
    assert algorithm.clip_settings == tuple(name for name in ("clip_low", "clip_high") if name in has)
    assert (algorithm.step_reading is not None) == (algorithm.data_kind == "steps")
    assert algorithm.correction_name == (algorithm.correction if "correction" in has else "none")
    assert algorithm.auxiliary_coef == 0.0
    for exact in (True, False):
        decided = algorithm.with_decided_correction(exact=exact)
        assert decided.correction_name != "auto"
        assert (decided == algorithm) == (algorithm.correction_name != "auto")


def test_the_settings_are_what_is_answered():
    assert built("kimi_k2", ptx_coef=0.5).auxiliary_coef == 0.5
    assert "auxiliary" in built("kimi_k2", ptx_coef=0.5).needs
    assert built("process_reward_model", separator="|", aggregate="prod").step_reading == ("|", "prod")
    assert built("pass_at_k", correct_at=0.5).correct_from == 0.5
    assert built("policy_gradient", baseline="pass_at_k", normalisation="none", correct_at=0.5).correct_from == 0.5
    assert built("kimi_k15", length_coef=1.0, correct_at=0.5).correct_from == 0.5
    assert built("kimi_k15", correct_at=0.5).correct_from is None, "without a length reward no code asks for it"


def test_auto_is_decided_by_whether_the_sampler_computes_as_the_trainer_does():
    grpo = built("grpo")
    assert grpo.with_decided_correction(exact=True).correction_name == "none"
    assert grpo.with_decided_correction(exact=False).correction_name == grpo.auto_correction
    own = built("grpo", correction={"action": "mask", "low": 0.5, "high": 5})
    assert own.with_decided_correction(exact=True) == own
    assert own.correction_name == "by settings"
