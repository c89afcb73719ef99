// Package workload reads workload files of the OpenMessaging Benchmark, and scenario files, which
// compare implementations with several workloads. It imports no other package of test/bench.
package workload

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Workload has the fields of a workload file of the OpenMessaging Benchmark, with its names and
// meanings: https://github.com/openmessaging/benchmark. Here durations and the size of the backlog
// can be fractions.
type Workload struct {
	Name string `yaml:"name" json:"name"`

	Topics             int    `yaml:"topics" json:"topics"`
	PartitionsPerTopic int    `yaml:"partitionsPerTopic" json:"partitionsPerTopic"` // 0: topics without partitions
	KeyDistributor     string `yaml:"keyDistributor" json:"keyDistributor"`

	MessageSize int `yaml:"messageSize" json:"messageSize"` // bytes
	// Without UseRandomizedPayloads all messages have one payload of random bytes. With it there are
	// RandomizedPayloadPoolSize payloads, and only the fraction RandomBytesRatio of each is random.
	// PayloadFile replaces both. A file *.jsonl has a payload in each line.
	UseRandomizedPayloads     bool    `yaml:"useRandomizedPayloads" json:"useRandomizedPayloads"`
	RandomBytesRatio          float64 `yaml:"randomBytesRatio" json:"randomBytesRatio"`
	RandomizedPayloadPoolSize int     `yaml:"randomizedPayloadPoolSize" json:"randomizedPayloadPoolSize"`
	PayloadFile               string  `yaml:"payloadFile" json:"payloadFile"`

	SubscriptionsPerTopic   int `yaml:"subscriptionsPerTopic" json:"subscriptionsPerTopic"`
	ProducersPerTopic       int `yaml:"producersPerTopic" json:"producersPerTopic"`
	ConsumerPerSubscription int `yaml:"consumerPerSubscription" json:"consumerPerSubscription"`

	// ProducerRate is the number of messages per second of all producers together. 0: each producer
	// sends as fast as its bounded queue allows.
	ProducerRate int `yaml:"producerRate" json:"producerRate"`

	// ConsumerBacklogSizeGB, if above 0, is the backlog (in 10^9 bytes) that builds up before the
	// consumers start. The workload ends when they have received it: TestDurationMinutes is ignored.
	ConsumerBacklogSizeGB float64 `yaml:"consumerBacklogSizeGB" json:"consumerBacklogSizeGB"`
	// BacklogDrainRatio is the fraction of ProducerRate that is sent while consumers drain the
	// backlog. Default: 1.
	BacklogDrainRatio float64 `yaml:"backlogDrainRatio" json:"backlogDrainRatio"`

	TestDurationMinutes   float64 `yaml:"testDurationMinutes" json:"testDurationMinutes"`
	WarmupDurationMinutes float64 `yaml:"warmupDurationMinutes" json:"warmupDurationMinutes"` // default: 1
}

// Values of KeyDistributor, which chooses the keys of messages.
const (
	NoKey         = "NO_KEY"
	KeyRoundRobin = "KEY_ROUND_ROBIN"
	RandomNano    = "RANDOM_NANO"
)

// Default returns a workload with the default of each field.
func Default() Workload {
	w := Workload{PartitionsPerTopic: 1, WarmupDurationMinutes: 1}
	w.setDefaults()
	return w
}

// setDefaults sets the defaults of fields that are 0, except that of partitions and of the warm-up.
func (w *Workload) setDefaults() {
	w.Topics, w.ProducersPerTopic = cmp.Or(w.Topics, 1), cmp.Or(w.ProducersPerTopic, 1)
	w.ConsumerPerSubscription = cmp.Or(w.ConsumerPerSubscription, 1)
	w.KeyDistributor = cmp.Or(w.KeyDistributor, NoKey)
	w.BacklogDrainRatio, w.TestDurationMinutes = cmp.Or(w.BacklogDrainRatio, 1), cmp.Or(w.TestDurationMinutes, 5)
}

// StampSize is the minimum size of a message that is consumed: its first bytes hold its due time
// and its number.
const StampSize = 16

// Validate returns all errors of the workload, joined.
func (w *Workload) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(w.Topics > 0, "topics: %d: must be at least 1", w.Topics)
	check(w.PartitionsPerTopic >= 0, "partitionsPerTopic: %d: must not be negative", w.PartitionsPerTopic)
	check(w.MessageSize > 0 || w.PayloadFile != "", "messageSize: must be above 0, or payloadFile must be set")
	check(w.MessageSize >= StampSize || w.SubscriptionsPerTopic == 0 || w.PayloadFile != "",
		"messageSize: %d: must be at least %d with subscriptions: a message holds its number and due time", w.MessageSize, StampSize)
	check(w.ProducersPerTopic > 0, "producersPerTopic: %d: must be at least 1", w.ProducersPerTopic)
	check(w.SubscriptionsPerTopic >= 0, "subscriptionsPerTopic: %d: must not be negative", w.SubscriptionsPerTopic)
	check(w.ConsumerPerSubscription > 0 || w.SubscriptionsPerTopic == 0,
		"consumerPerSubscription: %d: must be at least 1", w.ConsumerPerSubscription)
	check(w.ProducerRate >= 0, "producerRate: %d: must not be negative; 0 is no limit", w.ProducerRate)
	check(w.RandomBytesRatio >= 0 && w.RandomBytesRatio <= 1, "randomBytesRatio: %g: must be from 0 to 1", w.RandomBytesRatio)
	check(w.ConsumerBacklogSizeGB >= 0, "consumerBacklogSizeGB: %g: must not be negative", w.ConsumerBacklogSizeGB)
	check(w.ConsumerBacklogSizeGB == 0 || w.SubscriptionsPerTopic > 0, "consumerBacklogSizeGB: needs subscriptionsPerTopic above 0")
	check(w.BacklogDrainRatio > 0 && w.BacklogDrainRatio <= 1,
		"backlogDrainRatio: %g: must be above 0 and at most 1", w.BacklogDrainRatio)
	check(w.TestDurationMinutes > 0, "testDurationMinutes: %g: must be above 0", w.TestDurationMinutes)
	check(w.WarmupDurationMinutes >= 0, "warmupDurationMinutes: %g: must not be negative", w.WarmupDurationMinutes)
	check(slices.Contains([]string{NoKey, KeyRoundRobin, RandomNano}, w.KeyDistributor),
		"keyDistributor: %q: must be one of NO_KEY, KEY_ROUND_ROBIN, RANDOM_NANO", w.KeyDistributor)
	return errors.Join(faults...)
}

// Duration is how long the workload is measured.
func (w *Workload) Duration() time.Duration { return minutes(w.TestDurationMinutes) }

// Warmup is how long the workload runs before that.
func (w *Workload) Warmup() time.Duration { return minutes(w.WarmupDurationMinutes) }

func minutes(m float64) time.Duration { return time.Duration(m * float64(time.Minute)) }

// Payloads returns the contents of messages. Producers use one after the other.
func (w *Workload) Payloads() ([][]byte, error) {
	if w.PayloadFile != "" {
		one, err := os.ReadFile(filepath.Clean(w.PayloadFile))
		all := [][]byte{one}
		if filepath.Ext(w.PayloadFile) == ".jsonl" {
			all = bytes.Split(bytes.TrimSpace(one), []byte("\n"))
		}
		for i, payload := range all {
			if err == nil && len(payload) < StampSize && w.SubscriptionsPerTopic > 0 {
				err = fmt.Errorf("payloadFile: %s: message %d has %d bytes: must have at least %d with subscriptions",
					w.PayloadFile, i+1, len(payload), StampSize)
			}
		}
		return all, err
	}
	n, random := 1, w.MessageSize
	if w.UseRandomizedPayloads {
		n, random = max(w.RandomizedPayloadPoolSize, 1), int(float64(w.MessageSize)*w.RandomBytesRatio)
	}
	r := rand.New(rand.NewPCG(1, uint64(w.MessageSize)))
	all := make([][]byte, n)
	for i := range all {
		all[i] = bytes.Repeat([]byte{'x'}, w.MessageSize)
		for k := range random { // spread evenly, as in JSON
			all[i][k*w.MessageSize/random] = byte(r.Uint32())
		}
	}
	return all, nil
}

// Read reads a workload file. It looks for the payload file in the working directory, in the folder
// of the workload, and in the folder above, where the OpenMessaging Benchmark has it.
func Read(file string) (Workload, error) {
	w := Default()
	text, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return w, err
	}
	if err := decode(file, text, &w); err != nil {
		return w, err
	}
	if w.Name == "" {
		w.Name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
	}
	if w.PayloadFile != "" {
		dir := filepath.Dir(file)
		for _, at := range []string{w.PayloadFile, filepath.Join(dir, w.PayloadFile), filepath.Join(dir, "..", w.PayloadFile)} {
			if _, err := os.Stat(at); err == nil {
				w.PayloadFile = at
				break
			}
		}
	}
	if err := w.Validate(); err != nil {
		return w, fmt.Errorf("%s:\n%w", file, err)
	}
	return w, nil
}

// decode reads YAML. It reports all unknown keys in one error.
func decode(name string, text []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%s: %s", name, plain(err))
	}
	return nil
}

// plain removes the names of Go types from an error of the YAML library.
func plain(err error) string {
	text := regexp.MustCompile(`field (\S+) not found in type \S+`).ReplaceAllString(err.Error(), "unknown field $1")
	return strings.TrimPrefix(text, "yaml: ")
}
