r"""Mathematical answers as exact values, which our own grammar reads and which are compared without rounding or `eval`.

>>> from posttrain.verify.mathematics.compare import same
>>> from posttrain.verify.mathematics.options import Options
>>> from posttrain.verify.mathematics.parse import parse
>>> same(parse(r"\frac{1}{2}", Options(), gold=True), parse("0.5", Options()), Options())
True
"""
