package nightingale

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/writetest"
)

func TestFamiliesFindBySeriesName(t *testing.T) {
	f := newFamilies(10)
	require.Zero(t, f.learn("", []batch.Metadata{
		{Family: "requests", Kind: "counter"}, {Family: "latency", Kind: "histogram"}, {Family: "temperature", Kind: "gauge"}, {Family: "quantiles", Kind: "summary"},
	}))
	for name, want := range map[string]string{
		"requests": "counter", "requests_total": "counter", "latency_bucket": "histogram", "latency_sum": "histogram", "latency_count": "histogram",
		"quantiles": "summary", "quantiles_sum": "summary", "temperature": "gauge",
		"temperature_total": "", "requests_bucket": "", "other": "", "_total": "", "": "",
	} {
		got := ""
		if m := f.find("", name); m != nil {
			got = m.Kind
		}
		assert.Equal(t, want, got, name)
	}
}

func TestFamiliesAreBounded(t *testing.T) {
	f := newFamilies(2)
	assert.Equal(t, 1, f.learn("", []batch.Metadata{{Family: "a"}, {Family: "b"}, {Family: "c"}}))
	assert.Equal(t, 0, f.learn("", []batch.Metadata{{Family: "a", Help: strings.Repeat("h", 5000)}}), "a known one may change")
	assert.Len(t, f.known[familyKey{family: "a"}].Help, batch.MaxFamilyHelp+len("..."))
	assert.Equal(t, 1, newFamilies(10).learn("", []batch.Metadata{{Family: strings.Repeat("n", batch.MaxFamilyName+1)}}))
	assert.Equal(t, 1, newFamilies(0).learn("", []batch.Metadata{{Family: "a"}}))
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

// TestFamiliesAreTheTenantsOwn: what one says of its metrics does not appear in
// another's messages.
func TestFamiliesAreTheTenantsOwn(t *testing.T) {
	d := newDouble(t, nil)
	for tenant, help := range map[string]string{"bar": "of the bar", "kitchen": "of the kitchen"} {
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, &prompb.WriteRequest{Metadata: []prompb.MetricMetadata{{MetricFamilyName: "m", Help: help}}})), tenantHeader, tenant)
		require.Equal(t, http.StatusNoContent, status, text)
	}
	for _, tenant := range []string{"bar", "kitchen", ""} {
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.OneSeries("__name__", "m"))), tenantHeader, tenant)
		require.Equal(t, http.StatusNoContent, status, text)
	}
	published := d.published()
	require.Len(t, published, 3)
	assert.Contains(t, published[0], "of the bar")
	assert.Contains(t, published[1], "of the kitchen")
	assert.NotContains(t, published[2], "help")
}
