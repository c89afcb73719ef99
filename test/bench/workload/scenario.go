package workload

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Scenario is a list of parts that run one after the other.
type Scenario struct {
	Name     string `yaml:"-"`        // the name of its file
	Question string `yaml:"question"` // the question that the scenario answers; title of its page
	// Brokers are the settings of the brokers that the scenario starts, by name. Sides without a
	// broker use the broker "", by default with the project's settings, or the cluster of -pulsar.url.
	Brokers map[string]Broker `yaml:"brokers"`
	// Observe lists metrics of the broker, which are read every second.
	Observe []Metric `yaml:"observe"`
	// Columns are the figures in the printed table. Default: rates, latencies, CPU and memory.
	Columns []string `yaml:"columns"`
	Parts   []Part   `yaml:"parts"`
}

// Broker is the settings of a Pulsar standalone.
type Broker struct {
	Conf   map[string]string `yaml:"conf"`   // keys of standalone.conf
	Memory string            `yaml:"memory"` // options of the JVM for its memory
	GC     string            `yaml:"gc"`     // options of the JVM for its garbage collector
	// AckDelayMs delays everything that the broker sends, so also acknowledgements.
	AckDelayMs int `yaml:"ackDelayMs"`
	// Geo starts a second cluster. Messages are replicated to it, and consumers receive from it.
	// Memory is ignored then: both clusters have that of pulsar-geo in test/stack.
	Geo bool `yaml:"geo"`
}

// Metric is a metric of the broker: the sum of all its series with the labels. The values of labels
// are patterns of path.Match: * matches any characters except /.
type Metric struct {
	Series string            `yaml:"series"` // its name in the results, with the unit at its end
	Metric string            `yaml:"metric"`
	Labels map[string]string `yaml:"labels"`
	Scale  float64           `yaml:"scale"` // default: 1
	Rate   bool              `yaml:"rate"`  // its increase per second
}

// Sum returns the sum of the metric's series with the labels, times Scale.
func (m Metric) Sum(families map[string]*dto.MetricFamily) float64 {
	sum := 0.0
	for _, one := range families[m.Metric].GetMetric() {
		matches := 0
		for _, l := range one.GetLabel() {
			pattern, wanted := m.Labels[l.GetName()]
			if same, err := path.Match(pattern, l.GetValue()); wanted && same && err == nil {
				matches++
			}
		}
		if matches == len(m.Labels) {
			sum += one.GetGauge().GetValue() + one.GetCounter().GetValue() + one.GetUntyped().GetValue() + one.GetSummary().GetSampleSum()
		}
	}
	return sum * cmp.Or(m.Scale, 1)
}

// Part is a workload that every side runs once in each round, one side after the other.
type Part struct {
	Name     string   `yaml:"name"`
	Workload Workload `yaml:"workload"`
	// Each gives fields of the workload several values: the part runs once with each combination,
	// as name_field_value.
	Each map[string][]any `yaml:"each"`
	// Rounds is the minimum number of rounds: a smaller -rounds is raised to it.
	Rounds int `yaml:"rounds"`
	// MaxRounds is the maximum number of rounds. 0: no maximum.
	MaxRounds int `yaml:"maxRounds"`
	// WarmUpRounds is the number of rounds before those, which are not part of the results.
	WarmUpRounds int `yaml:"warmUpRounds"`
	// Messages is the maximum number of messages of a turn. 0: only the duration ends it.
	Messages int `yaml:"messages"`
	// Preload is the number of messages for each topic that the library publishes (with the profile
	// ops) before the first turn. Each turn then receives them with a new subscription, and publishes
	// nothing.
	Preload int `yaml:"preload"`
	// Ladder lists ascending rates. Each side runs with one after the other, until the publish p99
	// exceeds MaxP99Ms (0: no limit) or the rate is not reached. Then the distance to the last good
	// rate is halved, Refine times. The figure ladder_msg_s is the highest good rate.
	Ladder   []int   `yaml:"ladder"`
	MaxP99Ms float64 `yaml:"maxP99Ms"`
	Refine   int     `yaml:"refine"`

	Sides   []Side   `yaml:"sides"`
	Targets []Target `yaml:"targets"`
}

// Side is an implementation with its settings.
type Side struct {
	Name   string `yaml:"name" json:"name"`
	Driver string `yaml:"driver" json:"driver"` // a name of load.Drivers
	Broker string `yaml:"broker" json:"broker"`
	// Callers is the number of goroutines for each producer that send one message and wait for its
	// acknowledgement. 0: messages are sent asynchronously.
	Callers int `yaml:"callers" json:"callers"`
	// Profile is ops or business. Publisher changes its settings. Default: ops.
	Profile   string                     `yaml:"profile" json:"profile"`
	Publisher Publisher                  `yaml:"publisher" json:"publisher"`
	Type      messaging.SubscriptionType `yaml:"type" json:"type"`   // default: shared
	Order     messaging.Order            `yaml:"order" json:"order"` // what the library's consumers keep
	// Concurrency of the library's consumers. Default: the library's.
	Concurrency int `yaml:"concurrency" json:"concurrency"`
	// Idle opens the producers and publishes nothing.
	Idle bool `yaml:"idle" json:"idle"`
	// Stages measures the stages of each message's delay: figures stage_queue_p50_ms and so on. It
	// needs publisher: {compression: none}, and a connection without TLS.
	Stages bool `yaml:"stages" json:"stages"`
	// Of the driver transactions: AbortRatio is the fraction of transactions that are aborted.
	MessagesPerTransaction int     `yaml:"messagesPerTransaction" json:"messagesPerTransaction"`
	AbortRatio             float64 `yaml:"abortRatio" json:"abortRatio"`
	// Job is a section of deployments/pulsar/fio/journal.fio, of the driver fio.
	Job string `yaml:"job" json:"job"`
}

// Publisher overrides settings of the profile. 0 and "" keep the profile's value.
type Publisher struct {
	LingerMs          float64               `yaml:"lingerMs" json:"lingerMs"`
	BatchRecords      int                   `yaml:"batchRecords" json:"batchRecords"`
	BatchBytes        int                   `yaml:"batchBytes" json:"batchBytes"`
	MaxPendingRecords int                   `yaml:"maxPendingRecords" json:"maxPendingRecords"`
	Compression       messaging.Compression `yaml:"compression" json:"compression"`
}

// Target is a limit for the median of a figure over the rounds; for a loss or the peak memory it is
// a limit for the worst round. With Over it limits the median of
// the ratios to another side, with Minus that of the differences from another side. Without AtLeast
// and AtMost it has no limit: it only gives the figure a name.
type Target struct {
	Name   string `yaml:"name"`
	Figure string `yaml:"figure"`
	// Of, Over and Minus name sides of this part, or sides of an earlier part as part/side.
	Of    string `yaml:"of"`
	Over  string `yaml:"over"`
	Minus string `yaml:"minus"`
	// OverFigure is the figure of Over. Default: Figure.
	OverFigure string   `yaml:"overFigure"`
	AtLeast    *float64 `yaml:"atLeast"`
	AtMost     *float64 `yaml:"atMost"`
}

// ReadScenario reads a scenario file and expands the parts that have Each.
func ReadScenario(files fs.FS, file string) (*Scenario, error) {
	text, err := fs.ReadFile(files, file)
	if err != nil {
		return nil, err
	}
	s := Scenario{Name: strings.TrimSuffix(path.Base(file), path.Ext(file))}
	if err := decode(file, text, &s); err != nil {
		return nil, err
	}
	var parts []Part
	for _, p := range s.Parts {
		p.Workload.setDefaults()
		more, err := p.expand()
		if err != nil {
			return nil, fmt.Errorf("%s: part %s: %w", file, p.Name, err)
		}
		parts = append(parts, more...)
	}
	s.Parts = parts
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("%s:\n%w", file, err)
	}
	return &s, nil
}

// expand returns a part for each combination of the values in Each.
func (p Part) expand() ([]Part, error) {
	parts := []Part{p}
	for _, field := range slices.Sorted(maps.Keys(p.Each)) {
		var more []Part
		for _, one := range parts {
			for _, value := range p.Each[field] {
				next := one
				next.Name = fmt.Sprintf("%s_%s_%v", one.Name, field, value)
				if err := decode("each", fmt.Appendf(nil, "%s: %v", field, value), &next.Workload); err != nil {
					return nil, err
				}
				more = append(more, next)
			}
		}
		parts = more
	}
	return parts, nil
}

func (s *Scenario) validate() error {
	var faults []error
	known := map[string]bool{} // part/side of the parts so far
	for _, p := range s.Parts {
		check := func(ok bool, format string, args ...any) {
			if !ok {
				faults = append(faults, fmt.Errorf("part %s: %s", p.Name, fmt.Sprintf(format, args...)))
			}
		}
		err := p.Workload.Validate()
		check(err == nil, "%v", err)
		check(len(p.Sides) > 0, "sides: must have at least one")
		for _, side := range p.Sides {
			known[p.Name+"/"+side.Name] = true
			_, ok := s.Brokers[side.Broker]
			check(ok || side.Broker == "", "side %s: broker: %q is not one of brokers", side.Name, side.Broker)
		}
		for _, t := range p.Targets {
			for _, of := range []string{t.Of, t.Over, t.Minus} {
				check(of == "" || known[of] || known[p.Name+"/"+of],
					"target %s: %q is not a side of this part or of an earlier part", t.Name, of)
			}
			check(t.Of != "" && t.Figure != "" && (t.AtLeast == nil || t.AtMost == nil),
				"target %s: must have of and figure, and at most one of atLeast and atMost", t.Name)
		}
	}
	return errors.Join(faults...)
}

// Compare returns the scenario of one workload file. It compares the library with the profile ops
// and the plain client with the same settings.
func Compare(name string, w Workload) *Scenario {
	return &Scenario{Name: name, Question: "The library beside the plain client: " + w.Name, Parts: []Part{{
		Name: w.Name, Workload: w, Sides: []Side{{Name: "library", Driver: "library"}, {Name: "client", Driver: "client"}},
	}}}
}

// Shorten divides the load of each part by divisor and drops the minimum number of rounds. It does
// not change the warm-up.
func (s *Scenario) Shorten(divisor int) {
	for i := range s.Parts {
		p := &s.Parts[i]
		p.Workload.TestDurationMinutes /= float64(divisor)
		p.Workload.ConsumerBacklogSizeGB /= float64(divisor)
		p.Messages, p.Preload, p.Rounds = p.Messages/divisor, p.Preload/divisor, 0
	}
}

// String is the workload in one line, for tables.
func (w *Workload) String() string {
	rate := "as fast as possible"
	if w.ProducerRate > 0 {
		rate = strconv.Itoa(w.ProducerRate) + " msg/s"
	}
	return fmt.Sprintf("%d topics of %d partitions, %d B, %s", w.Topics, w.PartitionsPerTopic, w.MessageSize, rate)
}
