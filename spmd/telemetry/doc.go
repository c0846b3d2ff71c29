// Package telemetry has what a program tells of its run: how long steps take on all ranks, how far
// long work is, and a folder that keeps how the run was started and what it measured.
//
// Measure, MeasureStream and MeasureAwait time steps. The slowest rank sets the time of a
// repetition.
//
// A Work tells a person how far long work is. At a terminal it keeps a line up to date below the
// log, also through mpirun and launch run. Elsewhere it logs a line every half minute.
//
//	p := telemetry.StartWork(w, "relaxing", steps, "steps")
//	defer p.Done()
//	for range steps {
//		...
//		p.Add(1)
//		p.Note("residual %.2e", residual)
//	}
//
// shows
//
//	relaxing  42 %  4200/10000 steps  830 steps/s  7s left  residual 3.10e-05
//
// The line ends with "rank 2 slowest" if the other ranks have clearly waited for that rank lately.
// Ranks tell rank 0 of their waiting beside their signs of life, which costs the program nothing.
// Waiting in graphs is not seen, and no waiting with --summary off.
//
// A Folder keeps a record of a run:
//
//	dir := telemetry.FolderFlag(fs) // --run-dir
//	...
//	f, err := telemetry.OpenFolder(w, telemetry.FolderConfig{Dir: *dir})
//	if err != nil {
//		return err
//	}
//	defer func() { err = errors.Join(err, f.Close()) }()
//	... w.Emit(measured) ...
//
// It holds:
//
//   - starts.jsonl: a line for each start: command, flags, versions, commit, hosts
//   - log.jsonl: each value that the program gives to World.Emit from then on, as a line of JSON
//   - the program's own files, such as checkpoints
//
// Only rank 0 writes, and it overwrites nothing. `launch plot` draws a picture of one run or of
// several.
package telemetry
