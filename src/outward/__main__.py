"""python -m outward: the command line."""

from outward.cli import main

if __name__ == "__main__":
    main()
