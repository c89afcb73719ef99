package nightingale

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/prompb"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/relabel"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"

	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPackedTellsOfFamilies: what 1.0 requests say of a family is put into its series,
// and what 2.0 requests say is kept, too long texts but cut.
func TestPackedTellsOfFamilies(t *testing.T) {
	d := newDouble(t, func(c *Config) { c.Format = "packed" })
	about := &prompb.WriteRequest{Metadata: []prompb.MetricMetadata{{Type: prompb.MetricMetadata_GAUGE, MetricFamilyName: "up", Help: "Is it up?", Unit: "bool"}}}
	require.Equal(t, 204, d.v1(t, about).status)
	assert.Empty(t, d.published(), "a request has no place for it without a series")
	require.Equal(t, 204, d.v1(t, writetest.OneSeries("__name__", "up", "job", "a")).status)
	long := writetest.V2Of("__name__", "long")
	long.Symbols = append(long.Symbols, strings.Repeat("h", 2000))
	long.Timeseries[0].Metadata = writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_INFO, HelpRef: uint32(len(long.Symbols) - 1)}
	require.Equal(t, 204, d.v2(t, long).status)
	var got []string
	for _, payload := range d.payloadsBehind(2) {
		lines, err := writetest.ReadPacked([]byte(payload))
		require.NoError(t, err)
		got = append(got, lines...)
	}
	assert.Equal(t, []string{
		`{__name__="up",job="a"} (2 "bool" "Is it up?") 1 since 0: 1`,
		`{__name__="long"} (6 "" "` + strings.Repeat("h", batch.MaxFamilyHelp) + `...") 1 since 0: 1`,
	}, got)
}

// TestPackedBehindRules: relabelling rules see the labels, and what they change
// is in the messages; what they leave is as it was.
func TestPackedBehindRules(t *testing.T) {
	for version, request := range []func(*double) answer{
		func(d *double) answer {
			req := new(prompb.WriteRequest)
			for _, labels := range [][]string{{"__name__", "up", "job", "a", "zone", "x"}, {"__name__", "down", "job", "a"}, {"__name__", "up", "job", "keep"}} {
				req.Timeseries = append(req.Timeseries, writetest.OneSeries(labels...).Timeseries...)
			}
			return d.v1(t, req)
		},
		func(d *double) answer {
			req := writetest.V2Of("__name__", "up", "job", "a", "zone", "x", "down", "keep")
			all, refs := req.Timeseries[0], req.Timeseries[0].LabelsRefs
			req.Timeseries = nil
			for _, labels := range [][]uint32{refs[:6], {refs[0], refs[6], refs[2], refs[3]}, {refs[0], refs[1], refs[2], refs[7]}} {
				one := all
				one.LabelsRefs = labels
				req.Timeseries = append(req.Timeseries, one)
			}
			return d.v2(t, req)
		},
	} {
		d := newDouble(t, func(c *Config) {
			c.Format = "packed"
			var drop, rule relabel.Config
			drop.SetDefaults()
			drop.SourceLabels, drop.Regex, drop.Action = []string{"__name__"}, "down", "drop"
			rule.SetDefaults()
			rule.SourceLabels, rule.Regex, rule.TargetLabel, rule.Replacement = []string{"job"}, "a", "job", "changed"
			c.RelabelConfigs = []relabel.Config{drop, rule}
		})
		require.Equal(t, 204, request(d).status)
		var got []string
		for _, payload := range d.payloadsBehind(2) {
			lines, err := writetest.ReadPacked([]byte(payload))
			require.NoError(t, err)
			got = append(got, lines...)
		}
		assert.Equal(t, []string{
			`{__name__="up",job="changed",zone="x"} (0 "" "") 1 since 0: 1`, `{__name__="up",job="keep"} (0 "" "") 1 since 0: 1`,
		}, got, "version %d", version+1)
	}
}

// payloadsBehind returns the messages without their keys of n bytes.
func (d *double) payloadsBehind(n int) (all []string) {
	for _, m := range d.published() {
		all = append(all, m[n:])
	}
	return all
}

// TestTextsOfMessagesAreBoundedInMemory: the labels of exemplars get into the symbols
// only when they are encoded, and no further than the bound.
func TestTextsOfMessagesAreBoundedInMemory(t *testing.T) {
	req := writetest.OneSeries("__name__", "up")
	for i := range 2000 {
		req.Timeseries[0].Exemplars = append(req.Timeseries[0].Exemplars, prompb.Exemplar{Labels: []prompb.Label{{Name: "id", Value: strconv.Itoa(i)}}, Timestamp: 1})
	}
	d := newDouble(t, func(c *Config) {
		c.Format, c.Limits.MemoryBytes = "packed", 160<<10
	})
	got := d.v1(t, req)
	assert.Equal(t, 413, got.status, got.text)
	assert.Empty(t, d.published())
	require.Equal(t, 204, d.v1(t, writetest.OneSeries("__name__", "up")).status)
}

// TestSeriesLargerThanAMessage: the broker would not store it, whatever else the
// request has is written and counted.
func TestSeriesLargerThanAMessage(t *testing.T) {
	req := writetest.Request(3, 3)
	for len(req.Timeseries[1].Samples) < 100_000 {
		req.Timeseries[1].Samples = append(req.Timeseries[1].Samples, prompb.Sample{Value: 1, Timestamp: 5})
	}
	d := newDouble(t, nil)
	status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, req)))
	assert.Equal(t, http.StatusBadRequest, status)
	assert.Contains(t, text, "1 of 3 series are invalid")
	assert.Contains(t, text, "at most 1MiB are allowed")
	assert.Len(t, d.published(), 2)
}

// TestLabelsWithoutAValueAreDropped: the series is the same as one without them, to
// its key, in every format.
func TestLabelsWithoutAValueAreDropped(t *testing.T) {
	want := writetest.OneSeries("__name__", "m", "job", "api")
	for _, labels := range [][]string{
		{"__name__", "m", "a", "", "job", "api"},
		{"job", "api", "z", "", "__name__", "m", "b", ""},
		{"__name__", "m", "job", "", "job", "api"},
	} {
		for _, format := range format.Names() {
			published := func(req *prompb.WriteRequest) []string {
				d := newDouble(t, func(c *Config) { c.Format = format })
				status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, req)))
				require.Equal(t, http.StatusNoContent, status, text)
				return d.published()
			}
			assert.Equal(t, published(want), published(writetest.OneSeries(labels...)), "%s of %q", format, labels)
		}
	}
	d := newDouble(t, nil)
	for _, labels := range [][]string{{"__name__", "", "a", ""}, {"a", ""}, {"__name__", "m", "", ""}} {
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.OneSeries(labels...))))
		assert.Equal(t, http.StatusBadRequest, status, "%q: %s", labels, text)
	}
}
