"""Tests in the columns of the usual datasets, and the errors for tests that cannot be read."""

import json

import pytest
from tests.catalogue import catalogue

from posttrain.errors import DataError
from posttrain.verify.programs.rewrite import Call, Script
from posttrain.verify.programs.suite import Stdio, Suite, Value, holds_tests, read_suite


def suite_of(**row) -> tuple:
    return read_suite(row).tests


@catalogue(
    "assertion, call",
    [
        ("assert f(1, [2]) == (3, 4)", Call("f(1, [2])", "equal", (3, 4))),
        ("assert f(1)==-2.5 ", Call("f(1)", "equal", -2.5)),
        ("assert (f(1)) == 3, 'message'", Call("f(1)", "equal", 3)),
        ("assert f('a') != 'b'", Call("f('a')", "unequal", "b")),
        ("assert f(x) is None", Call("f(x)", "is", None)),
        ("assert f() is not True", Call("f()", "is not", True)),
        ("assert f(1)", Call("f(1)", "true")),
        ("assert not f(1)", Call("f(1)", "false")),
        ("assert f([Pair(1, 2)], int) == 3", Call("f([Pair(1, 2)], int)", "equal", 3)),
        ("assert sum(10, 15) == 6", Call("sum(10, 15)", "equal", 6)),
    ],
)
def test_an_assertion_about_one_call_becomes_that_call(assertion, call):
    assert suite_of(test_list=[assertion]) == (call,)


@catalogue(
    "assertion, functions",
    [
        ("assert set(f([1, 1])) == {1}", ["f"]),
        ("assert sorted(f(3)) == [1, 2]", ["f"]),
        ("assert math.isclose(f(2), 1.414, rel_tol=0.001)", ["f"]),
        ("assert abs(f(2) - 1.414) < 1e-3", ["f"]),
        ("assert f(1) == g(1)", ["f", "g"]),
        ("assert f(2) == 2.0 / 3.0", ["f"]),
        ("x = f(1)\nassert x == 2", ["f"]),
        ("assert f(1) in (2, 3)", ["f"]),
        ("assert f(f(1)) == 3 and f(2) == 1", ["f"]),
    ],
)
def test_every_other_assertion_is_a_script_beside_the_program(assertion, functions):
    [script] = suite_of(test_list=[assertion])
    assert isinstance(script, Script)
    assert [name for name, _ in script.functions] == functions


def test_mbpp_brings_setup_imports_and_challenges():
    suite = read_suite(
        {
            "text": "Write a function ...",
            "test_list": ["assert f(root) == 1"],
            "challenge_test_list": ["assert f(root) == 2"],
            "test_setup_code": "root = Node(1)\r\nroot.left = Node(2)",
            "test_imports": ["import math"],
        }
    )
    setup = "import math\nroot = Node(1)\nroot.left = Node(2)"
    assert suite == Suite((Call("f(root)", "equal", 1, setup), Call("f(root)", "equal", 2, setup)), "f")


CHECK = (
    "METADATA = {}\n\n\ndef check(candidate):\n    # easy\n    assert candidate(1) == 2\n    assert True\n    print\n"
)


def test_a_check_function_of_plain_assertions_becomes_calls():
    prompt = "def f(n):\n    '''Add one.'''\n"
    suite = read_suite({"prompt": prompt, "test": CHECK, "entry_point": "f"})
    assert suite == Suite((Call("f(1)", "equal", 2),), "f", prompt)


def test_a_check_function_of_another_form_runs_beside_the_program_with_the_helpers_of_the_prompt():
    prompt = "def other(n):\n    return n\n\n\ndef f(n):\n    '''Add one.'''\n"
    test = "def check(candidate):\n    for n in range(3):\n        assert candidate(n) == other(n) + 1\n"
    [script] = suite_of(prompt=prompt, test=test, entry_point="f")
    assert script == Script(test + "\n\ncheck(f)\n", (("f", "f"),), prompt)


def test_a_method_is_an_entry_point():
    [call] = suite_of(
        test="def check(candidate):\n    assert candidate(nums=[3, 3], target=6) == [0, 1]\n",
        entry_point="Solution().twoSum",
    )
    assert call == Call("Solution().twoSum(nums=[3, 3], target=6)", "equal", [0, 1])


@catalogue(
    "row, tests",
    [
        ({"tests": [{"input": "1\n", "output": "2\n"}]}, (Stdio("1\n", "2\n"),)),
        ({"tests": [{"input": ["1", "2"], "output": "3"}]}, (Stdio("1\n2", "3"),)),
        ({"tests": json.dumps([{"input": "1", "output": "2", "testtype": "stdin"}])}, (Stdio("1", "2"),)),
        ({"tests": [{"input": [1, 2], "output": 3}], "entry_point": "f"}, (Value("f", (1, 2), {}, (3,)),)),
        ({"tests": [{"input": "abc", "output": 3}], "entry_point": "f"}, (Value("f", ("abc",), {}, (3,)),)),
        ({"tests": [{"input": {"n": 1}, "output": 3}], "entry_point": "f"}, (Value("f", (), {"n": 1}, (3,)),)),
        (
            {"tests": [{"args": [1], "kwargs": {"k": 2}, "expected": 3, "fn_name": "g"}]},
            (Value("g", (1,), {"k": 2}, (3,)),),
        ),
        (
            {
                "tests": [
                    {
                        "input": '[1, 2]\n"a"',
                        "output": "[3]",
                        "testtype": "functional",
                        "metadata": {"func_name": "f"},
                    }
                ]
            },
            (Value("f", ([1, 2], "a"), {}, ([3],), tuple_ok=True),),
        ),
        ({"tests": ["assert f(1) == 2"]}, (Call("f(1)", "equal", 2),)),
        ({"input_output": {"inputs": ["1\n"], "outputs": ["2\n"]}}, (Stdio("1\n", "2\n"),)),
        (
            {"input_output": json.dumps({"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "f"})},
            (Value("f", (1, 2), {}, ([3], 3), tuple_ok=True),),
        ),
        (
            {"verification_info": {"language": "python", "test_cases": [{"input": "1", "output": "2"}]}},
            (Stdio("1", "2"),),
        ),
        (
            {
                "verification_info": json.dumps(
                    {"test_cases": [{"type": "function_call", "fn_name": "f", "input": [[1]], "output": [2]}]}
                )
            },
            (Value("f", ([1],), {}, ([2], 2), tuple_ok=True),),
        ),
    ],
)
def test_the_forms_of_the_usual_datasets(row, tests):
    assert suite_of(**row) == tests


def apps(inputs: list, outputs: list) -> dict:
    return {"inputs": inputs, "outputs": outputs, "fn_name": "f"}


@catalogue(
    "inputs, outputs, arguments, expected",
    [
        (["1\n2", "3\n4\n"], ["3", "7"], [(1, 2), (3, 4)], [(3,), (7,)]),
        (["[1, 2]"], ["[3]"], [([1, 2],)], [([3], 3)]),
        (['"ab"', '"12"'], ['"ba"', '"21"'], [("ab",), ("12",)], [("ba",), ("21",)]),
        (['{"1": [2]}'], ["true"], [({1: [2]},)], [(True,)]),
        (["ab", "12"], ["ba", "21"], [("ab",), ("12",)], [("ba",), ("21",)]),  # not all are JSON: plain text
        (["12"], ["yes"], [("12",)], [("yes",)]),
        (["", "12"], ["0", "2"], [("",), ("12",)], [("0",), ("2",)]),
        (["12"], [2], [("12",)], [(2,)]),
        ([["12"]], ["2"], [("12",)], [("2",)]),
    ],
)
def test_texts_are_json_with_one_argument_per_line_if_all_tests_of_the_row_are(inputs, outputs, arguments, expected):
    for column in ("answer", "input_output", "tests", "verification_info"):
        given = apps(inputs, outputs)
        row = {column: {"test_cases": given} if column == "verification_info" else json.dumps(given)}
        tests = suite_of(**row)
        assert [(test.arguments, test.expected) for test in tests] == list(zip(arguments, expected, strict=True))


@catalogue(
    "written, argument",
    [
        ({"1": 5, "-20": 6, "0": 7}, {1: 5, -20: 6, 0: 7}),
        ({"1": {"2": 3}}, {1: {2: 3}}),
        ({"1": {"a": 3}}, {1: {"a": 3}}),
        *((kept, kept) for kept in ({"1": 5, "a": 6}, {"01": 5}, {"-0": 5}, {"1.0": 5}, {"9" * 5000: 5}, {})),
        *((kept, kept) for kept in ({"a": {"1": 5}}, [{"1": 5}], "1")),
    ],
)
def test_an_argument_gets_the_integer_keys_that_json_cannot_write(written, argument):
    functional = {"input": json.dumps(written), "output": "1", "testtype": "functional", "fn_name": "f"}
    call = {"input": [written], "output": 1, "type": "function_call", "fn_name": "f"}
    for row in (
        {"input_output": apps([[written]], [1])},
        {"answer": apps([json.dumps(written)], ["1"])},
        {"tests": [functional]},
        {"verification_info": {"test_cases": [call]}},
    ):
        [test] = suite_of(**row)
        assert test.arguments == (argument,)
    [own] = suite_of(tests=[{"input": [written], "output": 1}], entry_point="f")
    assert own.arguments == (written,)


@pytest.mark.parametrize("dumped", [False, True])
def test_an_answer_that_holds_tests_is_told_from_an_answer(dumped):
    tests = apps([[1]], [2])
    assert holds_tests(json.dumps(tests) if dumped else tests)
    for answer in (None, 7, "", "7", "{1, 2}", "def f(): pass", {"x": 1}, {"inputs": [1]}, [tests]):
        assert not holds_tests(json.dumps(answer) if dumped else answer)


def test_columns_that_are_empty_do_not_count():
    assert suite_of(test_list=["assert f(1) == 2"], tests=None, test="", test_setup_code="") == (
        Call("f(1)", "equal", 2),
    )


INPUTS = ("input", "inputs", "args", "stdin")
OUTPUTS = ("output", "outputs", "expected", "expected_output", "stdout")


@catalogue("given, expected", [(given, expected) for given in INPUTS for expected in OUTPUTS])
def test_names_with_null_do_not_hide_the_name_with_a_value(given, expected):
    """Parquet gives each test the names of all tests."""
    others = dict.fromkeys((*INPUTS, *OUTPUTS, "kwargs", "fn_name", "type", "testtype", "metadata"))
    test, null = others | {given: [1], expected: 2}, others | {given: [1]}
    assert suite_of(tests=[test, null], entry_point="f") == (
        Value("f", (1,), {}, (2,)),
        Value("f", (1,), {}, (None,)),
    )
    assert suite_of(verification_info={"language": None, "test_cases": [test]}, entry_point="f")


@catalogue(
    "row, message",
    [
        ({}, "a row without tests; allowed: one of the columns tests, test_list"),
        ({"tests": []}, "tests that cannot be read"),
        ({"tests": "[1, "}, "tests is not JSON"),
        ({"tests": 7}, "tests that cannot be read"),
        ({"tests": [7]}, "tests that cannot be read: '7'"),
        ({"tests": [{"output": 1}]}, "a test without input"),
        ({"tests": [{"input": "1"}]}, "a test without output"),
        ({"tests": [{"input": [1], "output": 2}]}, "no function to call; .*entry_point"),
        ({"test_list": "assert f(1) == 2"}, "test_list is not JSON"),
        ({"test_list": ["f(1) == 2"]}, "a test without an assert"),
        ({"test_list": ["assert f(1) = 2"]}, "a test that is not Python"),
        ({"test_list": ["assert 1 == 1"]}, "calls nothing of the program"),
        ({"test_list": [1]}, "a test is 1; allowed: text"),
        ({"test": "def check(candidate, x):\n    pass", "entry_point": "f"}, "another number of arguments"),
        ({"test": "x = 1", "entry_point": "f"}, "asserts nothing of the program"),
        ({"test": "def check(candidate):\n    assert True\n", "entry_point": "f"}, "asserts nothing of the program"),
        ({"test": CHECK, "entry_point": 3}, "entry_point is 3; allowed: text"),
        ({"input_output": {"inputs": ["1"], "outputs": []}}, "do not pair up"),
        ({"input_output": "{}"}, "do not pair up"),
        ({"verification_info": "{}"}, "tests that cannot be read"),
        ({"verification_info": {"language": "rust", "test_cases": []}}, "programs in rust; allowed: Python"),
        ({"test_list": ["import numpy as np\nassert np.allclose(f(1), 2)"]}, "tests that import numpy"),
        ({"test": "from solution import f\nimport pytest\nassert f(1)"}, "tests that import pytest"),
    ],
)
def test_a_row_that_cannot_be_judged_is_an_error_of_the_data(row, message):
    with pytest.raises(DataError, match=message):
        read_suite(row)


def test_an_image_may_have_what_tests_import():
    suite = read_suite({"test_list": ["import numpy as np\nassert np.allclose(f(1), 2)"]}, bare=False)
    assert suite.function == "f"


def test_kodcode_imports_the_functions_and_names_its_tests():
    test = "from solution import f\n\ndef test_one():\n    assert f(1) == 2\n\ndef test_two():\n    assert f(2) == 3\n"
    [script] = suite_of(test=test)
    assert script.functions == (("f", "f"),)
    assert "import" not in script.source
    assert script.source.endswith("test_one()\ntest_two()")


def script_of(*lines: str, names: str = "f, g, Stack, LIMIT, MyError") -> str:
    return "\n".join([f"from solution import {names}", "def test_it():", *(f"    {line}" for line in lines)])


@catalogue(
    "lines, message",
    [
        (["s = Stack()", "s.push(1)", "assert s.pop() == 1"], "uses .push of what Stack returns"),
        (["s = t = Stack(3)", "assert t.size == 3"], "uses .size of what Stack returns"),
        (["s = Stack()", "s.left = f(1)", "assert g(s) == 1"], "uses .left of what Stack returns"),
        (["assert Stack().peek() is None"], "uses .peek of what Stack returns"),
        (["assert Stack.empty().pop() == 1"], "uses Stack other than by calling it: Stack.empty"),
        (["assert LIMIT == 10"], "uses LIMIT other than by calling it: LIMIT == 10"),
        (["assert 9 < LIMIT"], "uses LIMIT other than by calling it: 9 < LIMIT"),
        (["assert LIMIT[0] == 10"], r"LIMIT other than by calling it: LIMIT\[0\]"),
        (["assert f(1) == LIMIT * 2"], r"LIMIT other than by calling it: LIMIT \* 2"),
        (["assert len(LIMIT) == 10"], "LIMIT other than by calling it"),
        (["assert f is None"], "f other than by calling it: f is None"),
        (["if True:", "    assert f(lambda y: y) == 2"], "a function as an argument of f"),
        (["def helper():", "    assert f(len) == 2", "helper()"], "a function as an argument of f"),
        (["try:", "    assert f(len) == 2", "finally:", "    g(1)"], "a function as an argument of f"),
        (["assert isinstance(f(1), Stack)"], "Stack other than by calling it"),
        (["for n in LIMIT:", "    assert f(n)"], "LIMIT other than by calling it"),
        (["assert [f(n) for n in LIMIT] == [1]"], "LIMIT other than by calling it"),
        (["try:", "    f(1)", "    assert False", "except MyError:", "    pass"], "MyError other than by calling it"),
        (["try:", "    f(1)", "    assert False", "except (ValueError, TypeError):", "    assert -LIMIT"], "LIMIT"),
        (["assert f(lambda y: y + 1, 1) == 2"], "a function as an argument of f"),
        (["assert f(1, key=lambda y: y) == 2"], "a function as an argument of f"),
        (["assert f([len, abs]) == 2"], "a function as an argument of f"),
        (["assert f({'a': len}) == 2"], "a function as an argument of f"),
        (["assert f(*[len]) == 2"], "a function as an argument of f"),
        (["def twice(n):", "    return 2 * n", "assert f(twice, 2) == 4"], "a function as an argument of f"),
        (["assert f(g, 2) == 4"], "a function as an argument of f"),
        (["assert f(LIMIT) == 4"], "a function as an argument of f"),
        (["@f", "def slow():", "    return 1", "assert slow() == 1"], "f other than by calling it"),
    ],
)
def test_a_script_that_no_program_can_pass_is_an_error_of_the_data(lines, message):
    with pytest.raises(DataError, match=message):
        read_suite({"test": script_of(*lines)})


FAILS = ["f(lambda y: y)", "f(1).boo", "f(g)", "LIMIT + 1", "LIMIT[0]", "Stack().push(1)", "Stack.empty()"]
GUARDS = [
    ["try: {0}\n    except TypeError: pass"],
    ["try: {0}\n    except (TypeError, AttributeError): g(1)\n    else: {0}"],
    ["try: g(1)\n    except Exception: {0}"],
    ["with raises(TypeError): {0}"],
    ["with self.assertRaises(AttributeError): {0}"],
    ["with contextlib.suppress(Exception): {0}"],
    ["raises(TypeError, lambda: {0})"],
    ["if False: {0}"],
    ["if True: g(1)\n    else: {0}"],
    ["if g(1): {0}"],
    ["while g(1): {0}"],
    ["assert g(1) or {0}"],
    ["assert g(1), {0}"],
    ["x = 1 if g(1) else {0}"],
    ["def bad(): {0}\n    raises(TypeError, bad)"],
    ["def bad(): {0}\n    try: bad()\n    except TypeError: pass"],
]
"""Places that need not run, or where a failure is caught."""
TRUE_OF_FUNCTIONS = [
    "f", "not not f", "f == f", "f != g", "f != 3", "f is f", "not f == 3", "not f is None", "f in [f, g]",
    "f.__name__", "bool(f)", "print(1, f) is None", "f and g(1)", "f == h",
]  # fmt: skip


@catalogue(
    "lines",
    [
        *([*lines[:-1], lines[-1].format(fails), "assert g(1)"] for fails in FAILS for lines in GUARDS),
        *([f"assert {true}", "assert g(1)"] for true in TRUE_OF_FUNCTIONS),
        ["r = f(1)", "r.sort()", "assert r == [1]"],
        ["assert f('a').strip().upper() == 'A'"],
        ["s = Other(f(1))", "assert s.size == 1"],
        ["s = f(1)", "s = Other(s)", "assert s.size == 1"],
        ["assert list(map(f, [1, 2])) == [1, 2]"],
        ["assert sorted([2, 1], key=f) == [1, 2]"],
        ["assert max([2, 1], key=f) == 1"],
        ["for one in (f, g):", "    assert one(1) == 2"],
        ["h = f", "assert h(1) == 2"],
        ["run(f, 1)", "assert g(1)"],
        ["assert callable(f)", "assert f is not None", "assert f(1)"],
        ["input = [1]", "assert f(input) == 2"],
        ["assert f([n * n for n in range(3)], reverse=True) == 2"],
        ["assert f(n for n in range(3)) == 2"],
        ["assert f(int('3'), *[1, 2], **{'k': 1}) == 2"],
        ["assert all(map(lambda n: f(n) == n, [1, 2]))"],
        ["try:", "    f(-1)", "    assert False", "except ValueError as error:", "    assert str(error)"],
        ["assert (lambda g: g)(3) == f(3)", "g = 3", "assert f(2) == g"],
        ["f(1)", "pass", "assert f(2) == 3 and g(2)"],
    ],
)
def test_a_script_that_a_program_may_pass_is_read(lines):
    [script] = suite_of(test=script_of(*lines))
    assert isinstance(script, Script)


def test_other_forms_of_scripts_are_checked_too():
    for row in (
        {"test_list": ["s = Stack(2)\nassert s.size == 2"]},
        {"test_list": ["assert set(f(lambda n: n)) == {1}"]},
        {"test": "def check(candidate):\n    assert sorted(candidate(lambda n: n)) == [1]\n", "entry_point": "f"},
        {"test": "def check(candidate):\n    s = candidate(1)\n    assert s.size == 1\n", "entry_point": "f"},
        {"test": "assert sorted(f(len)) == [1]", "entry_point": "f"},
    ):
        with pytest.raises(DataError, match="a test that uses"):
            read_suite(row)
    [call] = suite_of(test="def check(candidate):\n    assert candidate(lambda n: n, 1) == 1\n", entry_point="f")
    assert call == Call("f(lambda n: n, 1)", "equal", 1)  # the whole call runs beside the program


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("class TestF:\n    def test_it(self):\n        assert f(1) == 2\n", "asserts nothing"),
        ("async def test_it():\n    assert f(1) == 2\n", "asserts nothing"),
        ("def works():\n    assert f(1) == 2\n", "asserts nothing"),
        ("def test_it(n):\n    assert f(n) == 2\n", r"a test function with parameters: test_it\(n\)"),
        ("def test_it(*, n):\n    assert f(n) == 2\n", r"a test function with parameters: test_it\(\*, n\)"),
    ],
)
def test_assertions_that_would_not_run_are_an_error_of_the_data(test, message):
    with pytest.raises(DataError, match=message):
        read_suite({"test": f"from solution import f\n\n{test}"})


def test_an_imported_name_may_have_another_name_in_the_tests():
    [script] = suite_of(
        test="from solution import f as g\nfrom main import *\n\ndef test_it(n=1):\n    assert g(n) == 2\n"
    )
    assert script.functions == (("g", "f"),)
