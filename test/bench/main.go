// Command bench measures a scenario or a workload. docs/benchmarks/README.md describes its use.
//
// It runs the compared sides in turn, each in its own process, and reports the median of the
// ratios of all turns. It prints a table, then one line of JSON:
//
//	{"scenario":…,"figures":{…},"targets":[{"name":…,"value":…,"target":…,"ok":…},…]}
//
// With -out it also writes NAME.json and the page NAME.html. It may import pulsar-client-go, as
// the plain client to compare with.
package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// scenarioFiles are the scenarios that need no code of their own.
//
//go:embed scenarios
var scenarioFiles embed.FS

// serviceScenario is a scenario that measures a service.
type serviceScenario struct {
	question string
	run      func(context.Context, *runner) error
}

func services() map[string]serviceScenario {
	return map[string]serviceScenario{
		"eventbridge":   {"How many events does Eventbridge take and deliver, how fast, and what does matching cost?", eventbridgeScenario},
		"nightingale":   {"What does a sample cost Nightingale, and what does an outage of the broker do to it?", nightingaleScenario},
		"pigeonhole":    {"How many messages a second does a route of Pigeonhole move, and how much later do they arrive?", pigeonholeScenario},
		"sonic":         {"What does Sonic add to a Redis command, and how long does a write take to the other zone?", sonicScenario},
		"sonic-cluster": {"What does a command cost Sonic in front of a Redis Cluster?", sonicClusterScenario},
	}
}

// settings are the configuration. As for the services, it comes from flags, a file and environment
// variables (BENCH_PULSAR_URL).
type settings struct {
	Pulsar    messaging.Config `yaml:"pulsar"`
	Namespace string           `yaml:"namespace"` // of the topics; default: public/default
}

// defaultNamespace is the namespace of topics that need no other.
const defaultNamespace = "public/default"

// noCluster is the default URL. With it this program starts brokers.
const noCluster = "pulsar://none.invalid:6650"

func defaults() settings {
	s := settings{Pulsar: messaging.DefaultConfig(), Namespace: defaultNamespace}
	s.Pulsar.URL = noCluster
	return s
}

// options can be set on the command line only.
type options struct {
	scenario, workload, only, profile, out string
	rounds                                 int
	quick, turn                            bool
	outage                                 time.Duration
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	var o options
	loaded, err := config.Load(config.Spec[settings]{
		Name: "bench", Summary: "measures workloads on Pulsar", Args: os.Args[1:], Environ: os.Environ(), Usage: os.Stderr,
		Defaults: defaults, Flags: o.flags,
	})
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, warning := range loaded.Warnings {
		fmt.Fprintln(os.Stderr, "bench:", warning)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.turn {
		return load.RunChild(ctx, loaded.Config.Pulsar, os.Stdin, os.Stdout)
	}
	s, err := o.read()
	if err != nil {
		return err
	}
	r := measure.New(s.Name, o.rounds, o.only, o.profile)
	if r.Quick, r.Outage = o.quick, o.outage; o.quick {
		s.Shorten(5)
		r.Outage = min(r.Outage, 5*time.Second)
	}
	err = o.measure(ctx, newRunner(r, s), loaded.Config)
	if err != nil && !errors.Is(err, errLost) {
		return err
	}
	r.Print(os.Stdout)
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(r.Result()))
}

// measure runs the scenario or workload, and writes its results.
func (o *options) measure(ctx context.Context, r *runner, c settings) error {
	defer r.close()
	service, own := services()[r.scenario.Name]
	given := c.Pulsar.URL != noCluster
	switch {
	case own && o.workload == "" && given:
		return fmt.Errorf("scenario %s starts its own servers: run it without -pulsar.url", o.scenario)
	case own && o.workload == "":
		return r.end(service.run(ctx, r), o.out)
	case given:
		r.given, r.args = &cluster{}, os.Args[1:]
		defer r.given.stop()
		if err := r.given.dial(ctx, c.Pulsar, c.Namespace); err != nil {
			return err
		}
	}
	return r.end(r.run(ctx), o.out)
}

// read reads the workload file or the scenario file of the options. The scenario of a service has
// no parts yet.
func (o *options) read() (*workload.Scenario, error) {
	if o.workload != "" {
		w, err := workload.Read(o.workload)
		return workload.Compare(strings.TrimSuffix(filepath.Base(o.workload), filepath.Ext(o.workload)), w), err
	}
	if service, ok := services()[o.scenario]; ok {
		return &workload.Scenario{Name: o.scenario, Question: service.question}, nil
	}
	if !slices.Contains(names(), o.scenario) {
		return nil, fmt.Errorf("unknown scenario %q: choose one of %s, or give a -workload", o.scenario, strings.Join(names(), ", "))
	}
	return workload.ReadScenario(scenarioFiles, "scenarios/"+o.scenario+".yaml")
}

// flags registers the options, and those of the configuration that most runs need.
func (o *options) flags(f *flag.FlagSet, c *settings) {
	f.StringVar(&o.scenario, "scenario", "", "what to measure: "+strings.Join(names(), ", "))
	f.StringVar(&o.workload, "workload", "", "in place of a scenario, a workload file of the OpenMessaging Benchmark")
	f.StringVar(&c.Pulsar.URL, "pulsar.url", c.Pulsar.URL, "the cluster; with the default URL the program starts a broker")
	f.StringVar(&c.Pulsar.AdminURL, "pulsar.admin_url", c.Pulsar.AdminURL, "admin API of the cluster, for partitions and stored messages")
	f.StringVar(&c.Namespace, "namespace", c.Namespace, "namespace of the topics; it must exist")
	f.IntVar(&o.rounds, "rounds", 5, "how often each compared side runs")
	f.StringVar(&o.only, "only", "", "run only the parts whose name contains this")
	f.StringVar(&o.out, "out", "bench-results", "folder for the JSON results and the page")
	f.StringVar(&o.profile, "profile", "", "write CPU and allocation profiles of the measured processes into this folder")
	f.BoolVar(&o.quick, "quick", false, "a fifth of the load and a short outage: checks that everything works")
	f.DurationVar(&o.outage, "outage", time.Minute, "how long the broker is unavailable where that is measured")
	f.BoolVar(&o.turn, "turn", false, "internal: run the turn that is on standard input")
}

// names returns the names of all scenarios.
func names() []string {
	all := slices.Collect(maps.Keys(services()))
	files, _ := fs.Glob(scenarioFiles, "scenarios/*.yaml") // the pattern is right
	for _, file := range files {
		all = append(all, strings.TrimSuffix(filepath.Base(file), ".yaml"))
	}
	slices.Sort(all)
	return all
}
