package remotewrite

import (
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/httpserver"
)

// Limits bound requests.
type Limits struct {
	// CompressedBytes is the maximum size of a body as it arrives. Beyond it: 413. Default 10MiB.
	CompressedBytes config.Bytes `yaml:"compressed_bytes"`
	// DecodedBytes is the maximum size of a decompressed body, and of a 2.0 body with all its
	// references expanded. Beyond it: 413. At most 1GiB. Default 32MiB.
	DecodedBytes config.Bytes `yaml:"decoded_bytes"`
	// Series is the maximum number of series, and of metadata entries, in a request. Beyond it:
	// 413. Default 50000.
	Series int `yaml:"series"`
	// LabelsPerSeries is the maximum number of labels of a series, and of an exemplar. Beyond it: 400
	// for the series. Default 128.
	LabelsPerSeries int `yaml:"labels_per_series"`
	// LabelNameBytes is the maximum length of a label's name. Beyond it: 400 for the series. Default
	// 1KiB.
	LabelNameBytes config.Bytes `yaml:"label_name_bytes"`
	// LabelValueBytes is the maximum length of a label's value. Beyond it: 400 for the series. Default
	// 64KiB.
	LabelValueBytes config.Bytes `yaml:"label_value_bytes"`
	// SeriesBytes is the maximum size of a series with all its samples in the request, or of a
	// metadata entry, as protobuf. A larger one is invalid, and the request is answered 400. The
	// broker could not store a message larger than its maxMessageSize. Default 1MiB.
	SeriesBytes config.Bytes `yaml:"series_bytes"`
	// MetadataFamilies is the number of metric families whose type, unit and help Nightingale
	// remembers. If there are more, it evicts entries, mostly of the tenant with the most. 0: it
	// remembers no metadata. Default 10000.
	MetadataFamilies int `yaml:"metadata_families"`
	// MemoryBytes is the maximum memory of the decoded series, labels, samples and other elements of
	// a request. Each takes tens of bytes, even if it is smaller in the body. Beyond it: 413.
	// Default 32MiB, about 50000 series of 15 labels.
	MemoryBytes config.Bytes `yaml:"memory_bytes"`
	// PublishedBytes is the maximum estimated size of all messages of a request together. JSON repeats
	// the labels of a series with every sample. Beyond it: 413. Default 1GiB.
	PublishedBytes config.Bytes `yaml:"published_bytes"`
	// InFlightBytes is the maximum memory of all requests in flight together: compressed and
	// decoded bodies, decoded elements, and messages. Beyond it: 503, or 413 for a request that
	// alone takes more. Messages take 8 MiB at a time, so decoded_bytes + memory_bytes + 16MiB are
	// enough for any request. Default 96MiB.
	InFlightBytes config.Bytes `yaml:"in_flight_bytes"`
	// ReadTimeout is the maximum time for reading a request with its body. Beyond it: 503, and the
	// connection is closed. Default 10s.
	ReadTimeout time.Duration `yaml:"read_timeout"`
	// Connections is the maximum number of open connections of senders. Further ones wait until
	// others are closed; an idle connection is closed after two minutes. 0: no bound. Default 4096.
	Connections int `yaml:"connections"`
}

// DefaultLimits returns the defaults.
func DefaultLimits() Limits {
	return Limits{
		CompressedBytes:  10 * config.MiB,
		DecodedBytes:     32 * config.MiB,
		Series:           50_000,
		LabelsPerSeries:  128,
		LabelNameBytes:   config.KiB,
		LabelValueBytes:  64 * config.KiB,
		SeriesBytes:      config.MiB,
		MetadataFamilies: 10_000,
		MemoryBytes:      32 * config.MiB,
		PublishedBytes:   config.GiB,
		InFlightBytes:    96 * config.MiB,
		ReadTimeout:      10 * time.Second,
		Connections:      4096,
	}
}

// Validate returns every fault of the limits.
func (l Limits) Validate() error {
	least := l.CompressedBytes + l.DecodedBytes
	return errors.Join(
		config.CheckPositive("compressed_bytes", l.CompressedBytes),
		config.CheckPositive("decoded_bytes", l.DecodedBytes),
		config.CheckPositive("memory_bytes", l.MemoryBytes),
		config.CheckPositive("published_bytes", l.PublishedBytes),
		config.CheckPositive("series", l.Series),
		config.CheckPositive("labels_per_series", l.LabelsPerSeries),
		config.CheckPositive("label_name_bytes", l.LabelNameBytes),
		config.CheckPositive("label_value_bytes", l.LabelValueBytes),
		config.CheckPositive("series_bytes", l.SeriesBytes),
		config.CheckPositive("read_timeout", l.ReadTimeout),
		config.Require(l.MetadataFamilies >= 0, "metadata_families", "must be >= 0, got %d", l.MetadataFamilies),
		config.Require(l.Connections >= 0, "connections", "must be >= 0, got %d", l.Connections),
		config.Require(l.DecodedBytes <= config.GiB, "decoded_bytes", "must be at most 1GiB, got %s", l.DecodedBytes),
		config.Require(l.InFlightBytes >= least, "in_flight_bytes",
			"must be at least compressed_bytes + decoded_bytes = %s, so that the largest request fits, got %s",
			least, l.InFlightBytes),
	)
}

// Body returns the limits of compressed bodies.
func (l Limits) Body() httpserver.BodyLimits {
	return httpserver.BodyLimits{Bytes: int64(l.CompressedBytes), Reason: "compressed_bytes", Timeout: l.ReadTimeout}
}
