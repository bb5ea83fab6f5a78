"""Command `completion`: write the program that completes commands in a shell."""

import click
from click.shell_completion import get_completion_class

from timerstore.cli.output import say

SHELLS = {
    "bash": 'eval "$(timerstore completion bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(timerstore completion zsh)"     # in ~/.zshrc, after compinit',
    "fish": "timerstore completion fish | source     # in ~/.config/fish/config.fish",
}
"""Shell: the line that loads the completion, and its file."""

_VARIABLE = "_TIMERSTORE_COMPLETE"  # as click names it for the program `timerstore`


@click.command("completion", epilog="\b\nLoad it with:\n" + "\n".join(SHELLS.values()))
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Write a program for SHELL that completes commands, options and paths."""
    made = get_completion_class(shell)
    assert made is not None
    say(made(context.find_root().command, {}, "timerstore", _VARIABLE).source().rstrip("\n"))
