package batch

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// leaf is a value in a file, and the way to it, such as spec.runPolicy.backoffLimit, or command[1].
type leaf struct{ path, value string }

// leaves reads the part of YAML that Kubernetes writes: block mappings, block lists that stand as
// deep as the key that they belong to, and scalars that are plain or as in JSON.
func leaves(t *testing.T, text string) (all []leaf) {
	t.Helper()
	type level struct {
		depth int
		path  string
	}
	above := []level{{-1, ""}}
	counts := map[string]int{}
	for line := range strings.Lines(text) {
		body := strings.TrimLeft(line, " ")
		depth := len(line) - len(body)
		body = strings.TrimSuffix(body, "\n")
		if i := strings.LastIndex(body, " # "); i >= 0 && !strings.HasSuffix(body, `"`) {
			body = strings.TrimRight(body[:i], " ")
		}
		item, isItem := strings.CutPrefix(body, "- ")
		for above[len(above)-1].depth > depth || above[len(above)-1].depth == depth && !isItem {
			above = above[:len(above)-1]
		}
		path := above[len(above)-1].path
		if isItem {
			path = strings.TrimSuffix(path, ".")
			path, counts[path] = fmt.Sprintf("%s[%d]", path, counts[path]), counts[path]+1
			body, depth = item, depth+2
			if strings.HasPrefix(body, `"`) {
				all = append(all, leaf{path, scalarOf(t, body)})
				continue
			}
			above = append(above, level{depth - 1, path + "."})
			path += "."
		}
		key, value, ok := strings.Cut(body, ":")
		if !ok {
			t.Fatalf("%q is no line of the kind that is read here", line)
		}
		if value = strings.TrimSpace(value); value != "" {
			all = append(all, leaf{path + key, scalarOf(t, value)})
			continue
		}
		above = append(above, level{depth, path + key + "."})
	}
	return all
}

func scalarOf(t *testing.T, text string) string {
	t.Helper()
	if !strings.HasPrefix(text, `"`) {
		return text
	}
	var s string
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}

// Fields of the schema of MPIJob v2beta1, with what they take: a number, a text, or one of these
// words.
var fields = map[string]string{
	"apiVersion":                             "kubeflow.org/v2beta1",
	"kind":                                   "MPIJob",
	"metadata.name":                          "text",
	"metadata.labels":                        "text",
	"spec.slotsPerWorker":                    "number",
	"spec.launcherCreationPolicy":            "AtStartup WaitForWorkersReady",
	"spec.mpiImplementation":                 "OpenMPI Intel MPICH",
	"spec.runPolicy.cleanPodPolicy":          "None Running All",
	"spec.runPolicy.backoffLimit":            "number",
	"spec.runPolicy.activeDeadlineSeconds":   "number",
	"spec.mpiReplicaSpecs.Launcher.replicas": "1",
	"spec.mpiReplicaSpecs.Worker.replicas":   "number",
}

// Fields of a pod, below the template's spec.
var podFields = map[string]string{
	"containers[0].name":                            "text",
	"containers[0].image":                           "text",
	"containers[0].command":                         "text",
	"containers[0].resources.requests.cpu":          "number",
	"containers[0].resources.limits.cpu":            "number",
	"containers[0].resources.limits.nvidia.com/gpu": "number",
	"containers[0].volumeMounts[0].name":            "text",
	"containers[0].volumeMounts[0].mountPath":       "text",
	"volumes[0].name":                               "text",
	"volumes[0].emptyDir.medium":                    "Memory",
}

// Every field is one of the schema and takes what it is given, and those that must be there are. No
// cluster is asked.
func TestKubernetes(t *testing.T) {
	j := Job{Name: "Train_x.1", Why: "16 ranks: 8 on each of 2 nodes", Nodes: 2, Ranks: 16, PerNode: 8,
		Image: "me/train:1",
		Words: []string{"mpirun", "-np", "16", "prog", `a "b" # c`, "é\n- x: y"}}
	full := j
	full.GPUs, full.CPUs, full.Limit, full.Partition, full.MPI = 8, 4, 48*time.Hour, "team", "mpich"
	full.Saves = "--checkpoint"
	for _, j := range []Job{j, full} {
		text := Kubernetes(j)
		values := map[string]string{}
		var command []string
		for _, l := range leaves(t, text) {
			values[l.path] = l.value
			want, known := fields[l.path]
			for _, role := range []string{"Launcher", "Worker"} {
				if inPod, ok := strings.CutPrefix(l.path, "spec.mpiReplicaSpecs."+role+".template.spec."); ok {
					if strings.HasPrefix(inPod, "containers[0].command[") {
						command = append(command, l.value)
						inPod = "containers[0].command"
					}
					want, known = podFields[inPod]
				}
			}
			if strings.HasPrefix(l.path, "metadata.labels.") {
				want, known = "text", true
			}
			takes := true
			switch want {
			case "number":
				_, err := strconv.ParseUint(l.value, 10, 31)
				takes = err == nil
			case "text":
			default:
				takes = slices.Contains(strings.Fields(want), l.value)
			}
			if !known || !takes {
				t.Errorf("%s: %q, want a field of the schema, and %q", l.path, l.value, want)
			}
		}
		if !slices.Equal(command, j.Words) {
			t.Errorf("mpirun starts %q, want %q", command, j.Words)
		}
		worker := "spec.mpiReplicaSpecs.Worker.template.spec."
		container := worker + "containers[0]."
		want := map[string]string{
			"metadata.name":                        "train-x-1",
			"spec.slotsPerWorker":                  "8",
			"spec.mpiImplementation":               "OpenMPI",
			"spec.mpiReplicaSpecs.Worker.replicas": "2",
			"spec.runPolicy.cleanPodPolicy":        "Running",
			container + "image":                    "me/train:1",
			"spec.runPolicy.backoffLimit":          "0",
			container + "resources.requests.cpu":   "8",
			worker + "volumes[0].name":             values[container+"volumeMounts[0].name"],
		}
		if j.GPUs > 0 {
			maps.Copy(want, map[string]string{
				"spec.mpiImplementation":                      "MPICH",
				"spec.runPolicy.backoffLimit":                 "3",
				container + "resources.requests.cpu":          "", // that is the limit
				"metadata.labels.kueue.x-k8s.io/queue-name":   "team",
				"spec.runPolicy.activeDeadlineSeconds":        "172800",
				container + "resources.limits.nvidia.com/gpu": "8",
				container + "resources.limits.cpu":            "32",
			})
		}
		for path, value := range want {
			if values[path] != value {
				t.Errorf("%s: %q, want %q\n%s", path, values[path], value, text)
			}
		}
	}
}

// A name has at most 63 letters with what the operator appends, and begins and ends as DNS wants
// it.
func TestPodName(t *testing.T) {
	for name, want := range map[string]string{
		"train": "train", "_Heat-2D": "heat-2d", "2d": "d", "é": "job", "'a b'": "a-b",
		strings.Repeat("ab-", 30): strings.Repeat("ab-", 13)[:38] + "-a",
	} {
		if got := podName(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
