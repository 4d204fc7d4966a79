r"""Notations in which neighbours, order or context change the value, by generation: congruences, inverses ..."""

from __future__ import annotations

from itertools import product

from posttrain.rewards import math


def paid(gold: str, *answers: str) -> list[str]:
    """The answers that are accepted, each of them in a box."""
    return [answer for answer in answers if math(f"\\boxed{{{answer}}}", gold) == 1.0]


# congruences

MODULI = (r"\pmod {}", r"\pmod{{{}}}", r"\ (\bmod\ {})", r"(\text{{mod }} {})", r" (mod {})", r" \mod {}", r"\bmod {}")


def test_a_congruence_has_its_residue_and_its_modulus():
    congruences = [r"x \equiv {}" + modulus for modulus in MODULI] + ["x ≡ {} (mod {})"]
    for residue, modulus in product((0, 3, 6), (7, 11)):
        golds = [form.format(residue, modulus) for form in congruences]
        others = (residue + 1, modulus), (residue, modulus + 1), (residue, 2 * modulus), (residue - 2, modulus)
        wrong = [form.format(*other) for other in others for form in congruences]
        wrong += [str(residue), f"x={residue}", rf"x\equiv{residue}", golds[0].replace("x", "y")]
        for gold in golds:
            assert paid(gold, *golds, *wrong) == golds, gold
            assert paid(gold, rf"{residue - modulus} \pmod {{{modulus}}}", rf"{residue} \pmod{{{modulus}}}")
        assert paid(str(residue), *golds) == []


def test_a_residue_that_is_not_reduced_is_no_answer():
    """It would repeat the question: 1234567 modulo 11."""
    assert paid(r"x\equiv 4\pmod 9", r"x\equiv 13\pmod 9", r"x\equiv -14\pmod 9") == []
    assert paid(r"x\equiv 13\pmod 9", r"x\equiv 4\pmod 9", r"x\equiv 22\pmod 9") == [
        r"x\equiv 4\pmod 9",
        r"x\equiv 22\pmod 9",
    ]


def test_the_left_side_of_a_congruence_counts():
    assert paid(r"2x\equiv 4\pmod 9", r"2x\equiv 4 \mod 9", r"x\equiv 4\pmod 9", r"4\pmod 9") == [r"2x\equiv 4 \mod 9"]
    assert paid(r"x\equiv 1\pmod 5 \text{ or } x\equiv 4\pmod 5", r"x\equiv 4\mod 5, x\equiv 1\mod 5", "1,4") == [
        r"x\equiv 4\mod 5, x\equiv 1\mod 5"
    ]
