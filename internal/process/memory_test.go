package process

import (
	"os"
	"path/filepath"
	"testing"

	"lockstep/internal/testkit"
)

// The kernel's files are read, with groups of either version that limit memory, or none.
func TestMemory(t *testing.T) {
	const meminfo = "MemTotal:       1000 kB\nMemFree:         300 kB\nMemAvailable:    600 kB\n"
	for _, c := range []struct {
		name        string
		files       map[string]string
		free, total int
	}{
		{"no groups", nil, 600 << 10, 1000 << 10},
		{"no limit", map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
			"sys/fs/cgroup/a/b/memory.current": "5\n"}, 600 << 10, 1000 << 10},
		{"a parent's limit", map[string]string{"proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/memory.max": "500000\n", "sys/fs/cgroup/a/memory.current": "300000\n",
			"sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 50000\n"}, 250000, 500000},
		{"a container that sees the machine's path",
			map[string]string{"proc/self/cgroup": "0::/docker/0123\n", "sys/fs/cgroup/memory.max": "500000\n",
				"sys/fs/cgroup/memory.current": "600000\n", "sys/fs/cgroup/memory.stat": "inactive_file 0\n"}, 0,
			500000},
		{"version 1", map[string]string{"proc/self/cgroup": "5:cpu:/x\n4:memory:/job\n",
			"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "800000\n",
			"sys/fs/cgroup/memory/job/memory.usage_in_bytes": "100000\n",
			"sys/fs/cgroup/memory/job/memory.stat":           "total_inactive_file 0\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":     "9223372036854771712\n",
			"sys/fs/cgroup/memory/memory.usage_in_bytes":     "1\n"}, 600 << 10, 800000},
	} {
		root := t.TempDir()
		put := func(name, text string) {
			path := filepath.Join(root, name)
			testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o777))
			testkit.Must(t, os.WriteFile(path, []byte(text), 0o666))
		}
		put("proc/meminfo", meminfo)
		for name, text := range c.files {
			put(name, text)
		}
		free, total, err := Memory(root)
		if err != nil || free != c.free || total != c.total {
			t.Errorf("%s: %d of %d, error %v; want %d of %d", c.name, free, total, err, c.free, c.total)
		}
	}
	free, total, err := Memory("/")
	if err != nil || free <= 0 || free > total {
		t.Errorf("this machine: %d of %d, error %v", free, total, err)
	}
}
