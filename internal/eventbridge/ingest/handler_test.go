package ingest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
)

// TestEveryModeIsStored: with its key, time and properties.
func TestEveryModeIsStored(t *testing.T) {
	d := newDouble(t, nil)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, test := range []struct {
		bus     string
		headers []string
		body    string
		answer  string
		payload string
		key     string
		hops    string
	}{
		{"orders", []string{"Content-Type", "application/cloudevents+json"}, ` {` + attributes + ` ,"data" : {"a":1}} `, `{"id":"A1"}`, `{` + attributes + `,"data":{"a":1}}`, "/s\nA1", ""},
		{"orders", []string{"Content-Type", "application/cloudevents+json; charset=UTF-8", "Aviary-Hops", "3"}, `{` + attributes + `,"partitionkey":"k"}`, `{"id":"A1"}`, `{` + attributes + `,"partitionkey":"k"}`, "k", "3"},
		{"orders", []string{"Content-Type", "application/json", "ce-id", "A1", "ce-source", "/s", "ce-type", "t", "ce-specversion", "1.0"}, `[1]`, `{"id":"A1"}`, `{` + attributes + `,"datacontenttype":"application/json","data":[1]}`, "/s\nA1", ""},
		{"orders", []string{"Content-Type", "application/cloudevents-batch+json", "traceparent", parent}, `[{` + attributes + `}]`, `[{"status":202}]`, `{` + attributes + `,"traceparent":"` + parent + `"}`, "/s\nA1", ""},
		{"plain", []string{"Content-Type", "application/json"}, `{"kind":"t","id":"A1"}`, `{"id":"A1"}`, "", "/shop\nA1", ""},
		{"plain", []string{"Content-Type", "application/json; charset=utf8"}, `{"kind":"t","id":"A1"}`, `{"id":"A1"}`, "", "/shop\nA1", ""},
		{"plain", []string{"Content-Type", "application/json;charset=US-ASCII"}, `{"kind":"t","id":"A1"}`, `{"id":"A1"}`, "", "/shop\nA1", ""},
		{"orders", []string{"Content-Type", "application/json; charset=utf8", "ce-id", "A1", "ce-source", "/s", "ce-type", "t", "ce-specversion", "1.0"}, `[1]`, `{"id":"A1"}`, "", "/s\nA1", ""},
		{"orders", []string{"Content-Type", "application/cloudevents-batch+json"}, `[]`, `[]`, "", "", ""},
	} {
		topic := model.Topics{Namespace: namespace}.Events(test.bus)
		before := len(d.stored(topic))
		r := d.post(t, test.bus, text(test.body), test.headers...)
		require.Equal(t, http.StatusAccepted, r.status, r.body)
		assert.Equal(t, test.answer, r.body)
		records := d.stored(topic)[before:]
		if test.key == "" {
			assert.Empty(t, records)
			continue
		}
		require.Len(t, records, 1)
		if test.payload != "" {
			assert.Equal(t, []byte(test.payload), records[0].Payload)
		}
		assert.Equal(t, test.key, records[0].Key)
		assert.Equal(t, test.hops, records[0].Properties["hops"])
		assert.NotContains(t, records[0].Properties, "tenant")
	}
	at := time.Date(2026, 11, 22, 17, 0, 0, 5e8, time.UTC)
	d.post(t, "orders", text(`{`+attributes+`,"time":"2026-11-22T17:00:00.5Z"}`), "Content-Type", event.MediaType)
	d.post(t, "orders", text(`{`+attributes+`,"time":"1969-11-22T17:00:00.5Z"}`), "Content-Type", event.MediaType)
	records := d.stored(orders)
	assert.True(t, records[len(records)-2].EventTime.Equal(at))
	assert.True(t, records[len(records)-1].EventTime.IsZero(), "before 1970 there is none")
	assert.Equal(t, []string{orders, model.Topics{Namespace: namespace}.Events("plain")}, d.opened, "each topic once")
}

func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// TestBadInput: each with its answer, and nothing stored or charged.
func TestBadInput(t *testing.T) {
	d := newDouble(t, func(c *Config) {
		c.Limits.BodyBytes, c.Limits.DecodedBytes, c.Limits.BatchEvents = 2*config.MiB, 2*config.MiB, 3
	})
	const ce, batch, json = event.MediaType, event.BatchMediaType, "application/json"
	with := func(more string) string { return `{` + attributes + `,` + more + `}` }
	for _, test := range []struct {
		status  int
		reason  string
		bus     string
		headers []string
		body    string
	}{
		{400, "not_json", "orders", []string{"Content-Type", ce}, `{`},
		{400, "not_json", "orders", []string{"Content-Type", ce}, ``},
		{400, "not_json", "orders", []string{"Content-Type", ce}, `id=A1`},
		{400, "not_json", "orders", []string{"Content-Type", batch}, `[{` + attributes + `}`},
		{400, "not_an_object", "orders", []string{"Content-Type", ce}, `[{` + attributes + `}]`},
		{400, "not_an_object", "orders", []string{"Content-Type", batch}, `{` + attributes + `}`},
		{400, "missing_attribute", "orders", []string{"Content-Type", ce}, `{"specversion":"1.0","id":"A1","source":"/s"}`},
		{400, "invalid_attribute", "orders", []string{"Content-Type", ce}, `{"specversion":"1.0","id":5,"source":"/s","type":"t"}`},
		{400, "invalid_attribute", "orders", []string{"Content-Type", ce}, `{"specversion":"0.3","id":"5","source":"/s","type":"t"}`},
		{400, "duplicate_key", "orders", []string{"Content-Type", ce}, with(`"id":"A2"`)},
		{400, "duplicate_key", "orders", []string{"Content-Type", ce}, with(`"data":{"a":[{"b":1,"\u0062":1}]}`)},
		{400, "too_deep", "orders", []string{"Content-Type", ce}, with(`"data":` + nested(10_000))},
		{400, "too_deep", "orders", []string{"Content-Type", batch}, `[` + with(`"data":`+nested(10_000)) + `]`},
		{400, "too_many_values", "orders", []string{"Content-Type", ce}, with(`"data":[` + strings.Repeat("1,", 100_000) + `1]`)},
		{400, "invalid_utf8", "orders", []string{"Content-Type", ce}, with("\"data\":\"\xff\"")},
		{400, "invalid_utf8", "orders", []string{"Content-Type", ce}, with(`"data":"\ud800"`)},
		{400, "invalid_data", "orders", []string{"Content-Type", ce}, with(`"data_base64":"?"`)},
		{400, "number_out_of_range", "orders", []string{"Content-Type", ce}, with(`"data":1e12345678901`)},
		{400, "missing_attribute", "orders", []string{"Content-Type", json, "ce-id", "A1"}, `{}`},
		{400, "invalid_header", "orders", []string{"Content-Type", json, "ce-id", "A1", "ce-id", "A2", "ce-source", "/s", "ce-type", "t", "ce-specversion", "1.0"}, `{}`},
		{400, "not_json", "orders", []string{"Content-Type", json, "ce-id", "A1", "ce-source", "/s", "ce-type", "t", "ce-specversion", "1.0"}, `{`},
		{400, "hops", "orders", []string{"Content-Type", ce, "Aviary-Hops", "-1"}, with(`"data":1`)},
		{400, "hops", "orders", []string{"Content-Type", ce, "Aviary-Hops", "1", "Aviary-Hops", "1"}, with(`"data":1`)},
		{400, "content_encoding", "orders", []string{"Content-Type", ce, "Content-Encoding", "gzip"}, with(`"data":1`)},
		{415, "content_encoding", "orders", []string{"Content-Type", ce, "Content-Encoding", "zstd"}, with(`"data":1`)},
		{400, "content_encoding", "orders", []string{"Content-Type", ce, "Content-Encoding", "gzip"}, with(`"data":1`)},
		{404, "unknown_bus", "none", []string{"Content-Type", ce}, with(`"data":1`)},
		{404, "unknown_bus", strings.Repeat("x", 500), []string{"Content-Type", ce}, with(`"data":1`)},
		{413, "body_bytes", "orders", []string{"Content-Type", ce}, strings.Repeat(" ", 10<<20)},
		{413, "event_too_large", "orders", []string{"Content-Type", ce}, with(`"data":"` + strings.Repeat("x", 1<<20) + `"`)},
		{413, "event_too_large", "strict", []string{"Content-Type", ce}, with(`"data":"` + strings.Repeat("x", 1<<10) + `"`)},
		{413, "batch_too_large", "orders", []string{"Content-Type", batch}, `[1,2,3,4]`},
		{415, "content_type", "orders", nil, with(`"data":1`)},
		{415, "content_type", "orders", []string{"Content-Type", "text/plain"}, with(`"data":1`)},
		{415, "content_type", "orders", []string{"Content-Type", "application/x-www-form-urlencoded"}, "a=b"},
		{415, "content_type", "orders", []string{"Content-Type", "application/cloudevents+avro"}, "x"},
		{415, "content_type", "orders", []string{"Content-Type", ce + "; charset=utf-16"}, "x"},
		{415, "content_type", "orders", []string{"Content-Type", ce, "Content-Type", ce}, with(`"data":1`)},
		{415, "content_type", "plain", []string{"Content-Type", json + "; charset=iso-8859-1"}, `{"kind":"t"}`},
		{415, "no_mapping", "orders", []string{"Content-Type", json}, `{}`},
		{415, "content_encoding", "orders", []string{"Content-Type", ce, "Content-Encoding", "br"}, with(`"data":1`)},
		{415, "content_encoding", "orders", []string{"Content-Type", ce, "Content-Encoding", "gzip, gzip"}, with(`"data":1`)},
		{415, "content_encoding", "orders", []string{"Content-Type", ce, "Content-Encoding", "gzip", "Content-Encoding", "gzip"}, with(`"data":1`)},
		{422, "mapping", "plain", []string{"Content-Type", json}, `{"id":1}`},
		{422, "schema", "strict", []string{"Content-Type", ce}, `{"specversion":"1.0","id":"A1","source":"/s","type":"order","data":{"total":-1}}`},
		{422, "schema", "strict", []string{"Content-Type", ce}, `{"specversion":"1.0","id":"A1","source":"/s","type":"order"}`},
		{422, "schema", "strict", []string{"Content-Type", ce}, `{"specversion":"1.0","id":"A1","source":"/s","type":"order","data_base64":"AAAA"}`},
		{422, "schema", "strict", []string{"Content-Type", ce}, `{"specversion":"1.0","id":"A1","source":"/s","type":"order","data":{"total":1e999999}}`},
		{508, "hops", "orders", []string{"Content-Type", ce, "Aviary-Hops", "11"}, with(`"data":1`)},
	} {
		r := d.post(t, test.bus, text(test.body), test.headers...)
		assert.Equal(t, test.status, r.status, "%.100s: %s", test.body, r.body)
		assert.Equal(t, test.reason, r.problem.Reason, "%.100s: %s", test.body, r.body)
		assert.Less(t, len(r.body), 3000)
		if test.status == http.StatusUnsupportedMediaType {
			assert.Equal(t, "gzip", r.header.Get("Accept-Encoding"))
		}
	}
	assert.Empty(t, d.records)
	assert.Zero(t, d.budget.Used())
	r := d.post(t, "strict", text(`{"specversion":"1.0","id":"A1","source":"/s","type":"order","data":{"total":1,"name":"abc"}}`), "Content-Type", ce)
	assert.Equal(t, http.StatusAccepted, r.status, r.body)
	r = d.send(t, "A1", "Aviary-Hops", "10")
	assert.Equal(t, http.StatusAccepted, r.status, r.body)
}

// TestBatchesAreAnsweredEntryByEntry: what is valid is stored, and a status of 2xx says that all
// is.
func TestBatchesAreAnsweredEntryByEntry(t *testing.T) {
	d := newDouble(t, nil)
	batch := `[` + anEvent("1", "") + `,{"id":"2"},` + anEvent("3", "") + `,` + anEvent("4", `,"data":{"a":1,"a":1}`) + `]`
	r := d.post(t, "orders", text(batch), "Content-Type", event.BatchMediaType)
	assert.Equal(t, http.StatusUnprocessableEntity, r.status, r.body)
	assert.Equal(t, "2 of 4 events are not stored, see results; the others are stored", r.problem.Detail)
	var got []string
	for _, one := range r.problem.Results {
		got = append(got, fmt.Sprint(one.Status, one.Reason))
	}
	assert.Equal(t, []string{"202", "400missing_attribute", "202", "400duplicate_key"}, got)
	assert.Contains(t, r.problem.Results[1].Detail, "is missing")
	require.Len(t, d.stored(orders), 2)

	r = d.post(t, "orders", text(`[`+strings.Repeat(`{},`, 998)+`{}]`), "Content-Type", event.BatchMediaType)
	assert.Equal(t, http.StatusUnprocessableEntity, r.status)
	assert.Equal(t, "none of the 999 events is stored, see results", r.problem.Detail)
	assert.Len(t, r.problem.Results, 999)
	assert.Less(t, len(r.body), 64<<10, "only some have details")
	assert.Equal(t, 50, strings.Count(r.body, "is missing"))

	d.set(func(r messaging.Record) (error, bool) {
		if strings.Contains(string(r.Payload), `"id":"2"`) {
			return errBroken, true
		}
		if strings.Contains(string(r.Payload), `"id":"3"`) {
			return messaging.ErrTooLarge, true
		}
		return nil, true
	})
	r = d.post(t, "orders", text(`[`+anEvent("1", "")+`,`+anEvent("2", "")+`,`+anEvent("3", "")+`]`), "Content-Type", event.BatchMediaType)
	assert.Equal(t, http.StatusServiceUnavailable, r.status, "one has to be sent again")
	assert.Equal(t, []int{202, 503, 413}, []int{r.problem.Results[0].Status, r.problem.Results[1].Status, r.problem.Results[2].Status})
	assert.InDelta(t, 3, testutil.ToFloat64(d.metrics.events.accepted), 0)
	assert.InDelta(t, 2, testutil.ToFloat64(d.metrics.events.unstored), 0)
	assert.InDelta(t, 2+999, testutil.ToFloat64(d.metrics.events.refused), 0)
}

func compressed(t testing.TB, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(body)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

// TestContentCodings: each is taken, bombs are not, and no memory is left behind.
func TestContentCodings(t *testing.T) {
	d := newDouble(t, nil)
	var many []string
	for i := range 500 {
		many = append(many, anEvent(fmt.Sprint("id-", i*7919), fmt.Sprintf(`,"data":{"n":%d,"hash":"%x"}`, i, i*104729)))
	}
	whole := "[" + strings.Join(many, ",") + "]"
	for _, coding := range []string{"gzip", "x-gzip", "GZIP"} {
		for range 2 { // a decoder is used again
			body := compressed(t, []byte(whole))
			r := d.post(t, "orders", bytes.NewReader(body), "Content-Type", event.BatchMediaType, "Content-Encoding", coding)
			require.Equal(t, http.StatusAccepted, r.status, r.body)
			assert.Equal(t, 500, strings.Count(r.body, "202"))
			r = d.post(t, "orders", bytes.NewReader(append(slices.Clone(body), 'x')), "Content-Type", event.BatchMediaType, "Content-Encoding", coding)
			assert.Equal(t, http.StatusBadRequest, r.status, "%s: something follows", coding)
			r = d.post(t, "orders", bytes.NewReader(body[:len(body)-9]), "Content-Type", event.BatchMediaType, "Content-Encoding", coding)
			assert.Equal(t, http.StatusBadRequest, r.status, "%s: cut off", coding)
		}
		bomb := compressed(t, bytes.Repeat([]byte(" "), 12<<20))
		assert.Less(t, len(bomb), 1<<20)
		r := d.post(t, "orders", bytes.NewReader(bomb), "Content-Type", event.BatchMediaType, "Content-Encoding", coding)
		assert.Equal(t, http.StatusRequestEntityTooLarge, r.status, r.body)
		assert.Equal(t, "decoded_bytes", r.problem.Reason)
		assert.Zero(t, d.budget.Used())
	}
	assert.Len(t, d.stored(orders), 3*2*500)
}

// TestSlowSendersHoldLittle: who claims much and sends little leaves others their room.
func TestSlowSendersHoldLittle(t *testing.T) {
	d := newDouble(t, nil)
	for i := range 50 {
		framing := "Content-Length: 4000000\r\n\r\n{"
		if i%2 == 0 {
			framing = "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
		}
		d.dial(t, requestHead+framing)
	}
	require.Eventually(t, func() bool { return d.budget.Used() >= 50*(4<<10) }, await.Patience, time.Millisecond)
	assert.Less(t, d.budget.Used(), int64(1<<20))
	r := d.send(t, "A1")
	assert.Equal(t, http.StatusAccepted, r.status, r.body)
}

// TestSlowSendersAreCutOff: whether they may write or not.
func TestSlowSendersAreCutOff(t *testing.T) {
	t.Parallel()
	d := newDouble(t, func(c *Config) { c.Limits.ReadTimeout = time.Second })
	conn := d.dial(t, requestHead+"Content-Length: 100\r\n\r\n{")
	r := answerOf(t, conn)
	assert.Equal(t, http.StatusServiceUnavailable, r.status)
	assert.Equal(t, "slow_body", r.problem.Reason)
	headless := d.dial(t, "POST /v1/buses/orders/events HTTP/1.1\r\nHost:")
	require.NoError(t, headless.SetReadDeadline(time.Now().Add(await.Patience)))
	_, _ = io.ReadAll(headless) // until the server hangs up
	assert.Empty(t, d.records)
}

// TestHungUpSenders: their bodies are not stored, and memory comes back.
func TestHungUpSenders(t *testing.T) {
	d := newDouble(t, nil)
	conn := d.dial(t, requestHead+"Content-Length: 100\r\n\r\n{")
	require.Eventually(t, func() bool { return d.budget.Used() > 0 }, await.Patience, time.Millisecond)
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool { return testutil.ToFloat64(d.metrics.requests.WithLabelValues("499")) == 1 }, await.Patience, time.Millisecond)
	assert.Zero(t, d.budget.Used())

	// One that goes while its event is on the way: it is stored all the same.
	d.set(func(messaging.Record) (error, bool) { return nil, false })
	body := anEvent("A1", "")
	conn = d.dial(t, requestHead+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
	waiting := func() bool { d.mu.Lock(); defer d.mu.Unlock(); return len(d.waiting) == 1 }
	require.Eventually(t, waiting, await.Patience, time.Millisecond)
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool { return testutil.ToFloat64(d.metrics.requests.WithLabelValues("499")) == 2 }, await.Patience, time.Millisecond)
	assert.Positive(t, d.budget.Used(), "the event is held until its outcome is known")
	d.acknowledge(nil)
	assert.Zero(t, d.budget.Used())
	assert.Len(t, d.stored(orders), 1)
}

// TestMemoryIsBounded: past the bound requests are refused, and what cannot ever fit is refused for
// good.
func TestMemoryIsBounded(t *testing.T) {
	d := newDouble(t, nil)
	elsewhere := d.budget.Hold("")
	require.NoError(t, elsewhere.Set(d.budget.Limit()-2<<10))
	r := d.send(t, "A1")
	assert.Equal(t, http.StatusServiceUnavailable, r.status)
	assert.Equal(t, "in_flight_bytes", r.problem.Reason)
	require.NoError(t, elsewhere.Set(d.budget.Limit()-8<<10))
	r = d.post(t, "orders", text("["+strings.Repeat("1,", 999)+"1]"), "Content-Type", event.BatchMediaType)
	assert.Equal(t, http.StatusServiceUnavailable, r.status, "what answers take is charged, too")
	elsewhere.Release()
	assert.Equal(t, http.StatusAccepted, d.send(t, "A1").status)
}

// TestPulsarUnavailable: the sender is asked to come again; once it has waited, others are refused at
// once, until all is acknowledged.
func TestPulsarUnavailable(t *testing.T) {
	t.Parallel()
	d := newDouble(t, func(c *Config) { c.RequestTimeout = time.Second })
	require.NoError(t, d.Check(t.Context()))
	d.set(func(messaging.Record) (error, bool) { return nil, false })
	r := d.send(t, "A1")
	assert.Equal(t, http.StatusServiceUnavailable, r.status)
	assert.Equal(t, "timeout", r.problem.Reason)
	asked := 0
	d.set(func(messaging.Record) (error, bool) { asked++; return nil, false })
	r = d.send(t, "A2")
	assert.Equal(t, http.StatusServiceUnavailable, r.status)
	assert.Equal(t, "pulsar_unavailable", r.problem.Reason)
	d.mu.Lock()
	assert.Zero(t, asked, "it is not even tried")
	d.mu.Unlock()
	require.Error(t, d.Check(t.Context()))
	d.set(nil)
	d.acknowledge(nil)
	require.Eventually(t, func() bool { return d.Check(t.Context()) == nil }, await.Patience, time.Millisecond)
	assert.Equal(t, http.StatusAccepted, d.send(t, "A3").status)
	assert.Len(t, d.stored(orders), 2, "the first came late")
}

// TestTopicsThatDoNotOpen: requests wait for a part of their time, and it is tried again.
func TestTopicsThatDoNotOpen(t *testing.T) {
	t.Parallel()
	d := newDouble(t, func(c *Config) { c.RequestTimeout = time.Second })
	d.openErr = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	for range 2 {
		r := d.send(t, "A1")
		assert.Equal(t, http.StatusServiceUnavailable, r.status)
		assert.Equal(t, "topic_unavailable", r.problem.Reason)
	}
	d.mu.Lock()
	d.openErr = func(context.Context, string) error { return messaging.ErrTopicNotFound }
	d.mu.Unlock()
	r := d.post(t, "strict", text(anEvent("A1", "")), "Content-Type", event.MediaType)
	assert.Equal(t, http.StatusServiceUnavailable, r.status)
	assert.Contains(t, r.problem.Detail, "topic not found")
	d.mu.Lock()
	d.openErr = nil
	d.mu.Unlock()
	require.Eventually(t, func() bool {
		return d.post(t, "strict", text(anEvent("A1", "")), "Content-Type", event.MediaType).status == http.StatusAccepted
	}, await.Patience, 10*time.Millisecond)
}

// TestABusThatGoes: its topic is closed; one that is made again has a topic of its own.
func TestABusThatGoes(t *testing.T) {
	d := newDouble(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	assert.Equal(t, http.StatusAccepted, d.send(t, "A1").status)
	d.store.Set(storetest.Snapshot(t, 2, buses()[1:], nil))
	assert.Equal(t, http.StatusNotFound, d.send(t, "A1").status)
	closed := func() int { d.mu.Lock(); defer d.mu.Unlock(); return len(d.closed) }
	require.Eventually(t, func() bool { return closed() == 1 }, await.Patience, 10*time.Millisecond)
	again := buses()
	again[0].Created = time.Now()
	d.store.Set(storetest.Snapshot(t, 3, again, nil))
	assert.Equal(t, http.StatusAccepted, d.send(t, "A1").status)
	again[0].Created = again[0].Created.Add(time.Second)
	d.store.Set(storetest.Snapshot(t, 4, again, nil))
	assert.Equal(t, http.StatusAccepted, d.send(t, "A1").status, "made again before anybody looked")
	require.Eventually(t, func() bool { return closed() == 2 }, await.Patience, 10*time.Millisecond)
	assert.Equal(t, []string{orders, orders, orders}, d.opened)
	cancel()
	require.NoError(t, <-ended)
}

// TestABusThatGoesWhileABodyComes: its topic, which is removed, is not opened.
func TestABusThatGoesWhileABodyComes(t *testing.T) {
	for name, now := range map[string]func() []model.Bus{
		"404unknown_bus":    func() []model.Bus { return buses()[1:] },
		"503bus_definition": func() []model.Bus { again := buses(); again[0].Created = time.Now(); return again },
	} {
		d := newDouble(t, nil)
		body := anEvent("A1", "")
		conn := d.dial(t, requestHead+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body[:10]))
		require.Eventually(t, func() bool { return d.budget.Used() > 0 }, await.Patience, time.Millisecond)
		d.store.Set(storetest.Snapshot(t, 2, now(), nil))
		_, err := io.WriteString(conn, body[10:])
		require.NoError(t, err)
		r := answerOf(t, conn)
		assert.Equal(t, name, fmt.Sprint(r.status, r.problem.Reason))
		d.mu.Lock()
		assert.Empty(t, d.opened, name)
		d.mu.Unlock()
	}
}

// TestABusThatCannotBeRead: its record may be of a newer version. A 404 would have senders drop
// what others take.
func TestABusThatCannotBeRead(t *testing.T) {
	d := newDouble(t, nil)
	d.store.Set(storetest.Snapshot(t, 2, buses(), nil).WithUnreadable("bus/orders", "of a newer version"))
	r := d.send(t, "A1")
	assert.Equal(t, http.StatusServiceUnavailable, r.status)
	assert.Equal(t, "bus_definition", r.problem.Reason)
	assert.Equal(t, http.StatusAccepted, d.post(t, "strict", text(anEvent("A1", "")), "Content-Type", event.MediaType).status)
}

// TestDuplicateIDs are no fault: the bus leaves the second one out behind the broker, where it may
// have been stored before.
func TestDuplicateIDs(t *testing.T) {
	d := newDouble(t, nil)
	r := d.post(t, "orders", text(`[`+anEvent("1", "")+`,`+anEvent("1", "")+`]`), "Content-Type", event.BatchMediaType)
	assert.Equal(t, http.StatusAccepted, r.status, r.body)
	records := d.stored(orders)
	require.Len(t, records, 2)
	assert.Equal(t, records[0].Key, records[1].Key, "both meet in one partition")
}

// TestNumbersStayAsTheyCame: beyond what 64 bits hold, too.
func TestNumbersStayAsTheyCame(t *testing.T) {
	d := newDouble(t, nil)
	const numbers = `[12345678901234567890123,0.1000,-0,1E+2,9007199254740993,1e-999999999]`
	assert.Equal(t, http.StatusAccepted, d.post(t, "orders", text(anEvent("1", `,"data":`+numbers)), "Content-Type", event.MediaType).status)
	assert.Equal(t, http.StatusAccepted, d.post(t, "orders", text(numbers), "Content-Type", "application/json", "ce-id", "2", "ce-source", "/s", "ce-type", "t", "ce-specversion", "1.0").status)
	for _, r := range d.stored(orders) {
		assert.Contains(t, string(r.Payload), `"data":`+numbers+`}`)
	}
}

// TestATopicThatIsLost: it is opened again.
func TestATopicThatIsLost(t *testing.T) {
	d := newDouble(t, nil)
	var opens atomic.Int32
	again := make(chan struct{})
	d.openErr = func(context.Context, string) error {
		if opens.Add(1) > 1 {
			<-again
		}
		return nil
	}
	d.set(func(messaging.Record) (error, bool) { return messaging.ErrTopicTerminated, true })
	assert.Equal(t, http.StatusServiceUnavailable, d.send(t, "A1").status)
	require.Eventually(t, func() bool { return d.Check(t.Context()) != nil }, await.Patience, time.Millisecond)
	d.set(nil)
	close(again)
	require.Eventually(t, func() bool { return d.send(t, "A1").status == http.StatusAccepted && len(d.opened) == 2 }, await.Patience, 10*time.Millisecond)
}

// TestAChangedBusHasItsNewRules at the next request.
func TestAChangedBusHasItsNewRules(t *testing.T) {
	d := newDouble(t, nil)
	const order = `{"specversion":"1.0","id":"A1","source":"/s","type":"order","data":{}}`
	assert.Equal(t, http.StatusUnprocessableEntity, d.post(t, "strict", text(order), "Content-Type", event.MediaType).status)
	changed := buses()
	changed[1].Schemas = nil
	d.store.Set(storetest.Snapshot(t, 2, changed, nil))
	assert.Equal(t, http.StatusAccepted, d.post(t, "strict", text(order), "Content-Type", event.MediaType).status)
}

// TestDeadlineContext: it ends with the request or at its time, whether somebody waits for it or asks.
func TestDeadlineContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		request, gone := context.WithCancel(t.Context())
		p := &deadlineContext{Context: request, until: time.Now().Add(time.Second)}
		defer p.end()
		deadline, ok := p.Deadline()
		assert.True(t, ok)
		assert.Equal(t, p.until, deadline)
		require.NoError(t, p.Err())
		asked := &deadlineContext{Context: request, until: p.until}
		begun := time.Now()
		<-p.Done()
		assert.Equal(t, time.Second, time.Since(begun))
		require.ErrorIs(t, p.Err(), context.DeadlineExceeded)
		require.ErrorIs(t, asked.Err(), context.DeadlineExceeded)
		asked.end()

		other := &deadlineContext{Context: request, until: time.Now().Add(time.Hour)}
		defer other.end()
		go gone()
		<-other.Done()
		require.ErrorIs(t, other.Err(), context.Canceled)
	})
}

// inFlight sends an event that the broker does not acknowledge, and waits until it has it.
func (d *double) inFlight(t *testing.T) net.Conn {
	t.Helper()
	d.set(func(messaging.Record) (error, bool) { return nil, false })
	body := anEvent("A1", "")
	conn := d.dial(t, requestHead+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
	waiting := func() bool { d.mu.Lock(); defer d.mu.Unlock(); return len(d.waiting) == 1 }
	require.Eventually(t, waiting, await.Patience, time.Millisecond)
	return conn
}

// TestAStopWithRequestsInFlight: those that the broker acknowledges in time are answered, and no
// further ones are taken.
func TestAStopWithRequestsInFlight(t *testing.T) {
	d := newDouble(t, nil)
	conn := d.inFlight(t)
	stopped := make(chan error, 1)
	go func() { stopped <- d.server.Shutdown(context.Background()) }()
	require.Eventually(t, func() bool {
		other, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.addr)
		if err == nil {
			_ = other.Close()
		}
		return err != nil
	}, await.Patience, time.Millisecond, "nobody else is let in")
	select {
	case <-stopped:
		t.Fatal("it did not wait for the request")
	default:
	}
	d.acknowledge(nil)
	assert.Equal(t, http.StatusAccepted, answerOf(t, conn).status)
	require.NoError(t, <-stopped)
	assert.Len(t, d.stored(orders), 1)
}

// TestAStopThatCannotWait: what is not acknowledged was not answered 202, and its memory comes
// back.
func TestAStopThatCannotWait(t *testing.T) {
	d := newDouble(t, nil)
	conn := d.inFlight(t)
	require.NoError(t, d.server.Close())
	require.NoError(t, d.Close(context.Background()))
	rest, _ := io.ReadAll(conn)
	assert.NotContains(t, string(rest), "202")
	require.Eventually(t, func() bool { return d.budget.Used() == 0 }, await.Patience, time.Millisecond)
	assert.InDelta(t, 1, testutil.ToFloat64(d.metrics.events.unstored), 0)
}

// TestLargeDataWithASchema is taken, whatever it would take if it were not valid.
func TestLargeDataWithASchema(t *testing.T) {
	d := newDouble(t, func(c *Config) { c.Limits.InFlightBytes = c.Limits.least() })
	changed := buses()
	changed[1].MaxEventBytes = 1 << 20
	changed[1].Schemas = map[string]json.RawMessage{"t": json.RawMessage(`{"items":{"anyOf":[{"type":"string"},{"type":"null"},{"type":"object"},` + strings.Repeat(`{"const":2},`, 10) + `{"type":"number"}]}}`)}
	d.store.Set(storetest.Snapshot(t, 2, changed, nil))
	for _, data := range []string{`[` + strings.Repeat(`1,`, 28_000) + `1]`, `["` + strings.Repeat(`a,b:[`, 100_000) + `"]`} {
		r := d.post(t, "strict", text(anEvent("A1", `,"data":`+data)), "Content-Type", event.MediaType)
		assert.Equal(t, http.StatusAccepted, r.status, r.body)
	}
	r := d.post(t, "strict", text(anEvent("A1", `,"data":[`+strings.Repeat(`true,`, 28_000)+`1]`)), "Content-Type", event.MediaType)
	assert.Equal(t, http.StatusUnprocessableEntity, r.status, r.body)
	assert.Contains(t, r.problem.Detail, "too large to say where")
}
