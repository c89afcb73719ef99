package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// fioDriver is the driver of a side that runs a job of fio in the folder of the broker's journal.
const fioDriver = "fio"

// journalJobs has jobs of fio that write as BookKeeper's journal does. The path begins at the
// module's root.
const journalJobs = "deployments/pulsar/fio/journal.fio"

// fio runs a job for the part's duration and returns figures of its writes and fdatasync calls.
func fio(ctx context.Context, c *cluster, p *workload.Part, side workload.Side) (*load.Result, error) {
	if c.journal == "" {
		return nil, errors.New("fio must run on the bookie's disk: run deployments/pulsar/fio/check.sh there, or omit -pulsar.url")
	}
	dir, err := os.MkdirTemp(c.journal, "fio-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.CommandContext(ctx, "fio", "--output-format=json", "--section="+side.Job, journalJobs)
	cmd.Env = append(os.Environ(), "DIR="+dir, "SIZE=1g", fmt.Sprintf("RUNTIME=%dms", p.Workload.Duration().Milliseconds()))
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("fio: %w", err)
	}
	return fioResult(text)
}

// fioResult reads the figures of the first job in fio's output.
func fioResult(text []byte) (*load.Result, error) {
	var out struct {
		Jobs []struct {
			Write struct {
				Bytes float64 `json:"bw_bytes"` // per second
			} `json:"write"`
			Sync struct {
				Latency struct {
					Max         float64            `json:"max"`
					N           float64            `json:"N"`
					Percentiles map[string]float64 `json:"percentile"`
				} `json:"lat_ns"`
			} `json:"sync"`
		} `json:"jobs"`
	}
	_, object, _ := strings.Cut(string(text), "{") // fio may print notes before the object
	if err := json.Unmarshal([]byte("{"+object), &out); err != nil {
		return nil, fmt.Errorf("output of fio: %w", err)
	}
	if len(out.Jobs) == 0 || out.Jobs[0].Sync.Latency.N == 0 {
		return nil, errors.New("fio has synced nothing: increase testDurationMinutes")
	}
	job := out.Jobs[0]
	sync := job.Sync.Latency
	return &load.Result{Figures: map[string]float64{
		"disk_mb_s":         job.Write.Bytes / 1e6,
		"disk_sync_p50_ms":  sync.Percentiles["50.000000"] / 1e6,
		"disk_sync_p99_ms":  sync.Percentiles["99.000000"] / 1e6,
		"disk_sync_p999_ms": sync.Percentiles["99.900000"] / 1e6,
		"disk_sync_max_ms":  sync.Max / 1e6,
	}}, nil
}
