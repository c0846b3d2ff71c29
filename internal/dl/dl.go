// Package dl fills a table of C entry points from a shared library that is found when the program
// runs, so that one binary works with and without the library.
//
// A package that binds a library keeps its entry points in variables of type unsafe.Pointer, hands
// Open a table that names them, and calls them from C trampolines:
//
//	var lib struct{ version, split unsafe.Pointer }
//
//	path, err := dl.Open([]dl.Sym{
//		{Name: "ncclGetVersion", Slot: &lib.version},
//		{Name: "ncclCommSplit", Slot: &lib.split, Optional: true}, // nil before NCCL 2.18
//	}, "libnccl.so.2", "libnccl.so")
//
// This is the one file of the package with import "C".
package dl

/*
#cgo linux LDFLAGS: -ldl
#ifndef _GNU_SOURCE
#define _GNU_SOURCE // dladdr, RTLD_DI_LINKMAP
#endif
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// dlerror belongs to the thread, and a goroutine may change threads between two calls into C:
// each call below therefore brings its own message home, as a copy the caller frees.

static char *last_error(void) {
	const char *e = dlerror();
	return strdup(e != NULL ? e : "no reason given");
}

static void *open_library(const char *file, char **err) {
	void *lib = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	if (lib == NULL) {
		*err = last_error();
	}
	return lib;
}

// A symbol may have the value NULL, so dlerror is what says whether it was found.
// An entry point at NULL cannot be called: that is reported too.
static void *find_symbol(void *lib, const char *name, char **err) {
	dlerror();
	void *f = dlsym(lib, name);
	if (f == NULL) {
		*err = last_error();
	}
	return f;
}

// file_of returns the path of the file that holds f, as a copy, or NULL.
static char *file_of(void *f) {
	Dl_info info;
	if (dladdr(f, &info) == 0 || info.dli_fname == NULL) {
		return NULL;
	}
	return strdup(info.dli_fname);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Sym is one row of a table: the C symbol to look up and the variable that takes its address.
type Sym struct {
	Name     string
	Slot     *unsafe.Pointer
	Optional bool // Slot stays nil when the library lacks the symbol
}

// Open loads the first of files that can be opened and stores the address of every symbol in its
// slot. It returns the path of the file in use as the loader reports it.
//
// A file is a name for the loader to search ("libnccl.so.2") or a path. Open tries the next one
// only if a file cannot be opened. If the library lacks required symbols, the error names the file
// and these symbols. If no file opens, the error has the loader's reason for each.
//
// After an error every slot is as it was: nil, or the entry point of a library that was opened
// before, which still works.
//
// A loaded library stays loaded until the process ends. Libraries of this kind start threads and
// register exit handlers, which do not survive dlclose. Source: dlfcn.h, dlopen and dlsym.
func Open(syms []Sym, files ...string) (path string, err error) {
	lib, file, err := openFirst(files)
	if err != nil {
		return "", err
	}
	found := make([]unsafe.Pointer, len(syms))
	var missing []error
	for i, s := range syms {
		found[i], err = lookup(lib, s.Name)
		if err != nil && !s.Optional {
			missing = append(missing, fmt.Errorf("%s lacks %s: %w", file, s.Name, err))
		}
		if err == nil && path == "" {
			path = fileOf(found[i])
		}
	}
	if len(missing) > 0 {
		return "", errors.Join(missing...)
	}
	for i, s := range syms {
		*s.Slot = found[i]
	}
	if path == "" { // the loader does not say, or no symbol was found
		path = file
	}
	return path, nil
}

func openFirst(files []string) (lib unsafe.Pointer, file string, err error) {
	if len(files) == 0 {
		return nil, "", errors.New("dl: no file to open")
	}
	var reasons []error
	for _, file = range files {
		name := C.CString(file)
		var reason *C.char
		lib = C.open_library(name, &reason)
		C.free(unsafe.Pointer(name))
		if lib != nil {
			return lib, file, nil
		}
		reasons = append(reasons, take(reason))
	}
	return nil, "", errors.Join(reasons...)
}

func lookup(lib unsafe.Pointer, symbol string) (unsafe.Pointer, error) {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	var reason *C.char
	f := C.find_symbol(lib, name, &reason)
	if f == nil {
		return nil, take(reason)
	}
	return f, nil
}

// fileOf returns the path of the file that holds symbol f, or "" if the loader cannot say.
func fileOf(f unsafe.Pointer) string {
	p := C.file_of(f)
	if p == nil {
		return ""
	}
	defer C.free(unsafe.Pointer(p))
	return C.GoString(p)
}

// take turns a message allocated in C into an error and frees it.
func take(msg *C.char) error {
	defer C.free(unsafe.Pointer(msg))
	return errors.New(C.GoString(msg))
}
