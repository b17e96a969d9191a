"""`python -m kvgate` is `kvgate`."""

from kvgate.cli.main import run

if __name__ == "__main__":
    run()
