"""Contain the commands of `flash-attention`, one module or package each. The module has the command's
name (with _ for -).

It has
    a docstring             whose first line is the command's help
    add_arguments(parser)   adds its options to an argparse parser
    run(options) -> int     does the work and returns the exit status; prints what the user should see

Importing it must be cheap: MindSpore and the like are imported inside `run`. Modules that begin with _ are no commands.
"""
