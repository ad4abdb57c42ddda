# Bash takes `a:eth1` for three words. Here it is one again, and what bash has of it already is taken off the answers.
_fermata() {
    local -a words=("${COMP_WORDS[0]}")
    local at=0 index word
    for ((index = 1; index <= COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        if [[ $word == [:=]* || ${words[at]} == *[:=] ]]; then
            words[at]+=$word
        else
            words[++at]=$word
        fi
    done
    word=${COMP_WORDS[COMP_CWORD]}
    if [[ $word == [:=] ]]; then
        word=
    fi
    local before=${words[at]%"$word"}
    mapfile -t COMPREPLY < <(FERMATA_COMPLETE=bash fermata -- "${words[@]}" 2>/dev/null)
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
    if [[ ${COMPREPLY-} == *[/:=] ]]; then
        compopt -o nospace
    fi
}
complete -o nosort -F _fermata fermata
