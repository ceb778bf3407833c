<<<<<<< HEAD
"""Run the `hasten` command with `python -m hasten`."""
=======
"""Run the command `hasten` as `python -m hasten`."""
>>>>>>> 373e803 (Make the first ten minutes on the command line clear)

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
<<<<<<< HEAD
        del sys.path[0]  # the working folder, which is not on the path of the command and may have a `statistics.py`
=======
        del sys.path[0]  # the working folder, which is not on the path of the command: it may contain a `statistics.py`
>>>>>>> 373e803 (Make the first ten minutes on the command line clear)
    from hasten.cli.main import main

    main()
