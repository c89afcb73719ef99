package ingest

import (
	"errors"
	"math"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config is the section of the configuration about ingestion.
type Config struct {
	// Tenants may write, each to its buses. Default: none, and then everyone who reaches the server
	// may write to every bus.
	Tenants []TenantConfig `yaml:"tenants"`
	// RequestTimeout is how long a request may wait for the broker's acknowledgements before it is
	// answered with 503. It may wait half of that for its topic to open. Default 10s.
	RequestTimeout time.Duration `yaml:"request_timeout"`
	// Limits bound what one request, and all requests together, may cost.
	Limits Limits `yaml:"limits"`
	// Profile is how events are published. Default: the library's "business".
	Profile messaging.Profile `yaml:"profile"`
}

// Limits bound requests.
type Limits struct {
	// BodyBytes bounds a body as it is sent. Beyond: 413. Default 4MiB.
	BodyBytes config.Bytes `yaml:"body_bytes"`
	// DecodedBytes bounds a body after it is decompressed. Beyond: 413. Default 8MiB.
	DecodedBytes config.Bytes `yaml:"decoded_bytes"`
	// BatchEvents bounds the events of a batch. Beyond: 413. At most 2000. Default 1000.
	BatchEvents int `yaml:"batch_events"`
	// InFlightBytes bounds the memory of all requests until their events are acknowledged: bodies,
	// compressed and decoded, events, and the memory to read them. Beyond: 503, or 413 for a request
	// that takes more by itself. Default 64MiB.
	InFlightBytes config.Bytes `yaml:"in_flight_bytes"`
	// InFlightShare is the part of InFlightBytes that the requests of one tenant may hold, from 0
	// to 1. A tenant's only request may hold all of it. Default 0.75, or 1 if there are no tenants.
	InFlightShare float64 `yaml:"in_flight_share"`
	// ReadTimeout bounds the reading of a request with its body. Beyond: 503, and the connection is
	// closed. Default 10s.
	ReadTimeout time.Duration `yaml:"read_timeout"`
	// Connections bounds the open connections of senders, each of which may take 300 KiB for
	// headers before the sender is authenticated. Further ones wait until others are closed. 0: no
	// bound. Default 1024.
	Connections int `yaml:"connections"`
	// Hops bounds how often an event may have passed Eventbridge before, by the header Aviary-Hops.
	// Beyond: 508. Default 10.
	Hops int `yaml:"hops"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		RequestTimeout: 10 * time.Second,
		Limits: Limits{
			BodyBytes:     4 * config.MiB,
			DecodedBytes:  8 * config.MiB,
			BatchEvents:   1000,
			InFlightBytes: 64 * config.MiB,
			InFlightShare: .75,
			ReadTimeout:   10 * time.Second,
			Connections:   1024,
			Hops:          10,
		},
		Profile: messaging.Business(),
	}
}

// mostBatched bounds the batches of a publisher: the engine's position of an event has 11 bits for
// its index in a batch.
const mostBatched = 2000

// Validate checks the section's own keys; each subsection validates itself.
func (c Config) Validate() error {
	return errors.Join(
		config.CheckPositive("request_timeout", c.RequestTimeout),
		config.Require(c.Profile.BatchRecords <= mostBatched, "profile.batch_records", "must be at most %d, got %d", mostBatched, c.Profile.BatchRecords),
		config.CheckOneOf("profile.routing", string(c.Profile.Routing), string(messaging.RouteKeyHash)),
		// Otherwise a later event of a key could overtake one that found the queue full.
		config.CheckOneOf("profile.admission", string(c.Profile.Admission), string(messaging.Block)),
		c.checkTenants())
}

// Validate returns every fault of the limits.
func (l Limits) Validate() error {
	return errors.Join(
		config.CheckPositive("body_bytes", l.BodyBytes),
		config.CheckPositive("decoded_bytes", l.DecodedBytes),
		config.CheckRange("batch_events", l.BatchEvents, 1, mostBatched),
		config.CheckPositive("read_timeout", l.ReadTimeout),
		config.CheckAtLeast("connections", l.Connections, 0),
		config.CheckAtLeast("hops", l.Hops, 0),
		config.Require(l.InFlightShare > 0 && l.InFlightShare <= 1, "in_flight_share", "must be above 0 and at most 1, got %g", l.InFlightShare),
		config.Require(l.InFlightBytes >= l.least(), "in_flight_bytes",
			"must be at least body_bytes + 4 x decoded_bytes + 4MiB = %s, or the largest request never gets in, got %s", l.least(), l.InFlightBytes))
}

// least is what the largest request takes: its body as it is sent and decoded, its events with
// their texts, and what reading them takes.
func (l Limits) least() config.Bytes { return l.BodyBytes + 4*l.DecodedBytes + 4*config.MiB }

// share is the share of one tenant. Without tenants, all senders together are one.
func (c Config) share() float64 {
	if len(c.Tenants) == 0 {
		return 1
	}
	return c.Limits.InFlightShare
}

// Memory is about how many bytes the configuration lets ingestion hold with so many buses.
func (c Config) Memory(buses int) int64 {
	const pendingOverhead = 1536 // of a record in the Pulsar client
	return int64(c.Limits.InFlightBytes) + int64(buses)*int64(c.Profile.MaxPendingRecords)*pendingOverhead
}

// Quota bounds what a tenant may store through each instance. Beyond: 429. Events that are refused
// or cannot be stored do not count.
type Quota struct {
	// EventsPerSecond bounds events per second. 0: no bound.
	EventsPerSecond float64 `yaml:"events_per_second"`
	// EventsBurst is how many events may come at once. 0: the events of ten seconds.
	EventsBurst int `yaml:"events_burst"`
	// BytesPerSecond bounds the bytes of events as JSON per second. 0: no bound.
	BytesPerSecond config.Bytes `yaml:"bytes_per_second"`
	// BytesBurst is how many bytes may come at once. 0: the bytes of ten seconds.
	BytesBurst config.Bytes `yaml:"bytes_burst"`
}

// Validate returns every fault of the quota.
func (q Quota) Validate() error {
	return errors.Join(
		config.Require(q.EventsPerSecond >= 0 && !math.IsInf(q.EventsPerSecond, 0), "events_per_second", "must be >= 0, got %g", q.EventsPerSecond),
		config.CheckAtLeast("events_burst", q.EventsBurst, 0),
		config.Require(q.EventsBurst <= 0 || q.EventsPerSecond != 0, "events_burst", "needs events_per_second"),
		config.Require(q.BytesBurst == 0 || q.BytesPerSecond > 0, "bytes_burst", "needs bytes_per_second"))
}
