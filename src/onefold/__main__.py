"""`python -m onefold` is `onefold`.

For machines where the script is not on the PATH. Nothing else lives here.
"""

from onefold.cli.main import main

if __name__ == "__main__":
    main()
