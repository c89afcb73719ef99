package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/systems/owned"
)

// Turn is what one process does.
type Turn struct {
	Workload workload.Workload `json:"workload"`
	Side     workload.Side     `json:"side"`
	// URL, AdminURL and Listener, if set, take the place of those of the configuration.
	URL      string `json:"url"`
	AdminURL string `json:"admin_url"`
	Listener string `json:"listener"`
	// RemoteURL, if set, is the cluster to which messages are replicated: consumers receive from it.
	RemoteURL string `json:"remote_url"`
	// Topics exist. Subscriptions are made on each of them before the turn.
	Topics        []string `json:"topics"`
	Subscriptions []string `json:"subscriptions"`
	// Messages ends the turn early; 0 does not.
	Messages int `json:"messages"`
	// Stored messages of each topic are received, and none are published.
	Stored  int    `json:"stored"`
	Profile string `json:"profile"` // prefix of the names of CPU and allocation profiles; may be empty
}

// Sample is what happened in one second.
type Sample struct {
	At     float64            `json:"at"`    // seconds since the measured part began
	Phase  string             `json:"phase"` // warm-up, load; with a backlog build and drain
	Values map[string]float64 `json:"values"`
}

// Result is what a turn measured. The names of figures and series end in their units.
type Result struct {
	Figures map[string]float64 `json:"figures"`
	Samples []Sample           `json:"samples"`
	// Histograms of latencies in microseconds, by name, in HdrHistogram's compressed form.
	Histograms map[string]string `json:"histograms"`
}

// line is one line of a child's output.
type line struct {
	Sample *Sample `json:"sample,omitempty"`
	Result *Result `json:"result,omitempty"`
}

// graceTimeout is how long a turn may take beyond its own duration, besides draining a backlog.
const graceTimeout = 3 * time.Minute

// Run runs the turn as a child process, this program with -turn and args, which name the cluster.
// progress gets each sample as it comes.
func Run(ctx context.Context, t Turn, args []string, progress func(Sample)) (*Result, error) {
	spec, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	limit := t.Workload.Warmup() + t.Workload.Duration() + graceTimeout
	if t.Workload.ConsumerBacklogSizeGB > 0 {
		limit += drainTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, append([]string{"-turn"}, args...)...)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(spec), os.Stderr
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	cmd.Stdout = out
	child, err := owned.Start(cmd, nil)
	_ = out.Close() // the child has its own
	if err != nil {
		return nil, err
	}
	result, err := read(in, progress)
	if err != nil {
		_ = child.Kill() // it cannot write any more, or what it writes is of no use
	}
	if err = errors.Join(err, child.Wait(), ctx.Err()); err != nil {
		return nil, err
	}
	result.Figures["peak_mib"] = float64(cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss) / 1024
	return result, nil
}

// read reads the output of a child to its end.
func read(in io.Reader, progress func(Sample)) (*Result, error) {
	var result *Result
	var samples []Sample
	for d := json.NewDecoder(in); ; {
		var l line
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF) && result != nil:
			result.Samples = samples
			return result, nil
		case errors.Is(err, io.EOF):
			return nil, errors.New("the process ended without a result")
		case err != nil:
			return nil, fmt.Errorf("output of the process: %w", err)
		}
		if l.Sample != nil {
			samples = append(samples, *l.Sample)
			progress(*l.Sample)
		}
		if l.Result != nil {
			result = l.Result
		}
	}
}
