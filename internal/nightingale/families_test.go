package nightingale

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/tenant"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

func TestFamiliesFindBySeriesName(t *testing.T) {
	f := newFamilies(10)
	require.Equal(t, batch.MetadataCounts{Remembered: 4}, f.learn("", []batch.Metadata{
		{Family: "requests", Type: batch.TypeCounter}, {Family: "latency", Type: batch.TypeHistogram}, {Family: "temperature", Type: batch.TypeGauge}, {Family: "quantiles", Type: batch.TypeSummary},
	}))
	for name, want := range map[string]string{
		"requests": "counter", "requests_total": "counter", "latency_bucket": "histogram", "latency_sum": "histogram", "latency_count": "histogram",
		"quantiles": "summary", "quantiles_sum": "summary", "temperature": "gauge",
		"temperature_total": "", "requests_bucket": "", "other": "", "_total": "", "": "",
	} {
		got := ""
		if m := familyOf(f.known[""], name); m != nil {
			got = m.Type.String()
		}
		assert.Equal(t, want, got, name)
	}
}

func TestFamiliesAreBounded(t *testing.T) {
	f := newFamilies(2)
	assert.Equal(t, batch.MetadataCounts{Remembered: 2}, f.learn("", []batch.Metadata{{Family: "a"}, {Family: "b"}}))
	assert.Equal(t, batch.MetadataCounts{Remembered: 1}, f.learn("", []batch.Metadata{{Family: "a", Help: strings.Repeat("h", 5000)}}), "a known one may change")
	assert.Len(t, f.known[""]["a"].Help, batch.MaxFamilyHelp+len("..."))
	assert.Equal(t, batch.MetadataCounts{Remembered: 1, Evicted: 1}, f.learn("", []batch.Metadata{{Family: "c"}}))
	assert.Len(t, f.known[""], 2)
	assert.Contains(t, f.known[""], "c")
	assert.Equal(t, batch.MetadataCounts{Ignored: 1}, newFamilies(10).learn("", []batch.Metadata{{Family: strings.Repeat("n", batch.MaxFamilyName+1)}}))
	assert.Equal(t, batch.MetadataCounts{Ignored: 1}, newFamilies(0).learn("", []batch.Metadata{{Family: "a"}}))
}

// TestATenantCannotFillTheFamilies: the metadata of others stays known, whatever one tenant sends.
func TestATenantCannotFillTheFamilies(t *testing.T) {
	const limit = 100
	f := newFamilies(limit)
	flood := func() {
		for i := range 5 * limit {
			f.learn("flood", []batch.Metadata{{Family: fmt.Sprint("m", i)}})
		}
	}
	flood()
	var own []batch.Metadata
	for i := range limit / 3 {
		own = append(own, batch.Metadata{Family: fmt.Sprint("own", i)})
	}
	for _, tenant := range []string{"bar", "kitchen"} {
		assert.Equal(t, len(own), f.learn(tenant, own).Remembered)
		flood()
	}
	for _, tenant := range []string{"bar", "kitchen"} {
		assert.Len(t, f.known[tenant], len(own), tenant)
	}
	assert.Len(t, f.known["flood"], limit-2*len(own))
}

func TestMessagesTellTypeUnitAndHelp(t *testing.T) {
	d := newDouble(t, nil)
	status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, &prompb.WriteRequest{Metadata: []prompb.MetricMetadata{
		{MetricFamilyName: "sent", Type: prompb.MetricMetadata_COUNTER, Unit: "bytes", Help: `All that was "sent".`},
		{MetricFamilyName: "odd", Type: prompb.MetricMetadata_UNKNOWN, Help: "?"},
	}})))
	require.Equal(t, http.StatusNoContent, status, text)
	for _, name := range []string{"sent_total", "odd", "untold"} {
		status, text, _ = d.post(t, writetest.Compress(writetest.Marshal(t, writetest.OneSeries("__name__", name))))
		require.Equal(t, http.StatusNoContent, status, text)
	}
	var payloads []string
	for _, m := range d.published() {
		_, payload, _ := strings.Cut(m, " ")
		payloads = append(payloads, payload)
	}
	assert.Equal(t, []string{
		`{"name":"sent_total","labels":{},"type":"counter","unit":"bytes","help":"All that was \"sent\".","timestamp":1,"value":1}`,
		`{"name":"odd","labels":{},"help":"?","timestamp":1,"value":1}`,
		`{"name":"untold","labels":{},"timestamp":1,"value":1}`,
	}, payloads)
}

// TestMetadataThatIsNotUTF8: it would make messages unreadable. The sender hears of it, and the
// samples are written.
func TestMetadataThatIsNotUTF8(t *testing.T) {
	first := writetest.OneSeries("__name__", "m")
	first.Metadata = []prompb.MetricMetadata{{MetricFamilyName: "m", Help: "\xff"}, {MetricFamilyName: "good", Help: "h"}, {MetricFamilyName: "u", Unit: "\xff"}}
	second := writetest.V2Of("__name__", "m")
	second.Symbols = append(second.Symbols, "\xff help")
	second.Timeseries[0].Metadata.HelpRef = uint32(len(second.Symbols) - 1)
	for _, format := range []string{"json", "packed"} {
		for name, body := range map[string][]byte{"1.0": writetest.Marshal(t, first), "2.0": writetest.MarshalV2(t, second)} {
			d := newDouble(t, func(cfg *Config) { cfg.Format = format })
			var headers []string
			if name == "2.0" {
				headers = []string{"Content-Type", "application/x-protobuf;proto=io.prometheus.write.v2.Request"}
			}
			status, text, header := d.post(t, writetest.Compress(body), headers...)
			assert.Equal(t, http.StatusBadRequest, status)
			if name == "2.0" {
				assert.Equal(t, "1", header.Get("X-Prometheus-Remote-Write-Samples-Written"))
				assert.Equal(t, "1 metadata entries are invalid, the others were written\nmetadata of \"m\" is not UTF-8\n", text)
			} else {
				assert.Equal(t, "2 metadata entries are invalid, the others were written\nmetadata of \"m\" is not UTF-8\nmetadata of \"u\" is not UTF-8\n", text)
			}
			assert.Len(t, d.published(), 1)
			assert.NotContains(t, d.published()[0], "\xff help")
			assert.Positive(t, testutil.ToFloat64(d.metrics.metadata.WithLabelValues("rejected")))
		}
	}
}

// TestFamiliesAreTheTenantsOwn: what one says of its metrics does not appear in
// another's messages.
func TestFamiliesAreTheTenantsOwn(t *testing.T) {
	d := newDouble(t, nil)
	for name, help := range map[string]string{"bar": "of the bar", "kitchen": "of the kitchen"} {
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, &prompb.WriteRequest{Metadata: []prompb.MetricMetadata{{MetricFamilyName: "m", Help: help}}})), tenant.Header, name)
		require.Equal(t, http.StatusNoContent, status, text)
	}
	for _, name := range []string{"bar", "kitchen", ""} {
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.OneSeries("__name__", "m"))), tenant.Header, name)
		require.Equal(t, http.StatusNoContent, status, text)
	}
	published := d.published()
	require.Len(t, published, 3)
	assert.Contains(t, published[0], "of the bar")
	assert.Contains(t, published[1], "of the kitchen")
	assert.NotContains(t, published[2], "help")
}
