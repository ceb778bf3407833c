"""`python -m upshift`: the same as the command `upshift`."""

from upshift.cli.main import main

if __name__ == "__main__":
    main()
