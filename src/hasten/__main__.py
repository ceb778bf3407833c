"""`python -m hasten`: the same as the command `hasten`."""

from hasten.cli.main import main

if __name__ == "__main__":
    main()
