package workload

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Scenario is a list of parts that run one after the other.
type Scenario struct {
	Name     string `yaml:"name"`
	Question string `yaml:"question"` // that the scenario answers; the title of its page
	// Brokers are servers that the scenario starts, by name. Sides without a broker use "", with
	// the project's settings, or the cluster that the command line names.
	Brokers map[string]Broker `yaml:"brokers"`
	// Observe are metrics of the broker that are read every second.
	Observe []Metric `yaml:"observe"`
	// Columns are the figures in the printed table. Default: rates, latencies, CPU and memory.
	Columns []string `yaml:"columns"`
	Parts   []Part   `yaml:"parts"`
}

// Broker is a Pulsar standalone with settings of its own.
type Broker struct {
	Conf   map[string]string `yaml:"conf"`   // keys of standalone.conf
	Memory string            `yaml:"memory"` // options of the JVM for its memory
	GC     string            `yaml:"gc"`     // options of the JVM for its collector
	// AckDelayMs delays everything that the broker sends.
	AckDelayMs int `yaml:"ackDelayMs"`
	// Geo starts a second cluster, to which messages are replicated. Consumers receive from it.
	// The memory is then that of the tests' pairs of clusters.
	Geo bool `yaml:"geo"`
}

// Metric is a metric of the broker, summed over all series that have the labels. The values of
// labels are patterns of path.Match: * stands for any characters but /.
type Metric struct {
	Series string            `yaml:"series" json:"series"` // its name in the results, with the unit at its end
	Metric string            `yaml:"metric" json:"metric"`
	Labels map[string]string `yaml:"labels" json:"labels"`
	Scale  float64           `yaml:"scale" json:"scale"` // default: 1
	Rate   bool              `yaml:"rate" json:"rate"`   // its increase per second
}

// Sum returns the metric's value: of all its series with the labels.
func (m Metric) Sum(families map[string]*dto.MetricFamily) float64 {
	sum := 0.0
	for _, one := range families[m.Metric].GetMetric() {
		if m.selects(one) {
			sum += one.GetGauge().GetValue() + one.GetCounter().GetValue() + one.GetUntyped().GetValue() + one.GetSummary().GetSampleSum()
		}
	}
	return sum * cmp.Or(m.Scale, 1)
}

func (m Metric) selects(one *dto.Metric) bool {
	for name, value := range m.Labels {
		if !slices.ContainsFunc(one.GetLabel(), func(l *dto.LabelPair) bool {
			same, _ := path.Match(value, l.GetValue()) // a pattern that is wrong matches nothing
			return l.GetName() == name && same
		}) {
			return false
		}
	}
	return true
}

// Part is a workload that all sides run in turn, once in each round.
type Part struct {
	Name     string   `yaml:"name"`
	Workload Workload `yaml:"workload"`
	// Each gives fields of the workload several values: the part runs once with each combination,
	// as name_field_value.
	Each map[string][]any `yaml:"each"`
	// Rounds is the least number of rounds. Default: that of the command line.
	Rounds int `yaml:"rounds"`
	// MaxRounds bounds the rounds. Default: no bound.
	MaxRounds int `yaml:"maxRounds"`
	// Messages ends a turn after as many messages, if the duration has not ended it before.
	Messages int `yaml:"messages"`
	// Preload publishes as many messages before the first turn, by the library with the profile ops.
	// Turns then receive these, each with a subscription of its own, and publish nothing.
	Preload int `yaml:"preload"`
	// Ladder repeats the part with each of these rates, ascending, until the publish p99 exceeds
	// MaxP99Ms, or the rate is not reached. The result of a side is the rate below: the figure
	// ladder_msg_s. MaxP99Ms of 0 is no bound. Refine halves the last step as many times.
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
	// Callers above 0 has each producer called by as many goroutines that wait for each
	// acknowledgement, in place of asynchronous sending.
	Callers int `yaml:"callers" json:"callers"`
	// Profile is ops or business: what Publisher begins with. Default: ops.
	Profile   string                     `yaml:"profile" json:"profile"`
	Publisher Publisher                  `yaml:"publisher" json:"publisher"`
	Type      messaging.SubscriptionType `yaml:"type" json:"type"`   // default: shared
	Order     messaging.Order            `yaml:"order" json:"order"` // what the library's consumers keep
	// Concurrency of the library's consumers. Default: theirs.
	Concurrency int `yaml:"concurrency" json:"concurrency"`
	// Idle opens the producers and publishes nothing.
	Idle bool `yaml:"idle" json:"idle"`
	// Stages divides the delay into stages: figures stage_queue_p50_ms and so on. It needs
	// publisher: {compression: none}, and a connection without TLS.
	Stages bool `yaml:"stages" json:"stages"`

	Settings map[string]string `yaml:"settings" json:"settings"` // of the driver
}

// Publisher are settings that differ from the profile's. 0 and "" are the profile's.
type Publisher struct {
	LingerMs          float64               `yaml:"lingerMs" json:"lingerMs"`
	BatchRecords      int                   `yaml:"batchRecords" json:"batchRecords"`
	BatchBytes        int                   `yaml:"batchBytes" json:"batchBytes"`
	MaxPendingRecords int                   `yaml:"maxPendingRecords" json:"maxPendingRecords"`
	Compression       messaging.Compression `yaml:"compression" json:"compression"`
}

// Target is what is asked of a figure: of a side's median, or of the median of its ratio to (or
// difference from) another side's in each round.
type Target struct {
	Name   string `yaml:"name"`
	Figure string `yaml:"figure"`
	// Of, Over and Minus are sides of this part, or part/side of this one or one before it.
	Of    string `yaml:"of"`
	Over  string `yaml:"over"`
	Minus string `yaml:"minus"`
	// OverFigure is the figure of Over. Default: Figure.
	OverFigure string   `yaml:"overFigure"`
	AtLeast    *float64 `yaml:"atLeast"`
	AtMost     *float64 `yaml:"atMost"`
}

// UnmarshalYAML gives fields that are absent their defaults.
func (p *Part) UnmarshalYAML(node *yaml.Node) error {
	type plainPart Part
	one := plainPart{Workload: Default()}
	one.Workload.WarmupDurationMinutes = 0
	if err := strict(node, &one); err != nil {
		return err
	}
	*p = Part(one)
	return nil
}

// ReadScenario reads a scenario's file and expands its parts.
func ReadScenario(files fs.FS, file string) (*Scenario, error) {
	text, err := fs.ReadFile(files, file)
	if err != nil {
		return nil, err
	}
	var s Scenario
	if err := decode(file, text, &s); err != nil {
		return nil, err
	}
	if s.Name == "" {
		s.Name = strings.TrimSuffix(path.Base(file), path.Ext(file))
	}
	var parts []Part
	for _, p := range s.Parts {
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
	for _, field := range sortedKeys(p.Each) {
		var more []Part
		for _, one := range parts {
			for _, value := range p.Each[field] {
				text, err := yaml.Marshal(map[string]any{field: value})
				if err != nil {
					return nil, err
				}
				next := one
				if err := decode("each", text, &next.Workload); err != nil {
					return nil, err
				}
				next.Name = fmt.Sprintf("%s_%s_%v", one.Name, field, value)
				more = append(more, next)
			}
		}
		parts = more
	}
	return parts, nil
}

func (s *Scenario) validate() error {
	var faults []error
	var known []string
	for _, p := range s.Parts {
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("part %s: %s", p.Name, fmt.Sprintf(format, args...)))
		}
		if err := p.Workload.Validate(); err != nil {
			fault("%v", err)
		}
		if len(p.Sides) == 0 {
			fault("sides: must have at least one")
		}
		for _, side := range p.Sides {
			known = append(known, side.Name, p.Name+"/"+side.Name)
			if _, ok := s.Brokers[side.Broker]; !ok && side.Broker != "" {
				fault("side %s: broker: %q is not among brokers", side.Name, side.Broker)
			}
		}
		for _, t := range p.Targets {
			for _, of := range []string{t.Of, t.Over, t.Minus} {
				if of != "" && !slices.Contains(known, of) {
					fault("target %s: %q is no side of this part or of one before it", t.Name, of)
				}
			}
			if t.Of == "" || t.Figure == "" || (t.AtLeast == nil) == (t.AtMost == nil) {
				fault("target %s: must have of, figure, and one of atLeast and atMost", t.Name)
			}
		}
	}
	return errors.Join(faults...)
}

func sortedKeys(m map[string][]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Compare returns the scenario of one workload file: the library, with the profile ops, beside the
// plain client with the same settings.
func Compare(w Workload) *Scenario {
	return &Scenario{Name: w.Name, Question: "The library beside the plain client: " + w.Name, Parts: []Part{{
		Name: w.Name, Workload: w, Sides: []Side{{Name: "library", Driver: "library"}, {Name: "client", Driver: "client"}},
	}}}
}

// Fraction shortens the parts, and drops their least number of rounds: the warm-up stays.
func (s *Scenario) Fraction(part int) {
	for i := range s.Parts {
		p := &s.Parts[i]
		p.Workload.TestDurationMinutes /= float64(part)
		p.Workload.ConsumerBacklogSizeGB /= float64(part)
		p.Messages, p.Preload, p.Rounds = p.Messages/part, p.Preload/part, 0
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
