"""`python -m posttrain.explain docs/algorithms` writes the pages anew."""

import sys

from posttrain.explain import write_docs

for page in write_docs(sys.argv[1]):
    print(page)
