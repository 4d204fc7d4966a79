"""The report of `data check` as text for a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from posttrain.data.dropped import Dropped, counted
from posttrain.data.forms import TAKEN_BY
from posttrain.data.looks import cut, marked
from posttrain.data.survey import PLACES, Finding, Lengths, Sample, Use

if TYPE_CHECKING:
    from posttrain.data.inspection import DataReport

WIDTH = 110


def as_text(report: DataReport) -> str:
    lines = [f"{report.source}: {counted(report.rows, 'row')}", "", *_columns(report)]
    if not report.uses:
        lines += ["", *(f"not usable: {problem}" for problem in report.problems)]
    for use in report.uses:
        lines += ["", *_use(use, report)]
        lines += ["", *_findings([*report.findings, *use.findings])]
        for sample in use.samples:
            lines += ["", *_sample(sample)]
        if use.trained:
            lines += ["", "The text in ⟦…⟧ is trained."]
    return "\n".join(lines)


def _columns(report: DataReport) -> Iterator[str]:
    yield "columns"
    width = max((len(column.name) for column in report.columns), default=0)
    for column in report.columns:
        missing = f", missing in {counted(column.missing, 'row')}" if column.missing else ""
        unread = "" if column.read else ", not read"
        yield f"  {column.name:<{width}}  {' or '.join(column.types) or 'always empty'}{missing}{unread}"


def _use(use: Use, report: DataReport) -> Iterator[str]:
    yield f"{use.mapping}; for {TAKEN_BY[use.kind]}"
    for kind, columns in report.also.items():
        yield f"  also        {columns}, for {TAKEN_BY[kind]}; see it with --as {kind}"
    limit = f", of at most {report.max_length:,} {report.unit}" if report.max_length else ""
    answers = f" ({use.records:,} answers)" if use.records != use.usable else ""
    yield f"  usable      {use.usable:,} of {counted(report.rows, 'row')}{answers}{limit}"
    yield from _dropped(use.dropped)
    if use.repeated_prompts:
        yield f"  prompts {use.repeated_prompts:,} of them repeat the prompt of an earlier row"
    if use.classes:
        yield "  labels      " + ", ".join(f"{count:,} {label}" for label, count in use.classes.items())
    if use.trained:
        share = f"{use.trained / use.tokens:.0%}"
        yield f"  {report.unit:<10}  {use.tokens:,}, of which {use.trained:,} are trained ({share})"
    else:
        yield f"  {report.unit:<10}  {use.tokens:,}"
    yield ""
    yield from _quantiles(report.unit, use.lengths)
    if use.numbers:
        yield from _quantiles("", use.numbers)
    if use.length_bias is not None:
        yield ""
        yield from _length_bias(use, report.unit)


def _dropped(dropped: Sequence[Dropped]) -> Iterator[str]:
    counts: Counter[str] = Counter()
    places: dict[str, list[str]] = {}
    for origin, reason in dropped:
        counts[reason] += 1
        if counts[reason] <= PLACES:
            places.setdefault(reason, []).append(origin)
    for n, (reason, count) in enumerate(counts.most_common()):
        where = ", ".join([*places[reason], *(["…"] if count > PLACES else [])])
        yield f"  {'' if n else 'dropped':<10}  {count:,} {reason} ({where})"


def _quantiles(title: str, found: Mapping[str, Lengths]) -> Iterator[str]:
    width = max(len(title), 10, *map(len, found))
    if title:
        yield f"  {title:<{width}}" + "".join(f"{name:>10}" for name in ("shortest", "median", "90%", "99%", "longest"))
    else:
        yield f"  {'':<{width}}" + "".join(f"{name:>10}" for name in ("lowest", "median", "90%", "99%", "highest"))
    for name, quantiles in found.items():
        yield f"  {name:<{width}}" + "".join(f"{value:>10,.6g}" for value in quantiles)


def _length_bias(use: Use, unit: str) -> Iterator[str]:
    assert use.length_bias is not None
    difference, longer = use.length_bias.difference, use.length_bias.longer_is_chosen
    between = "no interval: one pair" if difference.n == 1 else "the same in every pair"
    if difference.finite:
        between = f"{difference.low:+.1f} to {difference.high:+.1f}"
    share = f"the longer one is chosen in {longer.mean:.0%} ({longer.low:.0%} to {longer.high:.0%})"
    if not longer.n:
        share = "no pair has answers of different length"
    yield f"  chosen − rejected: {difference.mean:+.1f} {unit} on average ({between}); {share}"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    yield "worth a look" if findings else "nothing else is worth a look"
    for finding in findings:
        yield from textwrap.wrap(finding.message, WIDTH, initial_indent="  ! ", subsequent_indent="    ")
        yield from textwrap.wrap(finding.fix, WIDTH, initial_indent="    ", subsequent_indent="    ")


def _sample(sample: Sample) -> Iterator[str]:
    yield f"--- {sample.origin}"
    if not sample.rejected:
        yield marked(sample.parts, sample.texts)
    else:
        prompts = [parts[0][0] if parts and not parts[0][1] else "" for parts in (sample.parts, sample.rejected)]
        same = prompts[0] if prompts[0] == prompts[1] else ""
        yield marked([(same, False)], sample.texts)
        yield f"chosen: {marked(sample.parts[1:] if same else sample.parts, sample.texts)}"
        yield f"rejected: {marked(sample.rejected[1:] if same else sample.rejected, sample.texts)}"
    for name, value in sample.facts.items():
        yield f"{name}: {cut(str(value))}"
