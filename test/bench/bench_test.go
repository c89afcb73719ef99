package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/results"
	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestMain lets the test binary be the runner: load.Run starts it as a child process, and the tests
// below as the program.
func TestMain(m *testing.M) {
	if os.Getenv("BENCH_TEST_MAIN") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestScenarios reads every scenario file.
func TestScenarios(t *testing.T) {
	for _, name := range names() {
		if _, ok := services()[name]; ok {
			continue
		}
		o := options{scenario: name}
		s, err := o.read()
		if err != nil {
			t.Error(err)
			continue
		}
		for _, p := range s.Parts {
			for _, side := range p.Sides {
				if side.Driver != fioDriver && !slices.Contains(load.Drivers(), side.Driver) {
					t.Errorf("%s: part %s: driver %q", name, p.Name, side.Driver)
				}
			}
		}
	}
}

// TestWorkloads runs small workloads on a broker, as the command line does.
func TestWorkloads(t *testing.T) {
	server := stack.Pulsar(t)
	for _, name := range []string{"paced", "backlog"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), os.Args[0],
				"-workload", filepath.Join("testdata", name+".yaml"), "-rounds", "1", "-out", dir,
				"-pulsar.url", server.URL(), "-pulsar.admin_url", server.AdminURL(), "-namespace", server.Namespace(t))
			cmd.Env = append(os.Environ(), "BENCH_TEST_MAIN=1")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			stdout, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, stderr.String())
			}
			lines := strings.Split(strings.TrimSpace(string(stdout)), "\n")
			var last measure.Result
			err = json.Unmarshal([]byte(lines[len(lines)-1]), &last)
			if err != nil || last.Scenario != name || len(last.Figures) == 0 || last.Targets == nil {
				t.Errorf("the last line is %s: %v", lines[len(lines)-1], err)
			}
			check(t, name, dir)
			page, err := os.ReadFile(filepath.Join(dir, name+".html"))
			if err != nil || !bytes.Contains(page, []byte("publish_p99_ms")) {
				t.Errorf("a page of %d bytes, error %v", len(page), err)
			}
		})
	}
}

// check checks the JSON results of a workload.
func check(t *testing.T, name, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var got results.Results
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	w, err := workload.Read(filepath.Join("testdata", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	least := float64(w.ProducerRate) * (w.Duration() + w.Warmup()).Seconds() * 0.98
	if w.ConsumerBacklogSizeGB > 0 {
		least = w.ConsumerBacklogSizeGB * 1e9 / float64(w.MessageSize) * 0.99
	}
	if len(got.Parts) != 1 || len(got.Parts[0].Sides) != 2 {
		t.Fatalf("%d parts", len(got.Parts))
	}
	for _, side := range got.Parts[0].Sides {
		if len(side.Turns) != 1 {
			t.Fatalf("%s: %d turns", side.Name, len(side.Turns))
		}
		f := side.Turns[0].Figures
		for _, figure := range []string{"lost", "lost_at_broker", "failed"} {
			if v, ok := f[figure]; v != 0 || !ok {
				t.Errorf("%s: %s is %v, given: %v", side.Name, figure, v, ok)
			}
		}
		if f["acknowledged"]+f["unsent"] < least {
			t.Errorf("%s: %g messages were acknowledged, at least %g should be", side.Name, f["acknowledged"], least)
		}
		if f["publish_p99_ms"] <= 0 || f["e2e_p99_ms"] <= 0 || side.Percentiles["e2e"] == nil || len(side.Turns[0].Samples) == 0 {
			t.Errorf("%s: latencies or samples are missing: %v", side.Name, f)
		}
		if _, ok := f["drain_s"]; ok != (w.ConsumerBacklogSizeGB > 0) {
			t.Errorf("%s: drain_s is given: %v", side.Name, ok)
		}
	}
}
