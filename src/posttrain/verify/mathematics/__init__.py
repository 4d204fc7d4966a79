r"""Mathematical answers as exact values: read by a grammar of our own, compared without rounding, nothing evaluated.

>>> from posttrain.verify.mathematics.compare import same
>>> from posttrain.verify.mathematics.options import Options
>>> from posttrain.verify.mathematics.parse import parse
>>> same(parse(r"\frac{1}{2}", Options(), gold=True), parse("0.5", Options()), Options())
True
"""
