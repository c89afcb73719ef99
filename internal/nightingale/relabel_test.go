package nightingale

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/relabel"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// loadText loads a configuration file of that text.
func loadText(t *testing.T, text string, environ ...string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nightingale.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	loaded, err := config.Load(config.Spec[Config]{
		Name: "nightingale", Defaults: DefaultConfig, Args: []string{"-config.file", path}, Environ: environ, Usage: new(bytes.Buffer),
	})
	return loaded.Config, err
}

const rulesText = `
relabel_configs:
  - {source_labels: [job, __name__], regex: '(api|web);.*|.*;up', action: keep}
  - {source_labels: [__name__, instance], regex: up;c, action: drop}
  - {action: labeldrop, regex: replica}
  - source_labels: [job, instance]
    regex: '(.+);(.+)'
    target_label: where
    replacement: '$${1}@$2'
  - {source_labels: [where], regex: web.*, action: Drop}
  - {source_labels: [strip], regex: "yes", target_label: __name__, replacement: ''}
`

func TestRulesFromTheFile(t *testing.T) {
	cfg, err := loadText(t, rulesText)
	require.NoError(t, err)
	require.Len(t, cfg.RelabelConfigs, 6)
	assert.Equal(t, ";", cfg.RelabelConfigs[2].Separator)
	assert.Equal(t, "${1}@$2", cfg.RelabelConfigs[3].Replacement)

	loaded, err := load("NIGHTINGALE_KEY_LABELS=job,instance",
		`NIGHTINGALE_RELABEL_CONFIGS=[{action: labelkeep, regex: "__name__|job"}]`)
	require.NoError(t, err)
	assert.Equal(t, []string{"job", "instance"}, loaded.Config.KeyLabels)
	assert.Equal(t, "labelkeep", loaded.Config.RelabelConfigs[0].Action)
}

func TestRulesFaults(t *testing.T) {
	for text, says := range map[string]string{
		"relabel_configs: [{regex: '('}]":                                             "relabel_configs[0].regex: must be a regular expression",
		"relabel_configs: [{target_label: a}, {action: turn}]":                        `relabel_configs[1].action: unknown relabel action "turn"`,
		"relabel_configs: [{action: hashmod, target_label: a}]":                       "relabel_configs[0]: relabel configuration for hashmod requires",
		"relabel_configs: [{action: replace}]":                                        "relabel_configs[0]: relabel configuration for replace action requires",
		"relabel_configs: [{sourcelabels: [a]}]":                                      "relabel_configs[0].sourcelabels: is not a known key; did you mean relabel_configs[0].source_labels",
		"key_labels: ['']":                                                            "key_labels[0]: must be a label's name",
		"message_bytes: 2MiB":                                                         "message_bytes: must be from 1KiB to 1MiB",
		"topic: 'persistent://public/{tenant/x'":                                      "topic: must close the brace",
		"topic: 'persistent://public/{user}/x'":                                       "topic: may contain only {tenant}, {name} and {label.NAME}",
		"topic: '{tenant}://public/default/x'":                                        "topic: must be persistent://tenant/namespace/name",
		"topics: {max_topics: 0}":                                                     "topics.max_topics: must be > 0",
		"topics: {default_tenant: a/b}":                                               "topics.default_tenant: must be letters",
		"topics: {overflow_topic: 'persistent://public/default/{name}'}":              "topics.overflow_topic: must not have placeholders",
		"topics: {idle_after: 0s}":                                                    "topics.idle_after: must be at least 1s",
		"relabel_configs: [{action: labeldrop, regex: a, source_labels: [b]}]":        "relabel_configs[0]: labeldrop action requires only 'regex'",
		"relabel_configs: [{action: keepequal, source_labels: [a], target_label: b}]": "",
	} {
		_, err := loadText(t, text)
		if says == "" {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, says, text)
		}
	}
}

// TestFilteredSamplesCountAsWritten is line 4 of the receiver checklist.
func TestFilteredSamplesCountAsWritten(t *testing.T) {
	cfg, err := loadText(t, rulesText)
	require.NoError(t, err)
	d := newDouble(t, func(c *Config) { *c = patient(cfg) })
	req := new(prompb.WriteRequest)
	for _, labels := range [][]string{
		{"__name__", "up", "instance", "b", "job", "db", "replica", "1"},
		{"__name__", "up", "instance", "c", "job", "api"},                  // drop
		{"__name__", "down", "instance", "c", "job", "db"},                 // not kept
		{"__name__", "down", "instance", "d", "job", "api"},                // relabelled
		{"__name__", "down", "instance", "e", "job", "web"},                // relabel drops
		{"__name__", "up", "job", "api", "strip", "yes"},                   // nameless
		{"__name__", "rest", "instance", "f", "job", "api", "where", "f1"}, // overwritten
	} {
		req.Timeseries = append(req.Timeseries, writetest.OneSeries(labels...).Timeseries...)
	}
	status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, req)))
	assert.Equal(t, http.StatusNoContent, status, text)
	var payloads []string
	for _, m := range d.published() {
		_, payload, _ := strings.Cut(m, " ")
		payloads = append(payloads, payload)
	}
	assert.Equal(t, []string{
		`{"name":"up","labels":{"instance":"b","job":"db","where":"db@b"},"timestamp":1,"value":1}`,
		`{"name":"down","labels":{"instance":"d","job":"api","where":"api@d"},"timestamp":1,"value":1}`,
		`{"name":"rest","labels":{"instance":"f","job":"api","where":"api@f"},"timestamp":1,"value":1}`,
	}, payloads)
	value := func(kind, result string) float64 {
		return testutil.ToFloat64(d.metrics.samples.WithLabelValues(kind, result))
	}
	assert.InDelta(t, 3, value("sample", "written"), 0)
	assert.InDelta(t, 4, value("sample", "filtered"), 0)
	for reason, n := range map[string]float64{"relabel": 3, "nameless": 1} {
		assert.InDelta(t, n, testutil.ToFloat64(d.metrics.filtered.WithLabelValues(reason)), 0, reason)
	}
}

func TestAdapterFormatCountsWhatItHasNoPlaceFor(t *testing.T) {
	d := newDouble(t, func(c *Config) { c.Format = "json-kafka-adapter" })
	status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Everything())))
	assert.Equal(t, http.StatusNoContent, status, text)
	assert.Len(t, d.published(), 3)
	assert.InDelta(t, 4, testutil.ToFloat64(d.metrics.filtered.WithLabelValues("format")), 0)
	assert.InDelta(t, 0, testutil.ToFloat64(d.metrics.samples.WithLabelValues("histogram", "written")), 0)
}

// TestRelabelledSeriesAreEncodedAnew: the body's bytes hold the old labels.
func TestRelabelledSeriesAreEncodedAnew(t *testing.T) {
	cfg := DefaultConfig()
	cfg.RelabelConfigs = []relabel.Config{{Action: "labeldrop", Regex: "job", Separator: ";", Replacement: "$1"}}
	for _, name := range []string{"packed", "protobuf"} {
		b := decodedSeries(t, writetest.OneSeries("__name__", "up", "job", "x"))
		old := b.Series[0].Key
		_, _ = relabel.New(cfg.RelabelConfigs, cfg.KeyLabels, format.Find(cfg.Format).SamplesOnly).Apply(b, nil)
		assert.NotEqual(t, old, b.Series[0].Key)
		var part prompb.WriteRequest
		var out format.Messages
		format.Find(name).Encode(b, new(format.Packing), &out)
		payload := out.Records[0].Payload
		if name == "protobuf" {
			part.Timeseries = make([]prompb.TimeSeries, 1)
			require.NoError(t, part.Timeseries[0].Unmarshal(payload))
			assert.Equal(t, []prompb.Label{{Name: "__name__", Value: "up"}}, part.Timeseries[0].Labels)
			continue
		}
		lines, err := writetest.ReadPacked(payload)
		require.NoError(t, err)
		assert.Contains(t, lines[0], `{__name__="up"} `)
	}
}

func TestKeyLabelsChooseTheKey(t *testing.T) {
	cfg := DefaultConfig()
	cfg.KeyLabels = []string{"job", "__name__"}
	keys := func(labels ...string) uint64 {
		b := decodedSeries(t, writetest.OneSeries(labels...))
		_, _ = relabel.New(cfg.RelabelConfigs, cfg.KeyLabels, format.Find(cfg.Format).SamplesOnly).Apply(b, nil)
		return b.Series[0].Key
	}
	same := keys("__name__", "up", "instance", "a", "job", "x")
	assert.Equal(t, same, keys("__name__", "up", "instance", "b", "job", "x", "zone", "1"))
	assert.NotEqual(t, same, keys("__name__", "up", "instance", "a", "job", "y"))
	assert.NotEqual(t, same, keys("__name__", "up", "instance", "a"))
}

func BenchmarkRelabel(b *testing.B) {
	cfg := DefaultConfig()
	cfg.RelabelConfigs = []relabel.Config{{Action: "labeldrop", Regex: "label_09", Separator: ";", Replacement: "$1"}}
	r := relabel.New(cfg.RelabelConfigs, cfg.KeyLabels, format.Find(cfg.Format).SamplesOnly)
	body, limits := writetest.Marshal(b, writetest.Request(2000, 10)), remotewrite.DefaultLimits()
	space := new(batch.Batch)
	var scratch []byte
	b.ReportAllocs()
	for b.Loop() {
		space.Reset()
		require.NoError(b, remotewrite.DecodeV1(space, body, limits))
		_, scratch = remotewrite.Validate(space, limits, scratch)
		_, scratch = r.Apply(space, scratch)
	}
	b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "samples/s")
}

// decodedSeries returns the valid series of a request.
func decodedSeries(t *testing.T, req *prompb.WriteRequest) *batch.Batch {
	t.Helper()
	b := new(batch.Batch)
	require.NoError(t, remotewrite.DecodeV1(b, writetest.Marshal(t, req), remotewrite.DefaultLimits()))
	_, _ = remotewrite.Validate(b, remotewrite.DefaultLimits(), nil)
	return b
}
