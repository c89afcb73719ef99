// Command verdict prints what a run of .ci/run or .ci/test found, in at most 40 lines: each stage
// with its seconds and result, each failed test with its first error, the tests that passed only at
// the second try (FLAKY), the ten slowest, and how many passed and failed. It exits with 1 if
// anything failed.
//
//	go run ./test/verdict DIR
//
// DIR holds the file stages (a line for each: name, seconds, passed or FAILED) and, in files named
// *.json, the events of go test -json, as gotestsum writes them.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	failuresShown = 12
	flakyShown    = 5
	slowestShown  = 10
	lineLength    = 180 // bytes
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: verdict DIR")
		os.Exit(2)
	}
	failed, err := report(os.Args[1], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "verdict:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

// report reads DIR, prints the verdict and reports whether anything failed.
func report(dir string, out io.Writer) (failed bool, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return false, err
	}
	var all results
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return false, err
		}
		err = all.read(f)
		_ = f.Close()
		if err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
	}
	stages, err := os.ReadFile(filepath.Join(dir, "stages"))
	if err != nil {
		return false, err
	}
	fmt.Fprintln(out, "\n== verdict")
	lines := bufio.NewScanner(strings.NewReader(string(stages)))
	for lines.Scan() {
		var name, result string
		var seconds int
		if _, err := fmt.Sscan(lines.Text(), &name, &seconds, &result); err != nil {
			return false, fmt.Errorf("stages: %q: %w", lines.Text(), err)
		}
		failed = failed || result != "passed"
		fmt.Fprintf(out, "%-10s %5d s  %s\n", name, seconds, result)
	}
	all.print(out)
	return failed || len(all.failures()) > 0, nil
}

// print prints all but the stages.
func (r *results) print(out io.Writer) {
	failures := r.failures()
	for i, t := range failures {
		if i == failuresShown {
			fmt.Fprintf(out, "FAILED     and %d more\n", len(failures)-i)
			break
		}
		fmt.Fprintln(out, shorten(fmt.Sprintf("FAILED     %s %s: %s", shortPackage(t.pkg), t.name, t.firstError())))
	}
	var flaky, slowest []*test
	var passed, skipped int
	for _, t := range r.tests {
		switch {
		case t.result == "pass" && t.failedBefore:
			flaky = append(flaky, t)
			passed++
		case t.result == "pass":
			passed++
		case t.result == "skip":
			skipped++
		}
		if t.name != wholePackage {
			slowest = append(slowest, t)
		}
	}
	for i, t := range flaky {
		if i == flakyShown {
			fmt.Fprintf(out, "FLAKY      and %d more\n", len(flaky)-i)
			break
		}
		fmt.Fprintln(out, shorten(fmt.Sprintf("FLAKY      %s %s: %s", shortPackage(t.pkg), t.name, t.firstError())))
	}
	slices.SortStableFunc(slowest, func(a, b *test) int { return int(b.seconds*1000) - int(a.seconds*1000) })
	for _, t := range slowest[:min(slowestShown, len(slowest))] {
		fmt.Fprintln(out, shorten(fmt.Sprintf("slow       %5.0f s  %s %s", t.seconds, shortPackage(t.pkg), t.name)))
	}
	fmt.Fprintf(out, "%d passed, %d failed", passed, len(failures))
	if skipped > 0 {
		fmt.Fprintf(out, ", %d skipped", skipped)
	}
	fmt.Fprintln(out)
}

func shortPackage(path string) string { return strings.TrimPrefix(path, "github.com/aviaryhq/aviary/") }

func shorten(line string) string {
	if len(line) > lineLength {
		return strings.ToValidUTF8(line[:lineLength], "") + "…"
	}
	return line
}
