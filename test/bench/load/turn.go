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
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/systems/owned"
)

// Turn is the task of one child process.
type Turn struct {
	Workload workload.Workload `json:"workload"`
	Side     workload.Side     `json:"side"`
	// URL is the address of Kafka or RabbitMQ, of their drivers.
	URL string `json:"url"`
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

// Run runs the turn in a child process: this program with -turn, args and environ, which name the
// cluster. It calls progress with each sample.
func Run(ctx context.Context, t Turn, args, environ []string, progress func(Sample)) (*Result, error) {
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
	cmd.Stdin, cmd.Stderr, cmd.Env = bytes.NewReader(spec), os.Stderr, os.Environ()
	if len(environ) > 0 { // a cluster that this program started needs no other settings of the user
		own := slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "BENCH_") })
		cmd.Env = append(own, environ...)
	}
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

// read reads the output of a child: samples, and the result at its end.
func read(in io.Reader, progress func(Sample)) (*Result, error) {
	var samples []Sample
	for d := json.NewDecoder(in); ; {
		var l line
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			return nil, errors.New("the process ended without a result")
		} else if err != nil {
			return nil, fmt.Errorf("output of the process: %w", err)
		}
		if l.Result != nil {
			l.Result.Samples = samples
			return l.Result, nil
		}
		samples = append(samples, *l.Sample)
		progress(*l.Sample)
	}
}
