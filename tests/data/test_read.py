"""Every file form gives the same rows, each row knows its place, and errors name the file and line."""

from __future__ import annotations

import gzip
import json
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.catalogue import examples, few
from tests.data.samples import jsonl, rows_of, shared_file

from posttrain.data import json_array
from posttrain.data.forms import detect
from posttrain.data.given import given_rows
from posttrain.data.json_array import PIECE
from posttrain.data.read import content_key, iter_rows, missing_files, read_rows, size_of
from posttrain.errors import DataError

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": 'say "hi",\nplease', "answer": "hi"}]


def csv_text() -> str:
    return 'prompt,answer\n1+1=,2\n"say ""hi"",\nplease",hi\n'


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", jsonl(*ROWS)),
        ("rows.jsonl.gz", jsonl(*ROWS)),
        ("rows.json", json.dumps(ROWS, indent=1)),
        ("rows.json.gz", json.dumps(ROWS)),
        ("rows.csv", csv_text()),
        ("rows.csv.gz", csv_text()),
        ("windows.jsonl", "\ufeff" + jsonl(*ROWS).replace("\n", "\r\n")),
        ("blank_lines.jsonl", "\n" + jsonl(*ROWS) + "\n\n"),
    ],
)
def test_every_form_of_file_gives_the_same_rows(write, name, content):
    assert [row.values for row in read_rows(str(write(name, content)))] == ROWS


def test_parquet_keeps_types_and_nesting(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "hi"}], "answer": 2.5}, {"prompt": [], "answer": None}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert [row.values for row in read_rows(str(tmp_path / "rows.parquet"))] == rows


def test_a_carriage_return_inside_a_quoted_field_survives_compression(write):
    text = 'prompt\r\n"a\r\nb"\r\n'
    plain, packed = (read_rows(str(write(name, text))) for name in ("a.csv", "a.csv.gz"))
    assert plain[0].values == packed[0].values == {"prompt": "a\r\nb"}


def test_a_row_knows_its_file_and_line(write):
    lines = write("train.jsonl", "\n" + jsonl({"prompt": "a"}) + "\n" + jsonl({"prompt": "b"}))
    array = write("train.json", json.dumps([{"prompt": "a"}]))
    table = write("train.csv", 'prompt\n"two\nlines"\nb\n')
    assert [row.origin for row in read_rows(str(lines))] == ["train.jsonl:2", "train.jsonl:4"]
    assert [row.origin for row in read_rows(str(array))] == ["train.json[0]"]
    assert [row.origin for row in read_rows(str(table))] == ["train.csv:3", "train.csv:4"]


def test_globs_and_lists_are_read_in_order(write, tmp_path):
    write("b.jsonl", jsonl({"prompt": "b"}))
    write("a.jsonl", jsonl({"prompt": "a"}))
    write("z.csv", "prompt\nz\n")
    found = read_rows([str(tmp_path / "z.csv"), str(tmp_path / "*.jsonl")])
    assert [row.values["prompt"] for row in found] == ["z", "a", "b"]


def test_a_path_with_the_signs_of_a_pattern_is_read_if_it_exists(tmp_path):
    folder = tmp_path / "run[1]"
    folder.mkdir()
    rows = {"a.jsonl": "itself", "b[1].jsonl": "also itself", "b1.jsonl": "what a pattern matches"}
    for name, prompt in rows.items():
        (folder / name).write_text(jsonl({"prompt": prompt}))
    datasets.Dataset.from_list([{"prompt": "saved"}]).save_to_disk(folder / "saved")
    files = [str(folder / name) for name in ("a.jsonl", "b[1].jsonl", "saved")]
    assert [row.values["prompt"] for row in read_rows(files)] == ["itself", "also itself", "saved"]
    assert missing_files(files) == []
    with pytest.raises(DataError, match=r"is a folder with a\.jsonl") as error:
        read_rows(str(folder))
    proposed = str(error.value).rpartition("such as ")[2].removesuffix(".")
    assert len(read_rows(proposed)) == 3


def test_max_rows_takes_the_first_rows_of_each_source(write):
    a, b = write("a.jsonl", jsonl(*[{"n": n} for n in range(5)])), write("b.jsonl", jsonl({"n": 9}))
    assert [row.values["n"] for row in read_rows([str(a), str(b)], max_rows=2)] == [0, 1, 9]


def test_a_task_is_generated_by_seed_and_split():
    train, again = (read_rows("task:sort", max_rows=5, seed=3) for _ in range(2))
    assert train == again
    assert train[0].origin == "task:sort, train row 0"
    assert train != read_rows("task:sort", max_rows=5, seed=4)
    assert not {row.values["prompt"] for row in train} & {
        row.values["prompt"] for row in read_rows("task:sort", max_rows=5, split="eval", seed=3)
    }


def test_gsm8k_is_read_whole():
    rows = read_rows(str(shared_file("math/gsm8k_test.jsonl")))
    assert len(rows) == 1319
    assert set(rows[0].values) == {"question", "answer"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "broken.jsonl",
            jsonl({"prompt": "a"}) + '{"prompt": "b", oops}\n',
            r"broken.jsonl, line 2, column 17: broken JSON .* near '.*\"b\", oops}'",
        ),
        ("cut.jsonl", '{"prompt": "abc', r"cut.jsonl, line 1, column 12: broken JSON \(Unterminated string"),
        ("broken.json", '[{"a": 1},\n {"b" 2}]', r"broken.json, line 2, column 7: broken JSON"),
        ("lines.json", jsonl({"a": 1}, {"a": 2}), "looks like JSONL: rename it to .jsonl"),
        ("one.json", '{"a": 1}', r"holds one JSON object, not an array; allowed: an array of objects"),
        ("list.jsonl", "[1, 2]\n", r"list.jsonl:1 is a JSON list, not an object"),
        ("text.jsonl", '"just text"\n', r"text.jsonl:1 is a JSON str, not an object"),
        ("empty.jsonl", "", "empty.jsonl holds no rows; allowed: at least one row"),
        ("empty.json", " ", "empty.json holds no rows"),
        ("header.csv", "prompt,answer\n", "header.csv holds no rows"),
        ("wide.csv", "a,b\n1,2,3\n", r"wide.csv, line 2: its number of fields differs from the header's 2"),
        ("narrow.csv", "a,b\n1\n", r"narrow.csv, line 2: its number of fields differs"),
        ("twice.csv", "a,b,a\n1,2,3\n", r"twice.csv, line 1: 2 columns are named 'a'; allowed: a name of its own"),
        ("twice.csv.gz", 'a,"a"\n', r"twice.csv.gz, line 1: 2 columns are named 'a'"),
        ("semicolons.csv", "a;b\n1;2\n", r"semicolons.csv, line 1: .* separated by ';'; allowed: .*commas"),
        ("tabs.csv", "a\tb\n1\t2\n", r"tabs.csv, line 1: one column 'a\\tb': its columns are separated by '\\t'"),
        ("bars.csv", "a|b\n1|2,3\n", r"bars.csv, line 1: .* separated by '\|'(.|\n)*sep='\|'"),
        ("quotes.csv", 'a,b\n1,"open\n', r"quotes.csv, line 2: broken CSV \(unexpected end of data\)"),
        (
            "latin.jsonl",
            b'{"prompt": "e"}\n' + '{"prompt": "é"}\n'.encode("latin-1"),
            r"latin.jsonl, line 2, byte 13: not UTF-8 \(invalid .*\n.*remove line 2",
        ),
        ("no.parquet", "PAR?", "no.parquet cannot be read"),
        ("notes.txt", "hello", r"notes.txt has an unknown format; allowed: .jsonl, .json, .csv, .parquet"),
    ],
)
def test_what_is_broken_is_named_by_file_and_line(write, name, content, message):
    with pytest.raises(DataError, match=message):
        read_rows(str(write(name, content)))


@pytest.mark.parametrize(
    ("header", "columns"),
    [("a", 1), ("a;b,c", 2), ("a,A", 2), ("a,,", 3), (",a", 2), ("a b", 1), ('"a,b"', 1), ("a,a ", 2), ("a:b", 1)],
)
def test_other_headers_of_csv_are_read(write, header, columns):
    (row,) = read_rows(str(write("rows.csv", f"{header}\n{','.join('x' * columns)}\n")))
    assert set(row.values.values()) == {"x"}


def test_a_cut_gzip_file_is_an_error(tmp_path):
    whole = gzip.compress(jsonl(*[{"prompt": str(n)} for n in range(1000)]).encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut.jsonl.gz cannot be read \(Compressed file ended"):
        read_rows(str(tmp_path / "cut.jsonl.gz"))


def test_a_missing_file_a_folder_and_a_glob_without_match(tmp_path, write):
    write("train.jsonl", jsonl({"prompt": "a"}))
    with pytest.raises(DataError, match=r"gone.jsonl does not exist; allowed: a file, a glob"):
        read_rows(str(tmp_path / "gone.jsonl"))
    with pytest.raises(DataError, match=r"is a folder with train.jsonl; allowed: a file, a glob"):
        read_rows(str(tmp_path))
    with pytest.raises(DataError, match=r"no file matches .*\*.csv"):
        read_rows(str(tmp_path / "*.csv"))


def test_a_dataset_name_without_a_network_says_what_to_do(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(
        DataError,
        match=r"is not a file here, and the Hugging Face dataset .*cannot be loaded(.|\n)*without a network, download",
    ):
        read_rows("no/such-dataset-here")


def test_an_unknown_task_gets_a_suggestion():
    with pytest.raises(DataError, match=r"there is no task 'sorting'; allowed: sort, .*\n  Did you mean 'sort'\?"):
        read_rows("task:sorting")


# --- one row at a time ------------------------------------------------------------------------------------------------


def test_rows_come_before_the_rest_of_the_file_is_read(write):
    lines = iter_rows(str(write("half.jsonl", jsonl({"prompt": "a"}) + "{broken\n")))
    assert next(lines).values == {"prompt": "a"}
    with pytest.raises(DataError, match="line 2"):
        next(lines)
    array = iter_rows(str(write("half.json", '[{"prompt": "a"}, ' + " " * 2 * PIECE + "oops]")))
    assert next(array).values == {"prompt": "a"}
    with pytest.raises(DataError, match=r"half.json, line 1, column \d+: broken JSON"):
        next(array)


def test_a_source_without_rows_is_an_error_also_when_it_is_read_row_by_row(write):
    with pytest.raises(DataError, match="holds no rows"):
        next(iter_rows(str(write("empty.jsonl", ""))))


@pytest.mark.parametrize("piece", [1, 2, 7, 64])
def test_a_json_array_is_the_same_whatever_the_pieces_in_which_it_is_read(write, monkeypatch, piece):
    monkeypatch.setattr(json_array, "PIECE", piece)
    rows = [{"a": 'x"\\é\u2028' * n, "b": [n, -1.5e-3, None, True], "c": {"d": []}} for n in range(12)]
    for text in (json.dumps(rows), json.dumps(rows, indent=2, ensure_ascii=False), " \n" + json.dumps(rows) + "\n "):
        assert [row.values for row in read_rows(str(write("rows.json", text)))] == rows


@pytest.mark.parametrize("piece", [1, 5, 1 << 20])
@pytest.mark.parametrize(
    "text", ['[{"a": 1},\n {"a": 2}\n {"a": 3}]', '[{"a": 1},\n {"a": nul}]', '[{"a": 1}]\n[', '[{"a": "x', '[{"a": 1}']
)
def test_a_broken_array_is_named_where_the_whole_text_would_name_it(write, monkeypatch, piece, text):
    monkeypatch.setattr(json_array, "PIECE", piece)
    with pytest.raises(json.JSONDecodeError) as whole:
        json.loads(text)
    place = rf"broken.json, line {whole.value.lineno}, column {whole.value.colno}: broken JSON"
    with pytest.raises(DataError, match=place):
        read_rows(str(write("broken.json", text)))


# --- a source before it is read ---------------------------------------------------------------------------------------


def test_the_key_of_a_source_changes_with_every_byte_and_with_what_is_read_of_it(write):
    def key(content, **kwargs):
        path = str(write("rows.jsonl", content))
        return content_key(path, **{"split": "train", "max_rows": None, "seed": 0} | kwargs)

    same = key(jsonl({"a": 1}))
    assert key(jsonl({"a": 1})) == same
    assert len({same, key(jsonl({"a": 2})), key(jsonl({"a": 1}), max_rows=1), key(jsonl({"a": 1}), split="eval")}) == 4


def test_the_size_counts_compressed_files_as_what_they_unpack_to(write):
    plain, packed = write("rows.jsonl", jsonl(*ROWS)), write("rows.jsonl.gz", jsonl(*ROWS))
    assert size_of(str(plain)) == plain.stat().st_size
    assert size_of([str(plain), str(packed)]) == plain.stat().st_size + 4 * packed.stat().st_size
    assert size_of("task:sort") == 0


def test_a_parquet_file_that_is_none_has_no_encoding(write):
    with pytest.raises(DataError, match=r"fake.parquet cannot be read .*; allowed: a whole Parquet file"):
        read_rows(str(write("fake.parquet", "nope")))


def test_a_dataset_that_was_saved_to_disk_is_read(tmp_path):
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}]
    dataset = datasets.Dataset.from_list(rows)
    dataset.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=dataset, test=dataset.select([1])).save_to_disk(tmp_path / "both")
    assert [row.values for row in read_rows(str(tmp_path / "one"))] == rows
    assert [row.values for row in read_rows(str(tmp_path / "both"))] == rows
    (row,) = read_rows(str(tmp_path / "both"), split="test")
    assert (row.values, row.origin) == (rows[1], f"{tmp_path / 'both'} [test], row 0")
    assert size_of(str(tmp_path / "one")) > 0
    keys = [content_key(str(tmp_path / "both"), split=split, max_rows=None, seed=0) for split in ("train", "test")]
    assert keys[0] != keys[1]
    with pytest.raises(DataError, match=r"both has no split 'eval'; allowed: train, test"):
        read_rows(str(tmp_path / "both"), split="eval")


def test_a_folder_with_files_of_two_forms_proposes_both_and_nothing_that_is_no_data(tmp_path):
    for name in ("a.csv", "one.json", "dataset_info.json"):
        (tmp_path / name).write_text("[]")
    with pytest.raises(DataError) as error:
        read_rows(str(tmp_path))
    assert "is a folder with a.csv, one.json; " in str(error.value)
    assert f"or a list of them: [{tmp_path}/a.csv, {tmp_path}/one.json]." in str(error.value)


def test_the_glob_that_is_proposed_for_a_folder_matches_its_files(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"\*\.jsonl\.gz\.$"):
        read_rows(str(tmp_path))


# --- Arrow gives all objects of a column the same keys ----------------------------------------------------------------

ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "city": st.sampled_from(["Rome", "Bonn"]),
        "n": st.integers(0, 9),
        "where": st.fixed_dictionaries({}, optional={"x": st.integers(0, 9), "unit": st.sampled_from("ab")}),
        "tags": st.lists(st.fixed_dictionaries({"id": st.integers(0, 9)}, optional={"a": st.just(1)}), max_size=2),
    },
)
ALL = {"city": "Rome", "n": 1, "where": {"x": 1, "unit": "a"}, "tags": [{"id": 1, "a": 1}]}


def talk_with_calls(arguments, column):
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    properties = {name: {"type": "string"} for name in ("city", "n") if name in arguments}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}
    before = {} if column == "messages" else {"prompt": turns[:1]}
    return {**before, column: turns if column == "messages" else turns[1:], "tools": [tool]}


@pytest.mark.hypothesis
@pytest.mark.parametrize("column", few(["messages", "completion"], "messages"))
@pytest.mark.parametrize("form", ["parquet", "saved", "in memory"])
def test_calls_from_arrow_have_their_own_arguments_only(form, column, tmp_path):
    @given(st.lists(ARGUMENTS, min_size=1, max_size=4))
    @examples(8, 20)
    def check(several):
        rows = [
            talk_with_calls(arguments, column) for arguments in (ALL, *several)
        ]  # Parquet refuses objects without keys
        with TemporaryDirectory(dir=tmp_path) as folder:
            if form == "parquet":
                parquet.write_table(pa.Table.from_pylist(rows), f"{folder}/rows.parquet")
                read = read_rows(f"{folder}/rows.parquet")
            elif form == "saved":
                datasets.Dataset.from_list(rows).save_to_disk(folder)
                read = read_rows(folder)
            else:
                in_memory: Any = datasets.Dataset.from_list(rows)
                read = given_rows(in_memory)
        found = [detect(read, "examples").read(row) for row in read]
        assert found == [detect(rows_of(row), "examples").read(rows_of(row)[0]) for row in rows]

    check()


def test_nulls_that_are_written_stay(write, tmp_path):
    """In JSON, and in JSON text within Arrow; other columns keep all nulls."""
    called = talk_with_calls({"city": None}, "messages")
    for row in read_rows(str(write("rows.jsonl", jsonl(called)))):
        assert row.values == called
    as_text = talk_with_calls('{"city": null, "n": [null]}', "messages") | {"info": {"a": None, "b": [None]}}
    parquet.write_table(pa.Table.from_pylist([as_text]), tmp_path / "rows.parquet")
    (row,) = read_rows(str(tmp_path / "rows.parquet"))
    found: Any = detect([row], "examples").read(row)
    call = found["messages"][1]["tool_calls"][0]["function"]
    assert call["arguments"] == {"city": None, "n": [None]}
    assert row.values["info"] == {"a": None, "b": [None]}


def program_row(value, other):
    """Columns with a dictionary at every place of a test where one may be, and with an expected null."""
    pair = {"inputs": [[value], [value, {"n": 5}]], "outputs": [value, None], "fn_name": "f"}
    cases = [
        {"input": value, "output": [value]},
        {"args": [value], "kwargs": value, "expected": value},
        {"inputs": [[value]], "outputs": None},
        {"stdin": "1", "stdout": "2", "expected_output": other},
    ]
    return {
        "tests": cases,
        "input_output": pair,
        "verification_info": {"language": "python", "test_cases": cases},
        "answer": pair,
        "reward_model": {"ground_truth": pair},
    }


def same(value):
    """The value with each test as the names that have a value: Arrow gives all tests the same names."""
    if isinstance(value, dict):
        return {key: same(one) for key, one in value.items() if one is not None}
    return [same(one) for one in value] if isinstance(value, list) else value


def from_arrow(form, rows, folder):
    """The rows after Arrow has held them."""
    if form == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
        return [row.values for row in read_rows(str(folder / "rows.parquet"))]
    found: Any = datasets.Dataset.from_list(rows)
    return [row.values for row in given_rows(found)]


@pytest.mark.parametrize("form", ["parquet", "in memory"])
def test_tests_from_arrow_have_their_own_arguments_and_results_only(form, tmp_path):
    rows = [program_row({"a": 1, "in": {"x": 1}}, "3"), program_row({"b": 2, "in": {"y": [2]}}, None)]
    read = from_arrow(form, rows, tmp_path)
    assert same(read) == same(rows)
    for found, row in zip(read, rows, strict=True):
        for name in ("input_output", "answer", "reward_model"):
            assert found[name] == row[name]
        for tests in (found["tests"], found["verification_info"]["test_cases"]):
            assert tests[0]["input"] == row["tests"][0]["input"]
            assert tests[2]["outputs"] is None


def test_a_keyword_that_a_test_of_the_row_gives_stays_as_null(tmp_path):
    rows = [
        {"tests": [{"input": {"root": [1], "k": 1}, "output": 1}, {"input": {"root": None, "k": 2}, "output": 2}]},
        {"tests": [{"fn_name": "f", "input": {"a": 1}, "output": 1}, {"fn_name": "g", "input": {"b": 1}, "output": 1}]},
    ]
    first, second = from_arrow("parquet", rows, tmp_path)
    assert [test["input"] for test in first["tests"]] == [{"root": [1], "k": 1}, {"root": None, "k": 2}]
    assert [test["input"] for test in second["tests"]] == [{"a": 1}, {"b": 1}]


def test_nulls_in_tests_stay_if_they_are_text_or_not_from_arrow(write, tmp_path):
    row = {"tests": [{"input": {"a": None}, "output": {"b": None}, "kwargs": {"c": None}}]}
    assert read_rows(str(write("rows.jsonl", jsonl(row))))[0].values == row
    text = {"tests": json.dumps(row["tests"]), "other": {"input": {"a": None}}}
    assert from_arrow("parquet", [text], tmp_path) == [text]
