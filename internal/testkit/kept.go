package testkit

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// keptFor is how long a library is kept that no test has asked for.
const keptFor = 5 * 24 * time.Hour

// keptEnv names the folder of kept libraries; "off" keeps none. By default it is in the user's
// folder for caches.
const keptEnv = "LOCKSTEP_TESTKIT_KEPT"

// A dozen packages build the same doubles, in many tests. So libraries are kept, as a compiler
// cache does: by the compiler, its flags, and the preprocessor's output, wherever the sources are.
// A second clone compiles nothing that the first has. A debugger may be told of another folder.

// keptFile returns the file in which the library of a command is kept, or "" if it is not kept. cc
// are the compiler and its flags, args the sources and flags of the caller.
func keptFile(cc, args []string) string {
	dir := os.Getenv(keptEnv)
	if dir == "" {
		caches, err := os.UserCacheDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(caches, "lockstep", "doubles")
	}
	if dir == "off" || os.MkdirAll(dir, 0o777) != nil {
		return ""
	}
	key := sha256.New()
	path, err := exec.LookPath(cc[0])
	if err != nil {
		return ""
	}
	compiler, err := os.Stat(path)
	if err != nil {
		return ""
	}
	fmt.Fprintf(key, "%q %q %d %d\n", cc, path, compiler.Size(), compiler.ModTime().UnixNano())
	sources := 0
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") {
			if !strings.HasPrefix(arg, "-I") { // what that includes is in the text
				fmt.Fprintf(key, "%q ", arg)
			}
			continue
		}
		fmt.Fprintf(key, "%q ", filepath.Base(arg))
		if ext := filepath.Ext(arg); ext != ".c" && ext != ".cc" {
			return "" // what it is made of is not known here
		}
		sources++
	}
	text, err := exec.Command(cc[0], append(append(cc[1:len(cc):len(cc)], "-E", "-P"), args...)...).Output()
	if err != nil || sources == 0 {
		return "" // the compiler will say why
	}
	key.Write(text)
	return filepath.Join(dir, fmt.Sprintf("%x.so", key.Sum(nil)[:16]))
}

// fetch copies a kept file to path, and says whether there was one.
func fetch(kept, path string) bool {
	if kept == "" {
		return false
	}
	b, err := os.ReadFile(kept)
	if err != nil || !whole(b) || os.WriteFile(path, b[:len(b)-sha256.Size], 0o777) != nil {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(kept, now, now) // or it is built again in some days
	return true
}

// keep keeps the library at path, if it can, and removes those that nobody has asked for
// in a long time.
func keep(kept, path string) {
	if kept == "" {
		return
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	sum := sha256.Sum256(b)
	f, err := os.CreateTemp(filepath.Dir(kept), "new")
	if err != nil {
		return
	}
	_, err = io.Copy(f, io.MultiReader(bytes.NewReader(b), bytes.NewReader(sum[:])))
	if f.Close() != nil || err != nil || os.Rename(f.Name(), kept) != nil {
		_ = os.Remove(f.Name())
	}
	others, _ := os.ReadDir(filepath.Dir(kept))
	for _, o := range others {
		if info, err := o.Info(); err == nil && time.Since(info.ModTime()) > keptFor {
			_ = os.Remove(filepath.Join(filepath.Dir(kept), o.Name()))
		}
	}
}

// whole reports whether a file ends with the checksum of the bytes before. A machine that went down
// may have left a part of it.
func whole(b []byte) bool {
	n := len(b) - sha256.Size
	if n <= 0 {
		return false
	}
	sum := sha256.Sum256(b[:n])
	return bytes.Equal(sum[:], b[n:])
}
