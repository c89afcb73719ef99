package nightingale

import (
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/publish"
	"github.com/aviaryhq/aviary/internal/nightingale/relabel"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/internal/nightingale/tenant"
	"github.com/aviaryhq/aviary/internal/nightingale/topic"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config is the configuration of nightingale.
type Config struct {
	app.Common `yaml:",inline"`
	// Pulsar is the cluster to publish to.
	Pulsar messaging.Config `yaml:"pulsar"`
	// HTTP is the server that senders write to.
	HTTP HTTPConfig `yaml:"http"`
	// Topic is the topic of the messages. It may contain {tenant} (from the header X-Scope-OrgID),
	// {name} (the metric's name) and {label.NAME}: see topics. Default
	// persistent://public/default/metrics.
	Topic string `yaml:"topic"`
	// Topics bounds the topics that a topic with placeholders creates.
	Topics publish.TopicsConfig `yaml:"topics"`
	// Format of the messages: json, json-kafka-adapter, protobuf or packed. Default
	// json.
	Format string `yaml:"format"`
	// ExemplarSeries says how to treat a series of remote write 2.0 that has exemplars, but neither
	// samples nor histograms. The specification does not allow such a series, but Prometheus sends
	// them with send_exemplars. refuse: 400 for the series, the others are written. accept: its
	// exemplars are written. Default refuse.
	ExemplarSeries string `yaml:"exemplar_series"`
	// MessageBytes is the maximum size of a message in the format packed. A larger
	// series gets a message of its own. From 1KiB to 1MiB. Default 256KiB.
	MessageBytes config.Bytes `yaml:"message_bytes"`
	// KeyLabels are the labels whose hash is the message key: series with equal values of these
	// labels are on the same partition. Default: all labels.
	KeyLabels []string `yaml:"key_labels"`
	// RelabelConfigs are Prometheus' relabelling rules, in order. Series that they drop count as
	// written for the sender, and in nightingale_samples_filtered_total. Default: none.
	RelabelConfigs []relabel.Config `yaml:"relabel_configs"`
	// Ack says what an answer 204 guarantees. broker: the broker has acknowledged every message of
	// the request. queued: every message is in the publish queue, in memory. A crash, or a stop
	// while Pulsar is unreachable, loses the queue, up to profile.max_pending_records messages.
	// Default broker.
	Ack string `yaml:"ack"`
	// RequestTimeout is the maximum time between the end of a request's body and its answer. Beyond
	// it: 503. A request waits at most half of that time for a topic that is not open yet. Set it below
	// the sender's own timeout (Prometheus' remote_timeout, 30s). Default 10s.
	RequestTimeout time.Duration `yaml:"request_timeout"`
	// Dedup recognises requests that a sender repeats.
	Dedup publish.DedupConfig `yaml:"dedup"`
	// Tenants sets quotas of samples for tenants.
	Tenants tenant.Config `yaml:"tenants"`
	// Limits bound the size and the memory of one request, and of all requests together.
	Limits remotewrite.Limits `yaml:"limits"`
	// Profile says how messages are published. Default: the library's profile "ops".
	Profile messaging.Profile `yaml:"profile"`

	// Setup says what -setup creates at Pulsar. Nothing else uses it.
	Setup setup.Section `yaml:"setup"`

	// Tail and TailTopic come from the command line only, see Flags.
	Tail      bool   `yaml:"-"`
	TailTopic string `yaml:"-"`
}

// HTTPConfig configures the HTTP server for senders.
type HTTPConfig struct {
	// Listen is the address, host:port; port 0 lets the system choose. Default 127.0.0.1:9201.
	Listen string `yaml:"listen"`

	tenant.AccessConfig `yaml:",inline"`
}

// How to treat series that have only exemplars.
const (
	refuseSeries = "refuse"
	acceptSeries = "accept"
)

// DefaultConfig returns the defaults. They suffice where Pulsar runs on this machine.
func DefaultConfig() Config {
	return Config{
		Common:         app.DefaultCommon("127.0.0.1:9202"),
		Pulsar:         messaging.DefaultConfig(),
		HTTP:           HTTPConfig{Listen: "127.0.0.1:9201"},
		Topic:          "persistent://public/default/metrics",
		Topics:         publish.DefaultTopics(),
		Format:         "json",
		Ack:            publish.AckBroker,
		ExemplarSeries: refuseSeries,
		Dedup:          publish.DedupConfig{Entries: 10_000, Window: 10 * time.Minute},
		Tenants:        tenant.Config{InFlightShare: .75},
		MessageBytes:   256 * config.KiB,
		RequestTimeout: 10 * time.Second,
		Limits:         remotewrite.DefaultLimits(),
		Profile:        messaging.Ops(),
		Setup:          setup.Section{Policies: setup.Defaults()},
	}
}

// publishing returns the configuration of the publishing stage.
func (c Config) publishing() publish.Config {
	return publish.Config{
		Topic: c.Topic, Topics: c.Topics, Ack: c.Ack, RequestTimeout: c.RequestTimeout,
		PendingBytes: c.Profile.MaxPendingBytes, PendingRecords: c.Profile.MaxPendingRecords,
	}
}

// Validate checks the keys of this level. Each section checks its own.
func (c Config) Validate() error {
	var errs []error
	if t, err := topic.Parse(c.Topic); err != nil {
		errs = append(errs, config.Fault("topic", "%s", err))
	} else if t.Tenant {
		for i, s := range c.HTTP.Senders {
			if tenant.Check(s.Tenant) == nil && topic.CheckTenant(s.Tenant) != nil {
				key := fmt.Sprintf("http.senders[%d].tenant", i)
				errs = append(errs, config.Fault(key, "cannot be part of the topic's name, see topic: got %q", s.Tenant))
			}
		}
	}
	for i, name := range c.KeyLabels {
		errs = append(errs, config.Require(name != "", fmt.Sprintf("key_labels[%d]", i), "must be a label's name"))
	}
	if !c.Tail { // the tail does not use these files
		errs = append(errs, c.HTTP.Check())
	}
	return errors.Join(append(errs,
		config.CheckListen("http.listen", c.HTTP.Listen),
		config.CheckApart("http.listen", c.HTTP.Listen, "admin.listen", c.Admin.Listen),
		config.CheckRange("message_bytes", c.MessageBytes, config.KiB, config.MiB),
		config.CheckPositive("request_timeout", c.RequestTimeout),
		config.Require(c.Profile.Routing != messaging.RouteExplicit,
			"profile.routing", "must be key_hash or round_robin, got %q", c.Profile.Routing),
		config.CheckOneOf("format", c.Format, format.Names()...),
		config.CheckOneOf("exemplar_series", c.ExemplarSeries, refuseSeries, acceptSeries),
		config.CheckOneOf("ack", c.Ack, publish.AckBroker, publish.AckQueued))...)
}
