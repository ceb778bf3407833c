"""`python -m hasten`: the same as the command `hasten`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working folder, which the command does not have there: it may hold a `statistics.py`
    from hasten.cli.main import main

    main()
