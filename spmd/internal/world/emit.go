package world

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"lockstep/internal/ccall"
	"lockstep/spmd/internal/dashboard"
)

// Emit writes v as one line of JSON to the file given by --json, on rank 0, and gives it to the
// functions of Emitted. Its numbers are on the page of --dashboard. A line that cannot be written,
// as on a full disk, fails the job when it has ended in order.
func (w *World) Emit(v any) error {
	w.mu.Lock()
	listeners := w.listeners
	w.mu.Unlock()
	var board *dashboard.Board
	if w.start.Config.Dashboard != "" {
		board = w.shown.board // nil but on rank 0
	}
	if w.json == nil && len(listeners) == 0 && board == nil {
		return nil
	}
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: Emit: %w", ccall.At(), err)
	}
	if board != nil {
		show(board, line)
	}
	line = append(w.withUnits(v, line), '\n')
	for _, l := range listeners {
		(*l)(line)
	}
	if w.json == nil {
		return nil
	}
	_, err = w.json.Write(line)
	if errors.Is(err, unix.EPIPE) { // whoever reads it wants no more
		return err
	}
	if err != nil && w.unwritten.CompareAndSwap(nil, &err) {
		w.rank.Log.Warn().Err(err).Msg("--json: a line is missing; the job goes on, and fails at its end")
	}
	return nil
}

// Emitted has Emit on this rank give each line to fn, with its end, until cancel. fn keeps none of
// its bytes.
func (w *World) Emitted(fn func(line []byte)) (cancel func()) {
	l := &fn
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listeners = append(slices.Clip(w.listeners), l) // Emit may be reading the old list
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.listeners = slices.DeleteFunc(slices.Clone(w.listeners), func(o *func([]byte)) bool { return o == l })
	}
}

// show puts the numbers of an object on the page. It leaves out a summary, which comes once.
func show(board *dashboard.Board, line []byte) {
	type number struct {
		name  string
		value float64
	}
	var list []number
	d := json.NewDecoder(bytes.NewReader(line))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return
	}
	for d.More() {
		name, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			return
		}
		if name == "summary" && string(value) == "true" {
			return
		}
		if n, err := json.Number(value).Float64(); err == nil {
			list = append(list, number{name.(string), n})
		}
	}
	for _, n := range list {
		board.Set(n.name, n.value)
	}
}

// withUnits adds to the first line of a type of struct the units that its fields have as tags.
func (w *World) withUnits(v any, line []byte) []byte {
	t := reflect.TypeOf(v)
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct {
		return line
	}
	w.mu.Lock()
	said := slices.Contains(w.united, t)
	if !said {
		w.united = append(w.united, t)
	}
	w.mu.Unlock()
	if said {
		return line
	}
	var list []byte
	for _, f := range reflect.VisibleFields(t) {
		unit, name := f.Tag.Get("unit"), f.Name
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag != "" {
			name = tag
		}
		if unit == "" {
			continue
		}
		key, err := json.Marshal(name)
		value, err2 := json.Marshal(unit)
		if err != nil || err2 != nil {
			continue // a string always can
		}
		list = append(append(append(append(list, ','), key...), ':'), value...)
	}
	if len(list) == 0 || !bytes.HasSuffix(line, []byte{'}'}) {
		return line
	}
	more := `,"units":{`
	if bytes.Equal(line, []byte("{}")) {
		more = more[1:]
	}
	return fmt.Appendf(line[:len(line)-1:len(line)-1], "%s%s}}", more, list[1:])
}
