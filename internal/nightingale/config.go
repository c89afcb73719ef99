package nightingale

import (
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// Config is the configuration of nightingale.
type Config struct {
	app.Common `yaml:",inline"`
	// Pulsar is the cluster to publish to.
	Pulsar messaging.Config `yaml:"pulsar"`
	// HTTP is the server that senders write to.
	HTTP HTTPConfig `yaml:"http"`
	// Topic takes the messages. Default persistent://public/default/metrics. It may contain {tenant} (of the header X-Scope-OrgID), {name} (of the
	// metric) and {label.NAME}: see topics.
	Topic string `yaml:"topic"`
	// Topics bounds the topics that a topic with placeholders makes.
	Topics TopicsConfig `yaml:"topics"`
	// Format of the messages: json, json-kafka-adapter, protobuf, packed or packed-v2. Default json.
	Format string `yaml:"format"`
	// ExemplarSeries says what becomes of a series of remote write 2.0 with exemplars and neither samples nor histograms, which the specification
	// does not allow and Prometheus sends with send_exemplars. refuse: 400 for the series, the others are written. accept: its exemplars are
	// written. Default refuse.
	ExemplarSeries string `yaml:"exemplar_series"`
	// MessageBytes bounds a message of the formats packed and packed-v2; a series that is larger is sent alone. From 1KiB to 1MiB. Default 256KiB.
	MessageBytes config.Bytes `yaml:"message_bytes"`
	// KeyLabels are the labels whose hash is the key: series that are alike in them are on one partition. Default: all labels.
	KeyLabels []string `yaml:"key_labels"`
	// Filter chooses the series that are published. Default: all.
	Filter FilterConfig `yaml:"filter"`
	// RelabelConfigs are Prometheus' rules, applied in order to what the filter leaves. Default: none.
	RelabelConfigs []RelabelConfig `yaml:"relabel_configs"`
	// Ack says what a 204 promises. broker: every message of the request is acknowledged by the broker. queued: every message is in the publish
	// queue, in memory: a crash, or a stop while Pulsar is away, loses what is in it, up to profile.max_pending_records. Default broker.
	Ack string `yaml:"ack"`
	// RequestTimeout is how long a request may wait for the acknowledgements before it is answered 503, half of it for a topic that is not open yet.
	// Keep it below the sender's own timeout (Prometheus' remote_timeout, 30s). Default 10s.
	RequestTimeout time.Duration `yaml:"request_timeout"`
	// Dedup recognises requests that are sent again.
	Dedup Dedup `yaml:"dedup"`
	// Tenants have quotas of samples.
	Tenants Tenants `yaml:"tenants"`
	// Limits bound what one request, and all of them together, may cost.
	Limits Limits `yaml:"limits"`
	// Profile is how messages are published. Default: the library's "ops".
	Profile messaging.Profile `yaml:"profile"`

	// Tail and TailTopic are of the command line only, see Flags.
	Tail      bool   `yaml:"-"`
	TailTopic string `yaml:"-"`
}

// HTTPConfig is the server for senders.
type HTTPConfig struct {
	// Listen is the address, host:port; port 0 lets the system choose. Default 127.0.0.1:9201.
	Listen string `yaml:"listen"`
	// WebConfigFile is a web configuration file of Prometheus' exporter-toolkit: TLS, client certificates, basic authentication. Default: none.
	WebConfigFile string `yaml:"web_config_file"`
	// BearerTokens may write, each of them, and so may those of BearerTokenFile, one on each line; the file is read again every ten seconds.
	// Default: no token is asked for.
	BearerTokens    []secret.String `yaml:"bearer_tokens"`
	BearerTokenFile string          `yaml:"bearer_token_file"`
	// Senders are bound to a tenant each: what they send is that tenant's. Who is not bound may write as any tenant. Default: none.
	Senders []SenderConfig `yaml:"senders"`
}

// Dedup recognises a request that brings, byte for byte, the body of an earlier one of the same tenant: it is answered as that one is, and not
// published again.
type Dedup struct {
	// Entries bounds the requests remembered once they are settled; those under way always are. 0: none are, and a request that was not acknowledged in time is published again when it comes
	// again. Default 10000.
	Entries int `yaml:"entries"`
	// Window is how long they are remembered. Default 10m.
	Window time.Duration `yaml:"window"`
}

// Validate returns every fault of the keys.
func (d Dedup) Validate() error {
	var errs []error
	if d.Entries < 0 {
		errs = append(errs, config.Fault("entries", "must be >= 0, got %d", d.Entries))
	}
	if d.Window <= 0 {
		errs = append(errs, config.Fault("window", "must be > 0, got %s", d.Window))
	}
	return errors.Join(errs...)
}

// Limits bound requests.
type Limits struct {
	// CompressedBytes and DecodedBytes bound a body before and after decompression. Past them: 413. Defaults 10MiB and 32MiB.
	CompressedBytes config.Bytes `yaml:"compressed_bytes"`
	DecodedBytes    config.Bytes `yaml:"decoded_bytes"`
	// Series bounds the series (and metadata entries) of a request. Past it: 413. Default 50000.
	Series int `yaml:"series"`
	// LabelsPerSeries bounds the labels of a series, LabelNameBytes and LabelValueBytes each of them. Past them: 400 for the series. Defaults 128,
	// 1KiB and 64KiB.
	LabelsPerSeries int          `yaml:"labels_per_series"`
	LabelNameBytes  config.Bytes `yaml:"label_name_bytes"`
	LabelValueBytes config.Bytes `yaml:"label_value_bytes"`
	// SeriesBytes bounds a series with all that the request has of it, as protobuf. Past it: 400 for the series. A message larger than the broker's
	// maxMessageSize could not be stored. Default 1MiB.
	SeriesBytes config.Bytes `yaml:"series_bytes"`
	// MetadataFamilies bounds the metric families whose type, unit and help are remembered; later ones stay unknown. 0: none are. Default 10000.
	MetadataFamilies int `yaml:"metadata_families"`
	// MemoryBytes bounds what the series, labels, samples and so on of a request take in memory once decoded: tens of bytes each, whatever they take
	// in the body. Past it: 413. Default 32MiB, about 50000 series of 15 labels.
	MemoryBytes config.Bytes `yaml:"memory_bytes"`
	// InFlightBytes bounds the bodies, compressed and decoded, what they take in memory, and the messages they make, of all requests being handled.
	// Past it: 503, or 413 for a request that alone takes more. Default 64MiB.
	InFlightBytes config.Bytes `yaml:"in_flight_bytes"`
	// ReadTimeout bounds the reading of a request with its body. Past it: 503 and the connection is closed. Default 10s.
	ReadTimeout time.Duration `yaml:"read_timeout"`
	// Connections bounds the senders' open connections. Past it new ones wait until others are closed, at the latest after two idle minutes. 0: no
	// bound. Default 4096.
	Connections int `yaml:"connections"`
}

// DefaultConfig returns the defaults: all that is needed where Pulsar runs on this machine.
func DefaultConfig() Config {
	return Config{
		Common:         app.DefaultCommon("127.0.0.1:9202"),
		Pulsar:         messaging.DefaultConfig(),
		HTTP:           HTTPConfig{Listen: "127.0.0.1:9201"},
		Topic:          "persistent://public/default/metrics",
		Topics:         defaultTopics(),
		Format:         "json",
		Ack:            ackBroker,
		ExemplarSeries: refuseSeries,
		Dedup:          Dedup{Entries: 10_000, Window: 10 * time.Minute},
		Tenants:        Tenants{Tracked: 10_000, InFlightShare: .75},
		MessageBytes:   256 * config.KiB,
		RequestTimeout: 10 * time.Second,
		Limits: Limits{
			CompressedBytes:  10 * config.MiB,
			DecodedBytes:     32 * config.MiB,
			Series:           50_000,
			LabelsPerSeries:  128,
			LabelNameBytes:   config.KiB,
			LabelValueBytes:  64 * config.KiB,
			SeriesBytes:      config.MiB,
			MetadataFamilies: 10_000,
			MemoryBytes:      32 * config.MiB,
			InFlightBytes:    64 * config.MiB,
			ReadTimeout:      10 * time.Second,
			Connections:      4096,
		},
		Profile: messaging.Ops(),
	}
}

// Validate returns every fault of the keys of this level.
func (c Config) Validate() error {
	var errs []error
	if t, err := parseTemplate(c.Topic); err != nil {
		errs = append(errs, config.Fault("topic", "%s", err))
	} else if t.tenant {
		errs = append(errs, c.HTTP.checkTopicTenants())
	}
	if c.MessageBytes < config.KiB || c.MessageBytes > config.MiB {
		errs = append(errs, config.Fault("message_bytes", "must be from 1KiB to 1MiB, got %s", c.MessageBytes))
	}
	for i, name := range c.KeyLabels {
		if name == "" {
			errs = append(errs, config.Fault(fmt.Sprintf("key_labels[%d]", i), "must be a label's name"))
		}
	}
	if c.RequestTimeout <= 0 {
		errs = append(errs, config.Fault("request_timeout", "must be > 0, got %s", c.RequestTimeout))
	}
	if c.Profile.Routing == messaging.RouteExplicit {
		errs = append(errs, config.Fault("profile.routing", "must be key_hash or round_robin, got %q", c.Profile.Routing))
	}
	if !c.Tail { // which needs none of them
		errs = append(errs, c.HTTP.checkFiles())
	}
	return errors.Join(append(errs,
		config.CheckListen("http.listen", c.HTTP.Listen),
		config.CheckApart("http.listen", c.HTTP.Listen, "admin.listen", c.Admin.Listen),
		config.CheckOneOf("format", c.Format, formatNames()...),
		config.CheckOneOf("exemplar_series", c.ExemplarSeries, refuseSeries, acceptSeries),
		config.CheckOneOf("ack", c.Ack, ackBroker, ackQueued))...)
}

// Validate returns every fault of the limits.
func (l Limits) Validate() error {
	var errs []error
	for _, limit := range []struct {
		key   string
		value int64
	}{
		{"compressed_bytes", int64(l.CompressedBytes)},
		{"decoded_bytes", int64(l.DecodedBytes)},
		{"memory_bytes", int64(l.MemoryBytes)},
		{"series", int64(l.Series)},
		{"labels_per_series", int64(l.LabelsPerSeries)},
		{"label_name_bytes", int64(l.LabelNameBytes)},
		{"label_value_bytes", int64(l.LabelValueBytes)},
		{"series_bytes", int64(l.SeriesBytes)},
		{"read_timeout", int64(l.ReadTimeout)},
	} {
		if limit.value <= 0 {
			errs = append(errs, config.Fault(limit.key, "must be > 0"))
		}
	}
	if l.MetadataFamilies < 0 {
		errs = append(errs, config.Fault("metadata_families", "must be >= 0, got %d", l.MetadataFamilies))
	}
	if l.Connections < 0 {
		errs = append(errs, config.Fault("connections", "must be >= 0, got %d", l.Connections))
	}
	if l.DecodedBytes > config.GiB {
		errs = append(errs, config.Fault("decoded_bytes", "must be at most 1GiB, got %s", l.DecodedBytes))
	}
	if least := l.CompressedBytes + l.DecodedBytes; l.InFlightBytes < least {
		errs = append(errs, fmt.Errorf("in_flight_bytes: must be at least compressed_bytes + decoded_bytes = %s, or the largest request never gets in, got %s",
			least, l.InFlightBytes))
	}
	return errors.Join(errs...)
}
