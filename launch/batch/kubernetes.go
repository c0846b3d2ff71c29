package batch

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// HostsOfPods is where the operator puts the hosts of a job, in each of its pods.
const HostsOfPods = "/etc/mpi/hostfile"

// notInName are letters that a name in Kubernetes cannot have.
var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// podName returns a name as Kubernetes takes it, and has room for what the operator appends to it.
func podName(name string) string {
	name = strings.TrimLeft(notInName.ReplaceAllString(strings.ToLower(name), "-"), "-0123456789")
	name = strings.TrimRight(name[:min(len(name), 40)], "-")
	return cmp.Or(name, "job")
}

// Kubernetes returns a file for kubectl apply -f: a job of Kubeflow's MPI operator. A pod stands
// for a node. Source: kubeflow/mpi-operator v0.8, the schema of MPIJob v2beta1.
func Kubernetes(j Job) string {
	var b strings.Builder
	line := func(depth int, text, why string) {
		text = strings.Repeat("  ", depth) + text
		if why != "" {
			text = fmt.Sprintf("%-44s # %s", text, why)
		}
		b.WriteString(text + "\n")
	}
	line(0, "apiVersion: kubeflow.org/v2beta1", "")
	line(0, "kind: MPIJob", "")
	line(0, "metadata:", "")
	line(1, "name: "+podName(j.Name), "another name for each run, or kubectl delete mpijob first")
	if j.Partition != "" {
		line(1, "labels:", "")
		line(2, "kueue.x-k8s.io/queue-name: "+scalar(j.Partition), "the queue of Kueue that was asked for")
	}
	line(0, "spec:", "")
	line(1, fmt.Sprintf("slotsPerWorker: %d", j.PerNode), "ranks in each pod")
	line(1, "launcherCreationPolicy: WaitForWorkersReady", "mpirun starts once all pods are there")
	implementation := "OpenMPI"
	if j.MPI == "mpich" {
		implementation = "MPICH"
	}
	line(1, "mpiImplementation: "+implementation, "of the image, and of the program")
	line(1, "runPolicy:", "")
	line(2, "cleanPodPolicy: Running", "at the end no pod holds cores or GPUs")
	tries := 0
	if j.Saves != "" {
		tries = 3
	}
	line(2, fmt.Sprintf("backoffLimit: %d", tries), j.again("started again as often"))
	if j.Limit > 0 {
		line(2, fmt.Sprintf("activeDeadlineSeconds: %d", int(j.Limit.Seconds())), "the job is ended then")
	}
	line(1, "mpiReplicaSpecs:", "")
	pod := func(role string, replicas int, why string) {
		line(2, role+":", "")
		line(3, fmt.Sprintf("replicas: %d", replicas), why)
		line(3, "template:", "")
		line(4, "spec:", "")
	}
	pod("Launcher", 1, "mpirun, without ranks of its own")
	line(5, "containers:", "")
	line(5, "- name: launcher", "")
	line(6, "image: "+scalar(j.Image), "the program, an MPI, and an ssh client")
	line(6, "command:", "")
	for _, word := range j.Words {
		line(6, "- "+scalar(word), "")
	}
	pod("Worker", j.Nodes, j.Why)
	line(5, "containers:", "")
	line(5, "- name: worker", "")
	line(6, "image: "+scalar(j.Image), "the same, and sshd, which the operator starts")
	line(6, "resources:", "")
	if j.CPUs == 0 {
		line(7, "requests:", "")
		line(8, fmt.Sprintf("cpu: %d", j.PerNode), "a core for each rank at least; --cpus-per-task says how many")
	}
	if j.GPUs+j.CPUs > 0 {
		line(7, "limits:", "")
	}
	if j.GPUs > 0 {
		line(8, fmt.Sprintf("nvidia.com/gpu: %d", j.GPUs), "all of them visible to each rank of the pod")
	}
	if j.CPUs > 0 {
		line(8, fmt.Sprintf("cpu: %d", j.PerNode*j.CPUs), "cores for the threads of the ranks")
	}
	line(6, "volumeMounts:", "")
	line(6, "- name: shared", "")
	line(7, "mountPath: /dev/shm", "MPI, and NCCL on GPUs, want more than the 64 MB of a pod")
	line(5, "volumes:", "")
	line(5, "- name: shared", "")
	line(6, "emptyDir:", "")
	line(7, "medium: Memory", "")
	return b.String()
}

// scalar returns a text as YAML has it, in quotes: JSON's are YAML's.
func scalar(text string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(text); err != nil {
		panic(err) // a string has a form in JSON
	}
	return strings.TrimSuffix(b.String(), "\n")
}
