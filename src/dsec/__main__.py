"""`python -m dsec` is `dsec`."""

from dsec.cli.main import main

if __name__ == "__main__":
    main()
