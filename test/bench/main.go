// Command bench measures one scenario and prints a table, then one line of JSON:
//
//	{"scenario":…,"figures":{…},"targets":[{"name":…,"value":…,"target":…,"ok":…},…]}
//
// Machines drift, so whatever is compared runs in turn, in one run, and is compared
// as the median of pairwise ratios. Each measured piece is a child process of its
// own (this program again, with -child), so that its CPU seconds and peak memory
// are its alone.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/pieces"
)

// scenario measures something and reports figures and targets.
type scenario func(ctx context.Context, r *measure.Report) error

func scenarios() map[string]scenario {
	return map[string]scenario{
		"eventbridge":   eventbridgeScenario,
		"messaging":     messagingScenario,
		"nightingale":   nightingaleScenario,
		"pigeonhole":    pigeonholeScenario,
		"sonic":         sonicScenario,
		"sonic-cluster": sonicClusterScenario,
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	name := flag.String("scenario", "", "what to measure: "+strings.Join(names(), ", "))
	rounds := flag.Int("rounds", 5, "turns that each compared pair takes")
	only := flag.String("only", "", "run only the parts whose name contains this")
	child := flag.String("child", "", "internal: one measured piece, as JSON")
	profile := flag.String("profile", "", "write CPU and allocation profiles of the measured pieces into this folder")
	quick := flag.Bool("quick", false, "a fifth of the load and a short outage, to see that all works")
	outage := flag.Duration("outage", time.Minute, "how long the broker is unavailable where that is measured")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *child != "" {
		return measure.RunChild(ctx, *child, pieces.All())
	}
	s, ok := scenarios()[*name]
	if !ok {
		return fmt.Errorf("unknown scenario %q: choose one of %s", *name, strings.Join(names(), ", "))
	}
	r := measure.New(*name, *rounds, *only, *profile)
	if r.Quick, r.Outage = *quick, *outage; *quick {
		r.Outage = min(r.Outage, 5*time.Second)
	}
	if err := s(ctx, r); err != nil {
		return err
	}
	r.Print(os.Stdout)
	return json.NewEncoder(os.Stdout).Encode(r.Result())
}

func names() []string { return slices.Sorted(maps.Keys(scenarios())) }
