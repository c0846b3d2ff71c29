# Of the package bash-completion the scripts below use what is loaded, and need nothing of it.

# Finds the words up to the cursor. What bash divides at = and : is one word, as a program gets it.
__lockstep_words()
{
    local i gap word last="" rest=${COMP_LINE:0:COMP_POINT}
    COMPREPLY=()
    words=()
    cword=-1
    for ((i = 0; i <= COMP_CWORD; i++)); do
        gap=${rest%%[![:space:]]*}
        rest=${rest#"$gap"}
        word=${COMP_WORDS[i]}
        ((i < COMP_CWORD)) || word=$rest # the part before the cursor
        if ((i > 0)) && [[ -z $gap && ($word == [=:]* || $last == *[=:]) ]]; then
            words[cword]+=$word
        else
            words[++cword]=$word
        fi
        rest=${rest#"$word"}
        last=$word
    done
    cur=${words[cword]}
    prev=
    ((cword == 0)) || prev=${words[cword - 1]}
}

# Completes the name of a folder with -d, else that of a file.
__lockstep_filedir()
{
    if declare -F _filedir >/dev/null; then
        _filedir "$@"
        return
    fi
    local kind=-f
    [[ ${1-} != -d ]] || kind=-d
    compopt -o filenames 2>/dev/null
    IFS=$'\n' read -ra COMPREPLY -d '' < <(compgen "$kind" -- "$cur")
}

