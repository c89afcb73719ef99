package model_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
)

func TestDefaultsAreFilledIn(t *testing.T) {
	b, err := model.DecodeBus([]byte(`{}`), "orders", model.Checks{})
	require.NoError(t, err)
	require.Equal(t, "orders", b.Name)
	require.Equal(t, model.Duration(10*time.Minute), b.DedupWindow)
	require.Equal(t, 256<<10, b.MaxEventBytes)
	b, err = model.DecodeBus([]byte(`{"dedup_window":"0s","partitions":2}`), "orders", model.Checks{})
	require.NoError(t, err)
	require.Zero(t, b.DedupWindow, "0 is not the same as nothing")
	require.Equal(t, 2, b.Partitions)

	s, err := model.DecodeSubscriber([]byte(`{"rules":[{"name":"a","pattern":{"a":[1]}}],"target":{"log":{}},
		"delivery":{"retry":{"max_attempts":3},"breaker":{"failures":0}}}`), "orders", "mail", model.Checks{})
	require.NoError(t, err)
	snapshot, err := store.NewSnapshot(1, []model.Bus{b}, []model.Subscriber{s})
	require.NoError(t, err)
	got := snapshot.Subscriber("orders", "mail")
	require.Equal(t, model.Active, got.State)
	require.Equal(t, model.OrderNone, got.Order)
	require.Equal(t, "latest", got.Start)
	require.Equal(t, model.Delivery{
		Concurrency: 16, Timeout: model.Duration(10 * time.Second),
		Retry: model.Retry{MaxAttempts: 3, MaxAge: model.Duration(24 * time.Hour), Jitter: 0.2, Schedule: []model.Duration{
			model.Duration(time.Second), model.Duration(5 * time.Second), model.Duration(30 * time.Second),
			model.Duration(2 * time.Minute), model.Duration(10 * time.Minute), model.Duration(time.Hour),
		}},
		Breaker: model.Breaker{Failures: 0, Probe: model.Duration(30 * time.Second)},
	}, got.Delivery)
}

func TestAllFaultsOfABusAreFoundAtOnce(t *testing.T) {
	checks := model.Checks{Schema: func(s json.RawMessage) []model.Fault {
		return []model.Fault{{Pointer: "/type", Problem: "is not a type"}}
	}}
	_, err := model.DecodeBus([]byte(`{
		"name": "other", "partitions": 1.5, "dedup_window": 30, "max_event_bytes": 7, "partitons": 1, "description": null,
		"schemas": {"a/b~c": 1, "t": {"type": "strin"}}, "mapping": {"source": "x", "time": "/a~2", "typ": "/t", "type": "="},
		"max_event_bytes": 8
	}`), "orders", checks)
	require.Equal(t, []string{
		`/dedup_window: must be a duration such as "30s" or "2h", got 30`,
		`/description: must be a text, got null`,
		`/mapping/source: must be a JSON Pointer, or = and a text: a JSON Pointer begins with /, got "x"`,
		`/mapping/time: must be a JSON Pointer, or = and a text: in a JSON Pointer ~ must be followed by 0 or 1`,
		`/mapping/typ: unknown key; the keys here are id, partitionkey, source, subject, time, type`,
		`/mapping/type: must have a text after =`,
		`/max_event_bytes: the key occurs twice`,
		`/name: must be "orders" as in the address, or omitted, got "other"`,
		`/partitions: must be a whole number, got 1.5`,
		`/partitons: unknown key; the keys here are changed, created, dedup_window, description, mapping, max_event_bytes, name, partitions, revision, schemas`,
		`/schemas/a~1b~0c: must be a JSON Schema: an object, true or false`,
		`/schemas/t/type: is not a type`,
	}, storetest.Faults(t, err))
	_, err = model.DecodeBus([]byte(`{"changed":"yesterday"}`), "Orders", checks)
	require.Equal(t, []string{
		`/changed: must be a time such as 2026-01-02T15:04:05Z`,
		`/name: must be 1 to 63 of a-z, 0-9 and -, without a - at the beginning or end, got "Orders"`,
	}, storetest.Faults(t, err))
}

// What is given and empty does not become a default, or the absence of a protection.
func TestEmptyIsNotLeftOut(t *testing.T) {
	_, err := model.DecodeSubscriber([]byte(`{
		"rules": [], "transform": {}, "delivery": {"retry": {"schedule": []}}, "target": {"webhook": {
			"url": "https://example.com", "signing_secret": "", "bearer": "", "tls": {"key": ""}
		}}}`), "orders", "mail", model.Checks{})
	require.Equal(t, []string{
		`/delivery/retry/schedule: must be 1 to 100 delays, or omitted, got 0`,
		`/rules: must be 1 to 1000 rules, got 0`,
		`/target/webhook/bearer: must have a value, or be omitted`,
		`/target/webhook/signing_secret: must have a value, or be omitted`,
		`/target/webhook/tls/key: must have a value, or be omitted`,
	}, storetest.Faults(t, err))
	_, err = model.DecodeSubscriber([]byte(`{"rules": [{"name": "a", "pattern": {}}, {"name": "b", "pattern": {"type": []}}, {"name": "c", "pattern": {"data": {}}}], "target": {}}`), "orders", "mail", model.Checks{})
	require.Equal(t, []string{
		`/rules/0/pattern: an empty object matches nothing: name a field; {"type": [{"exists": true}]} is for every event (offset 0 of the pattern)`,
		`/rules/1/pattern/type: an empty list matches nothing: give an alternative (offset 9 of the pattern)`,
		`/rules/2/pattern/data: an empty object matches nothing: name a field (offset 9 of the pattern)`,
		`/target: must have exactly one of webhook, pulsar, kafka, rabbitmq and log, got 0`,
	}, storetest.Faults(t, err))
	_, err = model.DecodeBus([]byte(`{"mapping": {}}`), "orders", model.Checks{})
	require.Equal(t, []string{
		`/mapping/source: must be given: a JSON Pointer, or = and a text`, `/mapping/type: must be given: a JSON Pointer, or = and a text`,
	}, storetest.Faults(t, err))
}

func TestAllFaultsOfASubscriberAreFoundAtOnce(t *testing.T) {
	_, err := model.DecodeSubscriber([]byte(`{
		"state": "on", "order": "total", "start": "now",
		"rules": [{"name": "a", "pattern": {"a": [{"prefix": 1}]}}, {"name": "a"}, {"name": "-", "pattern": 1}, 5],
		"transform": {"template": "{x}", "paths": {"x": "data"}, "content_type": "json"},
		"target": {"webhook": {
			"url": "ftp://user:secret@example.com", "mode": "batch", "batch_events": 5000, "headers": {"Host": "x", "A B": "y", "X-A": "1\r\n2", "x-a": "3"},
			"signing_secret": "whsec_abc", "bearer": "x", "oauth2": {"token_url": "https://example.com/#a"}, "tls": {"ca": "x", "key": "y"}
		}, "log": {}},
		"delivery": {"concurrency": 4, "rate": -1, "timeout": "1h", "retry": {"max_attempts": 0, "max_age": "0s", "jitter": 2, "schedule": ["1ns"]},
			"breaker": {"failures": -1, "probe": "1ms"}}
	}`), "orders", "mail", model.Checks{})
	require.Equal(t, []string{
		`/delivery/breaker/failures: must be from 0 to 10000, got -1`,
		`/delivery/breaker/probe: must be from 100ms to 1h0m0s, got 1ms`,
		`/delivery/concurrency: must be 1, or omitted, with order total, got 4`,
		`/delivery/rate: must be from 0 to 1e+06, got -1`,
		`/delivery/retry/jitter: must be from 0 to 1, got 2`,
		`/delivery/retry/schedule/0: must be from 10ms to 720h0m0s, got 1ns`,
		`/delivery/retry: must have a bound: max_attempts or max_age above 0`,
		`/delivery/timeout: must be from 10ms to 5m0s, got 1h0m0s`,
		`/rules/0/pattern/a/0/prefix: prefix takes a string (offset 18 of the pattern)`,
		`/rules/1/name: must differ from that of /rules/0`,
		`/rules/1/pattern: must be given`,
		`/rules/2/name: must be 1 to 63 of a-z, 0-9 and -, without a - at the beginning or end, got "-"`,
		`/rules/2/pattern: a pattern is a JSON object (offset 0 of the pattern)`,
		`/rules/3: must be an object, got 5`,
		`/start: must be latest, earliest, or a time such as 2026-01-02T15:04:05Z, got "now"`,
		`/state: must be one of active, paused, disabled, got "on"`,
		`/target/webhook/batch_events: must be from 1 to 1000, got 5000`,
		`/target/webhook/headers/A B: the key must be the name of an HTTP header, got "A B"`,
		`/target/webhook/headers/Host: must not be given: HTTP itself sets it`,
		`/target/webhook/headers/X-A: must not hold line breaks or other control characters, nor white space around the value`,
		`/target/webhook/headers/x-a: the header occurs twice, because header names are case-insensitive`,
		`/target/webhook/mode: must not be batch with order total: batch needs order none`,
		`/target/webhook/mode: must not be batch with transform: no format holds several transformed events`,
		`/target/webhook/oauth2/client_id: must be given`,
		`/target/webhook/oauth2/client_secret: must be given`,
		`/target/webhook/oauth2/token_url: must not have a fragment (#)`,
		`/target/webhook/oauth2: must not be given together with bearer`,
		`/target/webhook/tls/certificate: must be given together with key`,
		`/target/webhook/url: must be an address such as https://example.com/events`,
		`/target: must have exactly one of webhook, pulsar, kafka, rabbitmq and log, got 2`,
	}, storetest.Faults(t, err))
	require.NotContains(t, err.Error(), "secret@", "a password in the wrong place is not shown")
}

func TestWhatIsNoObjectIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		``:                    "must be one JSON object: offset 0",
		`{`:                   "must be one JSON object: offset 1: unexpected end",
		`{} {}`:               "must be one JSON object: offset 4",
		`[]`:                  "must be an object, got a list",
		`null`:                "must be an object, got null",
		"{\"name\":\"\xff\"}": "must be UTF-8",
		`{"description":"` + strings.Repeat("x", model.MaxObjectBytes) + `"}`: "must have at most 524288 bytes",
		strings.Repeat(`[`, 20_000): "must be one JSON object: ",
	} {
		_, err := model.DecodeBus([]byte(text), "orders", model.Checks{})
		require.ErrorContains(t, err, want)
	}
}

func TestFaultsAreBounded(t *testing.T) {
	var rules []string
	for i := range 300 {
		rules = append(rules, fmt.Sprintf(`{"name":"r%d"}`, i))
	}
	_, err := model.DecodeSubscriber([]byte(`{"target":{"log":{}},"rules":[`+strings.Join(rules, ",")+`]}`), "orders", "mail", model.Checks{})
	var invalid *model.Invalid
	require.ErrorAs(t, err, &invalid)
	require.Len(t, invalid.Faults, 100)
	require.Equal(t, 200, invalid.More)
	require.ErrorContains(t, err, "and 200 more faults")
}

func TestChecksOfOthersAreAsked(t *testing.T) {
	checks := model.Checks{
		Transform: func(*model.Transform) []model.Fault { return []model.Fault{{Pointer: "/template", Problem: "no"}} },
		Target: func(*model.Target) []model.Fault {
			return []model.Fault{{Pointer: "/kafka/connection", Problem: "none"}}
		},
	}
	_, err := model.DecodeSubscriber([]byte(`{"rules":[{"name":"a","pattern":{"a":[1]}}],
		"transform":{"template":"x"},"target":{"kafka":{"connection":"c","topic":"t"}}}`), "orders", "mail", checks)
	require.Equal(t, []string{"/target/kafka/connection: none", "/transform/template: no"}, storetest.Faults(t, err))

	// A hidden secret stands for one that only the change knows.
	for secret, asked := range map[string]bool{"abc": true, model.HiddenSecret: false} {
		_, err = model.DecodeSubscriber(fmt.Appendf(nil, `{"rules":[{"name":"a","pattern":{"a":[1]}}],
			"target":{"webhook":{"url":"https://example.com","bearer":%q}}}`, secret), "orders", "mail", checks)
		require.Equal(t, asked, err != nil, secret)
	}
}

// Half a surrogate pair is no text: a pattern with one must not become a pattern for another text.
func TestHalvesOfSurrogatePairsAreRefused(t *testing.T) {
	_, err := model.DecodeSubscriber([]byte(`{"rules": [{"name": "r", "pattern": {"type": ["\ud83d"]}}], "target": {"log": {}}}`), "orders", "mail", model.Checks{})
	require.Error(t, err)
}
