"""``nodenet completion bash|zsh|fish``: a script for the shell's start-up file.

The scripts hold no names: they ask ``nodenet _complete`` each time, so they never grow stale.
"""

from __future__ import annotations

import click

from nodenet.cli.commands import object_command
from nodenet.cli.complete_command import DIRECTORIES, FILES, SHELLS
from nodenet.cli.globals import Format, Globals, pass_globals
from nodenet.errors import UsageError

_BASH = """\
# nodenet completion bash: source <(nodenet completion bash)
_nodenet() {
    local line=${COMP_LINE:0:COMP_POINT} value
    COMPREPLY=()
    while IFS= read -r value; do
        case $value in
            FILES) compopt -o default ;;
            DIRECTORIES) compopt -o dirnames ;;
            *) COMPREPLY+=("$value")
               # a prefix such as pid: wants its rest at once
               [[ $value == *: ]] && compopt -o nospace ;;
        esac
    done < <(nodenet _complete bash -- "$line" 2>/dev/null)
}
complete -o nosort -F _nodenet nodenet
"""

_ZSH = """\
#compdef nodenet
# nodenet completion zsh: source <(nodenet completion zsh), or a file _nodenet in $fpath
_nodenet() {
    local line="${(j: :)words[1,CURRENT]}" entry value
    local -a plain
    for entry in "${(@f)$(nodenet _complete zsh -- "$line" 2>/dev/null)}"; do
        value=${entry%%$'\\t'*}
        case $value in
            '') ;;
            FILES) _files ;;
            DIRECTORIES) _files -/ ;;
            *$entry) plain+=("${value//:/\\\\:}") ;;
            *) plain+=("${value//:/\\\\:}:${entry#*$'\\t'}") ;;
        esac
    done
    (( ${#plain} )) && _describe -V nodenet plain
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _nodenet "$@"
else
    compdef _nodenet nodenet
fi
"""

_FISH = """\
# nodenet completion fish: nodenet completion fish | source
function __nodenet_complete
    for entry in (nodenet _complete fish -- (commandline -cp) 2>/dev/null)
        switch $entry
            case FILES
                __fish_complete_path (commandline -ct)
            case DIRECTORIES
                __fish_complete_directories (commandline -ct)
            case '*'
                echo $entry
        end
    end
end
complete --command nodenet --no-files --keep-order --arguments '(__nodenet_complete)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def script(shell: str) -> str:
    """The completion script of that shell."""
    return _SCRIPTS[shell].replace("FILES", FILES).replace("DIRECTORIES", DIRECTORIES)


@object_command(
    "completion", epilog="Example: echo 'source <(nodenet completion bash)' >> ~/.bashrc"
)
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
@pass_globals
def command(g: Globals, shell: str) -> None:
    """Print the completion script of a shell."""
    if g.format is not Format.TABLE:
        raise UsageError("completion prints a script for a shell: it has no other form")
    click.echo(script(shell), nl=False)
