"""Run the `hasten` command with `python -m hasten`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working folder, which is not on the path of the command and may have a `statistics.py`
    from hasten.cli.main import main

    main()
