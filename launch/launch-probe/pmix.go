package main

// The binding of PMIx, the launcher's own channel. MPI_Init exchanges addresses over it before
// MPI's first message. Others can read what a rank posts there although MPI reaches nobody.

/*
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { GLOBAL = 3, STRING = 3 }; // of pmix_scope_t and pmix_data_type_t

struct proc { char nspace[256]; uint32_t rank; };
struct value { uint16_t type; union { const char *string; char room[48]; } data; };

static struct {
	int (*init)(struct proc *, const void *, size_t);
	int (*put)(uint8_t, const char *, struct value *);
	int (*commit)(void);
	int (*get)(const struct proc *, const char *, const void *, size_t, struct value **);
	int (*finalize)(const void *, size_t);
} pmix;

static struct proc self;

static int pmix_open(void **f) {
	memcpy(&pmix, f, sizeof pmix);
	return pmix.init(&self, NULL, 0);
}
static int pmix_close(void) { return pmix.finalize(NULL, 0); }

static int pmix_post(const char *key, const char *text) {
	struct value v = {.type = STRING, .data.string = text};
	int status = pmix.put(GLOBAL, key, &v);
	return status != 0 ? status : pmix.commit();
}

static int pmix_read(uint32_t rank, const char *key, const char **text) {
	struct proc p = self;
	struct value *v = NULL;
	p.rank = rank;
	int status = pmix.get(&p, key, NULL, 0, &v);
	if (status != 0) return status;
	if (v == NULL || v->type != STRING) return -1;
	*text = v->data.string;
	return 0;
}
*/
import "C"

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"lockstep/internal/dl"
)

const boardKey = "lockstep.doctor"

// openBoard joins PMIx once more, in the library that MPI has loaded: with another one the launcher
// would take this process for a second rank. It is called after MPI_Init. Source: pmix.h,
// PMIx_Init.
func openBoard() error {
	path := mapped("libpmix.so")
	if path == "" {
		return errors.New("MPI uses no PMIx")
	}
	var f [5]unsafe.Pointer // in the order of struct pmix
	if _, err := dl.Open([]dl.Sym{
		{Name: "PMIx_Init", Slot: &f[0]}, {Name: "PMIx_Put", Slot: &f[1]}, {Name: "PMIx_Commit", Slot: &f[2]},
		{Name: "PMIx_Get", Slot: &f[3]}, {Name: "PMIx_Finalize", Slot: &f[4]},
	}, path); err != nil {
		return err
	}
	return pmixError("PMIx_Init", C.pmix_open(&f[0]))
}

// closeBoard leaves PMIx to MPI again. Source: pmix.h, PMIx_Finalize.
func closeBoard() error { return pmixError("PMIx_Finalize", C.pmix_close()) }

// post shows text to all ranks. Source: pmix.h, PMIx_Put, PMIx_Commit.
func post(text string) error {
	key, s := C.CString(boardKey), C.CString(text)
	defer C.free(unsafe.Pointer(key))
	defer C.free(unsafe.Pointer(s))
	return pmixError("PMIx_Put", C.pmix_post(key, s))
}

// read returns the text that a rank has posted. It blocks until the rank has. Source: pmix.h,
// PMIx_Get.
func read(rank int) (string, error) {
	key := C.CString(boardKey)
	defer C.free(unsafe.Pointer(key))
	var text *C.char
	if err := pmixError("PMIx_Get", C.pmix_read(C.uint32_t(rank), key, &text)); err != nil {
		return "", err
	}
	return C.GoString(text), nil // PMIx's memory, for the few seconds that are left
}

func pmixError(op string, status C.int) error {
	if status == 0 {
		return nil
	}
	return fmt.Errorf("%s: status %d", op, status)
}

// mapped returns the path of a library that this process has loaded, "" if it has not.
func mapped(name string) string {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return ""
	}
	defer maps.Close()
	for s := bufio.NewScanner(maps); s.Scan(); {
		if i := strings.IndexByte(s.Text(), '/'); i >= 0 && strings.Contains(s.Text()[i:], "/"+name) {
			return s.Text()[i:]
		}
	}
	return ""
}
