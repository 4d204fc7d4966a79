"""Entry point of `python -m posttrain`: the command line."""

from posttrain.cli import main

if __name__ == "__main__":
    main()
