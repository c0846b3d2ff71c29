#!/bin/sh
# Shows how the API of the public packages differs between two commits, for CHANGELOG.md: a line for each declaration or
# field that has gone (-) or come (+). The status is 1 where there is any.
#
#   ./api-changes.sh v0.1.0 [HEAD]
set -eu
[ $# -ge 1 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")"
old=$(git rev-parse --verify "$1^{commit}")
new=$(git rev-parse --verify "${2:-HEAD}^{commit}")
dir=$(mktemp -d)
trap 'for side in old new; do git worktree remove --force "$dir/$side" 2>/dev/null || :; done; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM

# One line for each function, type, field and constant, in order: what only moves is no change. What go doc prints of a
# declaration begins in the first column or with a tab, and its comment with four spaces; before it stands the package's.
declarations() {
	git worktree add -q --detach "$dir/$1" "$2"
	(
		cd "$dir/$1"
		go list ./... | grep -v -e /internal/ -e '/internal$' -e /apps/ -e /bench -e /launch -e '/docs$' -e /docs/ | while read -r package; do
			go doc -all "$package" | awk -v package="$package" '
				/^(CONSTANTS|VARIABLES|FUNCTIONS|TYPES)$/ { begun = 1; next }
				!begun || /^    / || /^$/ || /^\t*\/\// { next }
				/^[)}]/ { block = ""; next }
				/^\t/ { sub(/^\t+/, ""); sub(/[ \t]+\/\/.*/, ""); gsub(/[ \t]+/, " "); print package ": " block ": " $0; next }
				{ print package ": " $0; block = $0; sub(/ *[({]$/, "", block) }'
		done
	) | LC_ALL=C sort >"$dir/$1.txt"
}
declarations old "$old"
declarations new "$new"
diff -U 0 "$dir/old.txt" "$dir/new.txt" >"$dir/changes" || status=$?
sed -n -e '/^---/d' -e '/^+++/d' -e '/^[-+]/p' "$dir/changes"
exit "${status:-0}"
