"""`python -m camri` is the command line."""

from camri.cli import main

if __name__ == "__main__":
    main()
