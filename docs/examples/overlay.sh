#!/bin/sh
# Makes one program of all examples, for their test: each becomes a file of the test's package, in which main registers
# what it would run; places in errors stay those of the sources. The sources stay as they are: go test -overlay is told to see the copies in FOLDER.
#
#   overlay.sh FOLDER     writes FOLDER/overlay.json
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
to=$(cd "$1" && pwd)

comma=
printf '{"Replace":{' >"$to/overlay.json"
for main in "$here"/*/main.go; do
	name=$(basename "$(dirname "$main")")
	sed -e "1i //line $name/main.go:1" -e 's/^package main$/package examples/' -e 's/^func main() {$/func init() {/' -e 's/\bspmd\.Main(/register(/' "$main" >"$to/$name.text"
	printf '%s"%s":"%s"' "$comma" "$here/${name}_test.go" "$to/$name.text" >>"$to/overlay.json"
	comma=,
	if [ -e "$here/$name/kernels_spmd.go" ]; then
		sed -e 's/^package main$/package examples/' -e "s/spmdgenSource/${name}Source/g" "$here/$name/kernels_spmd.go" >"$to/$name.kernels"
		printf ',"%s":"%s"' "$here/${name}_kernels_test.go" "$to/$name.kernels" >>"$to/overlay.json"
	fi
done
printf '}}\n' >>"$to/overlay.json"
