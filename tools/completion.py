"""Completion scripts for bash and zsh: verbs, options and their values.

The script is generated from the verbs' options and contains all fixed values, so that completing a word does not start
Python; the shell itself finds files, run folders and ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template
from typing import Final

from onrig.runtime.config.document import shipped_names
from onrig.tools.first_rig import plant_names
from onrig.tools.options import Argument, arguments_of, verb_module

_SCRIPT: Final = Template(r"""# Completion of onrig's verbs, options and values.

_onrig_kind() {  # kind of the value of option $$2 of verb $$1; fails for an option without a value
    case "$$1 $$2" in
$valued
        *) return 1 ;;
    esac
}

_onrig_values() {  # add the completions of $$2, of kind $$1
    local IFS=$$'\n' found
    case $$1 in
        config)
            COMPREPLY+=($$(compgen -W $configs -- "$$2"))
            COMPREPLY+=($$(compgen -f -X '!*.yaml' -- "$$2") $$(compgen -d -- "$$2")) ;;
        experiment)
            COMPREPLY+=($$(compgen -W $experiments -- "$$2"))
            COMPREPLY+=($$(compgen -f -X '!*.yaml' -- "$$2") $$(compgen -d -- "$$2")) ;;
        run)
            for found in "$$2"*/meta.json "$$2"/*/meta.json runs/"$$2"*/meta.json; do
                [ -f "$$found" ] && COMPREPLY+=("$${found%/meta.json}")
            done
            [ $${#COMPREPLY[@]} -gt 0 ] || COMPREPLY+=($$(compgen -d -- "$$2")) ;;
        port)
            for found in /dev/serial/by-id/* /dev/ttyACM* /dev/ttyUSB*; do
                [ -e "$$found" ] && COMPREPLY+=($$(compgen -W "$$found" -- "$$2"))
            done ;;
        file) COMPREPLY+=($$(compgen -f -- "$$2")) ;;
        folder) COMPREPLY+=($$(compgen -d -- "$$2")) ;;
        words:*) found=$${1#words:}; COMPREPLY+=($$(compgen -W "$${found//,/$$'\n'}" -- "$$2")) ;;
    esac
}

_onrig() {
    local word="$${COMP_WORDS[COMP_CWORD]}" verb="$${COMP_WORDS[1]}" start=2 at=0 i options kinds kind
    COMPREPLY=()
    if [ "$$COMP_CWORD" -eq 1 ]; then _onrig_values words:$verbs "$$word"; return; fi
    case $$verb in
$groups
    esac
    case $$verb in
$table
        *) return ;;
    esac
    for ((i = start; i < COMP_CWORD; i++)); do  # count the arguments before the word
        case $${COMP_WORDS[i]} in
            =) ;;
            -*)
                if kind=$$(_onrig_kind "$$verb" "$${COMP_WORDS[i]}"); then
                    [ "$${COMP_WORDS[i + 1]}" = = ] && ((i++))
                    if [ $$((i + 1)) -ge "$$COMP_CWORD" ] && [ "$$word" != "-$${word#-}" ]; then
                        [ "$$word" = = ] && word=
                        _onrig_values "$$kind" "$$word"
                        return
                    fi
                    ((i++))
                fi ;;
            *) ((at++)) ;;
        esac
    done
    case $$word in
        -*) _onrig_values "words:$$options" "$$word"; return ;;
    esac
    for kind in $$kinds; do
        if [ "$$at" -eq 0 ] || [ "$${kind%+}" != "$$kind" ]; then _onrig_values "$${kind%+}" "$$word"; return; fi
        ((at--))
    done
    _onrig_values "words:$$options" "$$word"
}

complete -o filenames -F _onrig onrig
""")
_ZSH: Final = "autoload -Uz bashcompinit && bashcompinit\n"


_GROUP: Final = """\
        {group})
            if [ "$COMP_CWORD" -eq 2 ]; then _onrig_values words:{names} "$word"; return; fi
            verb="{group} ${{COMP_WORDS[2]}}" start=3 ;;"""


def script(shell: str, groups: Mapping[str, Sequence[str]], verbs: Sequence[str]) -> str:
    """Return the script for a shell. ``groups`` maps each top-level verb to the verbs in its group (empty if it is not
    a group), and ``verbs`` lists all verbs that take options.
    """
    options = {verb: arguments_of(verb_module(verb).Options) for verb in verbs}
    text = _SCRIPT.substitute(
        verbs=",".join([*groups, "--help", "--version"]),
        configs="$'" + "\\n".join(shipped_names()) + "'",
        experiments="$'" + "\\n".join(shipped_names("experiments")) + "'",
        groups="\n".join(_GROUP.format(group=group, names=",".join(names)) for group, names in groups.items() if names),
        valued="\n".join(
            _value_row(verb, a) for verb, arguments in options.items() for a in arguments if _has_value(a)
        ),
        table="\n".join(_row(verb, arguments) for verb, arguments in options.items()),
    )
    return _ZSH + text if shell == "zsh" else text


def _has_value(a: Argument) -> bool:
    return not a.positional and a.type is not bool


def _value_row(verb: str, a: Argument) -> str:
    return f'        "{verb} {a.flag}") echo {_value_kind(a)} ;;'


def _value_kind(a: Argument) -> str:
    values = plant_names() if a.value.complete == "plant" else a.choices
    kind = f"words:{','.join(values)}" if values else a.value.complete or "none"
    return kind + "+" * (a.positional and a.is_repeatable)


def _row(verb: str, arguments: Sequence[Argument]) -> str:
    options = ",".join([*(a.flag for a in arguments if not a.positional), "--help"])
    kinds = " ".join(_value_kind(a) for a in arguments if a.positional)
    return f'        "{verb}") options={options} kinds="{kinds}" ;;'
