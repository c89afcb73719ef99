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
	"time"

	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/systems/owned"
)

// Turn is the task of one child process.
type Turn struct {
	Workload workload.Workload `json:"workload"`
	Side     workload.Side     `json:"side"`
	// URL, AdminURL and Listener, if set, replace those of the configuration.
	URL      string `json:"url"`
	AdminURL string `json:"admin_url"`
	Listener string `json:"listener"`
	// RemoteURL, if set, is the cluster to which messages are replicated. Consumers receive from it.
	RemoteURL string `json:"remote_url"`
	// Topics and Subscriptions exist before the turn. Each topic has each subscription.
	Topics        []string `json:"topics"`
	Subscriptions []string `json:"subscriptions"`
	// Messages is the maximum number of messages; 0: only the duration ends the turn.
	Messages int `json:"messages"`
	// Stored, if above 0, is the number of messages in each topic: the turn receives them and
	// publishes nothing.
	Stored  int    `json:"stored"`
	Profile string `json:"profile"` // prefix of the names of CPU and allocation profiles; may be empty
}

// Sample has the values of one second.
type Sample struct {
	At     float64            `json:"at"`    // seconds since the turn began, warm-up included
	Phase  string             `json:"phase"` // warmup, then load; with a backlog warmup, build, drain
	Values map[string]float64 `json:"values"`
}

// Result is what a turn measured. Names of figures and series end in the unit.
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

// graceTimeout is how much longer than its duration a turn may take. Draining a backlog has its own
// limit.
const graceTimeout = 3 * time.Minute

// Run runs the turn in a child process: this program with -turn and args, which name the cluster.
// It calls progress with each sample.
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
	if t.Workload.SubscriptionsPerTopic > 0 {
		limit += 2 * drainTimeout // building a backlog, and draining what consumers have not received
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
		_ = child.Kill() // its output is not usable
	}
	if err = errors.Join(err, child.Wait(), ctx.Err()); err != nil {
		return nil, err
	}
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
