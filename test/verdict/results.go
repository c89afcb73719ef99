package main

import (
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
)

// An event is a line of go test -json; see the documentation of cmd/test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64 // seconds
}

// A test is a test function with its subtests. The name (package) stands for a package that failed
// without a failed test: it did not build, left goroutines behind, or ended early.
type test struct {
	pkg, name    string
	result       string // pass, fail or skip, of the last try; "" if it did not end
	failedBefore bool   // in a try before the last one
	seconds      float64
	output       []string // of the current try
	failedOutput []string // of the last try that failed
}

// results are the tests of a run, in the order in which they began. The zero value is ready.
type results struct {
	tests    []*test
	byName   map[[2]string]*test
	running  map[string]*packageRun
	building map[string][]string // what the compiler said, by import path
}

// A packageRun is one process of a package's tests.
type packageRun struct {
	failedTests int
	unended     int // tests that have begun and not ended
	output      []string
}

const wholePackage = "(package)"

func (r *results) read(in io.Reader) error {
	r.running = make(map[string]*packageRun)
	if r.byName == nil {
		r.byName, r.building = make(map[[2]string]*test), make(map[string][]string)
	}
	for events := json.NewDecoder(in); ; {
		var e event
		if err := events.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		r.take(e)
	}
	for pkg, run := range r.running { // go test itself ended before its packages
		r.packageFailed(pkg, run)
	}
	return nil
}

func (r *results) take(e event) {
	switch {
	case e.Package == "":
		if e.Action == "build-output" {
			path, _, _ := strings.Cut(e.ImportPath, " ") // a package built for tests is "path [path.test]"
			r.building[path] = append(r.building[path], e.Output)
		}
	case e.Test == "":
		r.takePackage(e)
	default:
		r.takeTest(e)
	}
}

func (r *results) takePackage(e event) {
	run := r.run(e.Package)
	switch e.Action {
	case "output":
		run.output = append(run.output, e.Output)
	case "fail":
		if run.failedTests == 0 || run.unended > 0 { // or the process died: other tests never began
			r.packageFailed(e.Package, run)
		}
		delete(r.running, e.Package)
	case "pass", "skip":
		delete(r.running, e.Package)
	}
}

func (r *results) packageFailed(pkg string, run *packageRun) {
	t := r.test(pkg, wholePackage)
	t.result, t.failedOutput = "fail", append(r.building[pkg], run.output...)
}

func (r *results) takeTest(e event) {
	name, _, sub := strings.Cut(e.Test, "/")
	t := r.test(e.Package, name)
	run := r.run(e.Package)
	switch e.Action {
	case "run":
		if !sub {
			run.unended++
			t.failedBefore = t.failedBefore || t.result == "fail"
			t.result, t.output = "", nil
		}
	case "output":
		t.output = append(t.output, e.Output)
	case "pass", "fail", "skip":
		if sub {
			return
		}
		t.result, t.seconds = e.Action, max(t.seconds, e.Elapsed)
		if e.Action == "fail" {
			t.failedOutput = t.output
			run.failedTests++
		}
		run.unended--
		t.output = nil
	}
}

func (r *results) run(pkg string) *packageRun {
	run := r.running[pkg]
	if run == nil {
		run = &packageRun{}
		r.running[pkg] = run
	}
	return run
}

func (r *results) test(pkg, name string) *test {
	key := [2]string{pkg, name}
	t := r.byName[key]
	if t == nil {
		t = &test{pkg: pkg, name: name}
		r.byName[key] = t
		r.tests = append(r.tests, t)
	}
	return t
}

// failures returns the tests that failed at their last try, and those that never ended.
func (r *results) failures() []*test {
	var failed []*test
	for _, t := range r.tests {
		if t.result == "fail" || t.result == "" {
			failed = append(failed, t)
		}
	}
	return failed
}

// firstError returns the line that says best why a test failed.
func (t *test) firstError() string {
	lines := t.failedOutput
	if lines == nil {
		lines = t.output
	}
	is := func(mark string) func(string) bool {
		return func(line string) bool {
			return strings.Contains(line, mark) && !strings.Contains(line, "logger.go:") && !strings.Contains(line, "Error Trace:")
		}
	}
	for _, mark := range []string{"panic: ", "fatal error: ", "WARNING: DATA RACE", "found unexpected goroutines", "Error:"} {
		if i := slices.IndexFunc(lines, is(mark)); i >= 0 {
			end := i + 1
			if strings.HasSuffix(strings.TrimSpace(lines[i]), ":") { // the text is on the next line
				end++
			}
			if strings.Contains(lines[i], "DATA RACE") { // and where it was
				end += 2
			}
			return oneLine(lines[i:min(end, len(lines))])
		}
	}
	for _, line := range slices.Backward(lines) { // t.Fatal writes after t.Log
		if is(".go:")(line) {
			return oneLine([]string{line})
		}
	}
	for _, line := range lines {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "===") {
			return line
		}
	}
	return "no output"
}

func oneLine(lines []string) string {
	return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
}
