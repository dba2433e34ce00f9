# shellcheck shell=bash
# Sourced by the scripts that go on after a part that failed: they name what failed at their end, where one looks first.
failures=""

failed() { # failed PART [FILE]: FILE has the part's output
    failures+="FAILED $1"$'\n'
    [[ -z ${2-} ]] || failures+=$(grep -m 12 -E '^ *(FAILED|ERROR|failed|E ) ' "$2" || tail -n 6 "$2")$'\n'
}

finish() { # ends the script
    echo -n "$failures"
    [[ -z $failures ]]
    exit
}
