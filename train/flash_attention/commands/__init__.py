"""Contain the commands of `flash-attention`, one module or package each. The module has the command's
name (with _ for -).

It has
    a docstring             whose first line is the command's help
    add_arguments(parser)   adds its options to an argparse parser
    run(options) -> int     does the work and returns the exit status; prints what the user should see
    unread(options)         may be absent; returns words for the way of the command that was chosen ("with --tik"),
                            and the names of options that it does not read, which are refused

Its import must be cheap, so `run` imports MindSpore and the like. Modules whose name begins with _ are no commands.
"""
