package plan

import (
	"cmp"
	"context"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// launcherHere is a launcher and its installed version.
type launcherHere struct {
	name    string // openmpi4, openmpi5, mpich, slurm
	command string
	version string // "" if it is not installed
}

// askTime is how long a launcher may take to say its version.
const askTime = 10 * time.Second

func found(command string) bool {
	_, err := exec.LookPath(command)
	return err == nil
}

// ask returns what a command prints, or "" if it fails.
func ask(words ...string) string {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return ""
	}
	return string(out)
}

// findMPI looks for the MPI launcher name, or for any mpirun, also under its own names: Debian
// installs several MPI side by side.
func findMPI(name string) (launcherHere, bool) {
	commands := []string{"mpirun", "mpiexec"}
	switch name {
	case "mpich":
		commands = append(commands, "mpirun.mpich", "mpiexec.hydra")
	case "openmpi4", "openmpi5":
		commands = append(commands, "mpirun.openmpi")
	}
	for _, c := range commands {
		if !found(c) {
			continue
		}
		kind, version := launcherOf(ask(c, "--version"))
		if kind != "" && (name == "" || kind == name) {
			return launcherHere{kind, c, version}, true
		}
	}
	return launcherHere{}, false
}

var (
	openMPIVersion = regexp.MustCompile(`\((?:OpenRTE|Open MPI)\) (([0-9]+)\.[0-9][0-9.a-z]*)`)
	hydraVersion   = regexp.MustCompile(`(?m)^\s*Version:\s+(\S+)`)
)

// launcherOf reads the output of mpirun --version. The name is "" for an unknown launcher.
func launcherOf(text string) (name, version string) {
	if m := openMPIVersion.FindStringSubmatch(text); m != nil {
		switch m[2] {
		case "1", "2", "3", "4":
			return "openmpi4", "Open MPI " + m[1]
		default:
			return "openmpi5", "Open MPI " + m[1]
		}
	}
	if strings.Contains(text, "HYDRA") {
		version := ""
		if m := hydraVersion.FindStringSubmatch(text); m != nil {
			version = " " + m[1]
		}
		return "mpich", "MPICH's Hydra" + version
	}
	return "", ""
}

// find returns the launcher of a name: the installed one, or one with the command that it would
// have.
func find(name string) launcherHere {
	if name == "slurm" {
		w := launcherHere{name: name, command: "srun"}
		if found("srun") {
			w.version = cmp.Or(strings.TrimSpace(ask("srun", "--version")), "Slurm")
		}
		return w
	}
	if w, ok := findMPI(name); ok {
		return w
	}
	return launcherHere{name: name, command: "mpirun"}
}
