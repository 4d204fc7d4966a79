"""Values that cross the border of the sandbox keep their type, and no other values cross it."""

import collections
import enum
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import catalogue

from posttrain.verify.programs.plain import NotPlain, dump, load, pack, unpack

hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
values = st.recursive(
    hashable | st.complex_numbers(allow_nan=False) | st.binary().map(bytearray),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(hashable, inner, max_size=3) | st.sets(hashable),
    max_leaves=10,
)


def typed(value):
    """A value with the types of all its parts; sets and dicts are unordered."""
    kind = type(value).__name__
    if isinstance(value, list | tuple):
        return (kind, tuple(typed(item) for item in value))
    if isinstance(value, set | frozenset):
        return (kind, frozenset(typed(item) for item in value))
    if isinstance(value, dict):
        return (kind, frozenset((typed(key), typed(item)) for key, item in value.items()))
    return (kind, bytes(value) if isinstance(value, bytearray) else value, str(value))


@pytest.mark.slow
@given(values)
def test_a_value_comes_back_with_the_types_of_all_its_parts(value):
    frame = dump({"value": pack(value)})
    assert typed(unpack(load(frame)["value"])) == typed(value)


@pytest.mark.parametrize(
    "value", [10**5000, -(10**5000), 2**64, 0, range(1, 10, 3), float("inf"), "\ud800"], ids=lambda _: ""
)
def test_large_and_odd_values_come_back(value):
    assert unpack(load(dump({"value": pack(value)}))["value"]) == value


def test_nan_comes_back_as_nan_and_is_equal_to_nothing():
    assert math.isnan(unpack(pack(float("nan"))))


class Same(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__

    def __index__(self):
        return 5050


class Colour(enum.IntEnum):
    RED = 3


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Same(7), 7),
        (Colour.RED, 3),
        (Point(1, 2), (1, 2)),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.OrderedDict(a=1), {"a": 1}),
    ],
)
def test_a_subclass_arrives_as_the_built_in_value_below_it(value, plain):
    arrived = unpack(pack(value))
    assert arrived == plain
    assert type(arrived) is type(plain)
    assert arrived != 5050


def test_what_is_read_once_arrives_as_an_iterator_and_equals_nothing():
    arrived = unpack(pack(n * n for n in range(3)))
    assert arrived != [0, 1, 4]
    assert list(arrived) == [0, 1, 4]
    assert list(unpack(pack({"a": 1}.keys()))) == ["a"]


class Odd:
    @property
    def __class__(self):
        return int


own = []
own.append(own)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Odd(), "a value of type Odd"),
        (print, "a value of type builtin_function_or_method"),
        (int, "a value of type type"),
        (own, "nested too deep"),
        ([0] * 400_000, "too many parts"),
        ([Odd()], "a value of type Odd"),
    ],
    ids=["object", "function", "type", "own", "many", "inside"],
)
def test_other_values_do_not_cross(value, message):
    with pytest.raises(NotPlain, match=message):
        pack(value)


@catalogue(
    "frame",
    [
        b"",
        b"[1]",
        b"7",
        b'{"value": NaN}',
        b'{"value": Infinity}',
        b"{" * 10_000,
        b'{"value": ' + b"[" * 100_000,
        b"\xff",
    ],
    ids=range(8),
)
def test_a_frame_is_one_object_of_finite_numbers(frame):
    with pytest.raises(NotPlain):
        load(frame)


@catalogue(
    "data",
    [
        {},
        {"t": [1], "s": [2]},
        {"q": [1]},
        {"f": "0x1", "t": []},
        {"f": "one"},
        {"x": "zz"},
        {"b": 1},
        {"t": 5},
        {"s": [[1]]},
        {"d": [[1]]},
        {"d": [[[1], 2]]},
        {"c": ["0x1"]},
        {"r": [1, 2, 0]},
        1.5,
    ],
)
def test_what_pack_does_not_write_is_not_read(data):
    with pytest.raises(NotPlain):
        unpack(json.loads(json.dumps(data)))


def test_nesting_in_a_frame_is_bounded():
    data = 0
    for _ in range(200):
        data = [data]
    with pytest.raises(NotPlain, match="nested too deep"):
        unpack(data)


@pytest.mark.parametrize(
    "data",
    [
        [0] * 300_000,
        pytest.param({"t": [{"t": []}] * 300_000}, marks=pytest.mark.slow),
        {"d": [[n, 0] for n in range(200_000)]},
    ],
)
def test_the_parts_of_a_value_are_counted_on_both_sides(data):
    """A value that was read is packed again for the tests; otherwise a program could go without a score."""
    with pytest.raises(NotPlain, match="too many parts"):
        unpack(data)


@pytest.mark.slow
def test_a_frame_of_too_many_objects_is_not_even_read():
    with pytest.raises(NotPlain, match="too many parts"):
        load(b'{"value":[' + b"[]," * 400_000 + b"[]]}")
    assert len(load(dump({"value": pack([0.5] * 299_000)}))["value"]) == 299_000


def test_whatever_can_be_packed_is_read_however_deep():
    value: object = 0
    for n in range(99):
        value = {n: value}
    assert unpack(pack(value)) == value


@pytest.mark.parametrize(
    "data",
    [
        {"s": [k * (2**61 - 1) for k in range(1, 1000)]},
        {"d": [[k * (2**61 - 1), 0] for k in range(1, 1000)]},
        {"s": [{"t": [-1 - (k >> bit & 1) for bit in range(12)]} for k in range(4096)]},
    ],
    ids=["numbers", "keys", "tuples"],
)
def test_a_set_whose_parts_were_chosen_to_collide_is_refused(data):
    """hash(-1) is hash(-2), and multiples of 2^61 - 1 all hash to 0."""
    with pytest.raises(NotPlain, match="share one hash"):
        unpack(data)


@pytest.mark.slow
def test_large_honest_sets_and_dictionaries_are_not_refused():
    value = {(x, y) for x in range(-100, 100) for y in range(-100, 100)}
    assert unpack(pack(value)) == value
    assert len(unpack(pack({str(n): n for n in range(50_000)}))) == 50_000
