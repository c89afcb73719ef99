package nightingale

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"

	"github.com/aviaryhq/aviary/internal/door"
)

// forms are the ways in which packed-v2 takes a batch: as it mostly is, with the texts
// that filters and topics by template look at, and without references.
func forms() map[string]form {
	return map[string]form{
		"lean": {symbolic: true, lean: true, lateKeys: true}, "with texts": {symbolic: true}, "texts alone": {},
	}
}

// decodedAs returns a valid batch of a body.
func decodedAs(t testing.TB, version int, body []byte, f form) *batch {
	t.Helper()
	b := &batch{form: f}
	require.NoError(t, protocols()[version].decode(b, body, testLimits()))
	bad, _ := b.validate(testLimits(), nil)
	require.Empty(t, bad.first)
	return b
}

// consumer of packed-v2: what a message has, by Prometheus' own types. Series are
// written as Prometheus' text format has them, and what they carry as Go does.
func readPackedV2(payload []byte) (lines []string, err error) {
	var req writev2.Request
	if err := req.Unmarshal(payload); err != nil {
		return nil, err
	}
	labels := func(refs []uint32) string {
		var pairs []string
		for i := 0; i < len(refs); i += 2 {
			pairs = append(pairs, fmt.Sprintf("%s=%q", req.Symbols[refs[i]], req.Symbols[refs[i+1]]))
		}
		return "{" + strings.Join(pairs, ",") + "}"
	}
	for _, ts := range req.Timeseries {
		series := labels(ts.LabelsRefs)
		about := fmt.Sprintf(" (%d %q %q)", ts.Metadata.Type, req.Symbols[ts.Metadata.UnitRef], req.Symbols[ts.Metadata.HelpRef])
		for _, s := range ts.Samples {
			lines = append(lines, fmt.Sprint(series, about, " ", s.Timestamp, " since ", s.StartTimestamp, ": ", s.Value))
		}
		for _, h := range ts.Histograms {
			lines = append(lines, fmt.Sprint(series, about, " ", h.Timestamp, " since ", h.StartTimestamp, ": sum ", h.Sum, ", deltas ", h.PositiveDeltas, h.NegativeDeltas))
		}
		for _, e := range ts.Exemplars {
			lines = append(lines, fmt.Sprint(series, " ", e.Timestamp, ": exemplar ", labels(e.LabelsRefs), " ", e.Value))
		}
	}
	return lines, nil
}

// TestConsumePackedV2 is how a consumer of the packed-v2 format reads: a message is a
// whole request, with its symbols.
func TestConsumePackedV2(t *testing.T) {
	const series, about = `{__name__="latency",job="api"}`, ` (5 "seconds" "How long.")`
	for name, f := range forms() {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, message := range encodeAs(decodedAs(t, 1, marshalV2(t, everythingV2()), f), packedV2Format, packing{}) {
				lines, err := readPackedV2(message.Payload)
				require.NoError(t, err)
				got = append(got, lines...)
				assert.Equal(t, "0", message.Key, "the partition's number")
			}
			assert.Equal(t, []string{
				series + about + ` 1 since -4: 1.5`,
				series + about + ` 2 since 0: NaN`,
				series + about + ` -3 since 0: -Inf`,
				series + ` 7: exemplar {trace_id="abc"} 0.25`,
				series + ` 8: exemplar {} 2`,
				series + ` (0 "" "") 9 since 5: sum 12.5, deltas [1 1 2] [2 -2]`,
				series + ` (0 "" "") 10 since 0: sum NaN, deltas [] []`,
			}, got)
		})
	}
}

// unpackV2 makes one request of the messages of a partition, and checks what each
// message promises. Symbols are distinct where the sender's were.
func unpackV2(t testing.TB, records []messaging.Record, limit int, distinct bool) *writev2.Request {
	t.Helper()
	table, all := writev2.NewSymbolTable(), new(writev2.Request)
	for _, r := range records {
		var req writev2.Request
		require.NoError(t, req.Unmarshal(r.Payload))
		require.Equal(t, strconv.Itoa(r.Partition), r.Key)
		require.NotEmpty(t, req.Timeseries)
		if limit > 0 && len(req.Timeseries) > 2 { // one series may be two, see add
			require.LessOrEqual(t, len(r.Payload), limit)
		}
		require.Empty(t, req.Symbols[0])
		used := map[uint32]bool{0: true}
		again := func(refs []uint32) (out []uint32) {
			for _, ref := range refs {
				used[ref] = true
				out = append(out, table.Symbolize(req.Symbols[ref]))
			}
			return out
		}
		latest := int64(0)
		for _, ts := range req.Timeseries {
			ts.LabelsRefs = again(ts.LabelsRefs)
			for i, e := range ts.Exemplars {
				ts.Exemplars[i].LabelsRefs = again(e.LabelsRefs)
				latest = max(latest, e.Timestamp)
			}
			about := again([]uint32{ts.Metadata.HelpRef, ts.Metadata.UnitRef})
			ts.Metadata.HelpRef, ts.Metadata.UnitRef = about[0], about[1]
			all.Timeseries = append(all.Timeseries, ts)
			for _, v := range ts.Samples {
				latest = max(latest, v.Timestamp)
			}
			for _, h := range ts.Histograms {
				latest = max(latest, h.Timestamp)
			}
		}
		require.Len(t, used, len(req.Symbols), "no symbol without a use")
		require.Equal(t, eventTime(latest), r.EventTime)
		if distinct {
			require.False(t, hasDuplicates(req.Symbols), "each text once")
		}
	}
	all.Symbols = table.Symbols()
	return all
}

func hasDuplicates(texts []string) bool {
	sorted := slices.Sorted(slices.Values(texts))
	return len(slices.Compact(sorted)) < len(texts)
}

// samePackedV2 compares what messages have with what the batch of the zero form has.
// Series with nothing to them are left out, and one with samples and histograms, which
// only 1.0 has, is two.
func samePackedV2(t testing.TB, want *batch, records []messaging.Record, limit int) {
	t.Helper()
	wanted := new(writev2.Request)
	all := decodedV2(t, want)
	_ = all.bytes(t) // which sets the symbols
	wanted.Symbols = all.req.Symbols
	for _, ts := range all.req.Timeseries {
		if len(ts.Samples)+len(ts.Exemplars) > 0 || len(ts.Histograms) == 0 {
			one := ts
			if one.Histograms = nil; len(ts.Samples) == 0 {
				one.Histograms = ts.Histograms
			}
			if len(one.Samples)+len(one.Exemplars)+len(one.Histograms) > 0 {
				wanted.Timeseries = append(wanted.Timeseries, one)
			}
		}
		if len(ts.Histograms) > 0 && (len(ts.Samples) > 0 || len(ts.Exemplars) == 0) {
			ts.Samples, ts.Exemplars = nil, nil
			wanted.Timeseries = append(wanted.Timeseries, ts)
		}
	}
	got := unpackV2(t, records, limit, !hasDuplicates(want.symbols))
	require.True(t, string(marshalV2(t, inOneOrder(wanted))) == string(marshalV2(t, inOneOrder(got))), "the same series") //nolint:testifylint // it would look for the differences for minutes
}

// inOneOrder is a request with its symbols in the order of their use.
func inOneOrder(req *writev2.Request) *writev2.Request {
	table, out := writev2.NewSymbolTable(), new(writev2.Request)
	again := func(refs ...uint32) (out []uint32) {
		for _, ref := range refs {
			out = append(out, table.Symbolize(req.Symbols[ref]))
		}
		return out
	}
	for _, ts := range req.Timeseries {
		ts.LabelsRefs, ts.Exemplars = again(ts.LabelsRefs...), slices.Clone(ts.Exemplars)
		for i := range ts.Exemplars {
			ts.Exemplars[i].LabelsRefs = again(ts.Exemplars[i].LabelsRefs...)
		}
		about := again(ts.Metadata.HelpRef, ts.Metadata.UnitRef)
		ts.Metadata.HelpRef, ts.Metadata.UnitRef = about[0], about[1]
		out.Timeseries = append(out.Timeseries, ts)
	}
	out.Symbols = table.Symbols()
	return out
}

// sameRecords compares without a look for the differences, which takes minutes.
func sameRecords(t testing.TB, want, got []messaging.Record) {
	t.Helper()
	require.True(t, slices.EqualFunc(want, got, func(a, b messaging.Record) bool {
		return a.Key == b.Key && string(a.Payload) == string(b.Payload) && a.Partition == b.Partition && a.EventTime.Equal(b.EventTime)
	}))
}

// agrees checks that a body in any form is what it is in the zero form: the same is
// accepted, the same series are valid, of the same keys, and all of it is in the messages.
func agrees(t testing.TB, version int, body []byte, limit int) {
	t.Helper()
	limits, decode := testLimits(), protocols()[version].decode
	plain := new(batch)
	want := decode(plain, body, limits)
	var rejectedThere rejected
	if want == nil {
		rejectedThere, _ = plain.validate(limits, nil)
	}
	for name, f := range forms() {
		b := &batch{form: f}
		err := decode(b, body, limits)
		require.Equal(t, want, err, name)
		if err != nil {
			continue
		}
		bad, scratch := b.validate(limits, nil)
		require.Equal(t, rejectedThere, bad, name)
		require.Len(t, b.series, len(plain.series), name)
		for i := range b.series {
			key := b.series[i].key
			if f.lateKeys {
				key, scratch = b.key(&b.series[i], scratch)
			}
			require.Equal(t, plain.series[i].key, key, name)
			require.Equal(t, f.lean && b.series[i].refs.len() > 0, b.series[i].labels.len() == 0, name)
		}
		samePackedV2(t, plain, encodeAs(b, packedV2Format, packing{limit: limit}), limit)
		for _, format := range []string{packedFormat, "protobuf"} { // which write references as texts
			if format == packedFormat || !f.lateKeys {
				sameRecords(t, encodeAs(plain, format, packing{limit: limit}), encodeAs(b, format, packing{limit: limit}))
			}
		}
	}
}

// TestPackedV2KeepsEverything, in messages of any size and from any form.
func TestPackedV2KeepsEverything(t *testing.T) {
	scarce := request(50, 4)
	scarce.Timeseries = append(scarce.Timeseries, everything().Timeseries...)
	for _, labels := range [][]string{
		{"zone", "a", "__name__", "up"},              // not sorted
		{"__name__", "up", "empty", "", "zone", "ü"}, // a label without a value
		{"__name__", "up", "zone", "a", "zone", "b"}, // twice
		{"job", "a"},            // no name
		{"__name__", "bad\xff"}, // not UTF-8
		{"__name__", strings.Repeat("long", 40), "z", ""},
	} {
		scarce.Timeseries = append(scarce.Timeseries, oneSeries(labels...).Timeseries...)
	}
	bodies := [][][]byte{
		{marshal(t, scarce), marshal(t, request(300, 10))},
		{marshalV2(t, everythingV2()), marshalV2(t, flawedV2()), marshalV2(t, requestV2(300, 10))},
	}
	for _, limit := range []int{0, 1, 100, 1 << 10} {
		for version, all := range bodies {
			t.Run(fmt.Sprintf("%d.0 in %d bytes", version+1, limit), func(t *testing.T) {
				for _, body := range all {
					agrees(t, version, body, limit)
				}
			})
		}
	}
	agrees(t, 1, marshalV2(t, requestV2(9000, 4)), 0) // references of three bytes
}

// FuzzPackedV2 checks bodies of both versions as agrees does.
func FuzzPackedV2(f *testing.F) {
	for _, body := range [][]byte{marshal(f, everything()), marshal(f, request(3, 3)), marshalV2(f, everythingV2()), marshalV2(f, flawedV2()), marshalV2(f, requestV2(3, 3))} {
		f.Add(body, uint16(0))
		f.Add(body, uint16(90))
	}
	f.Fuzz(func(t *testing.T, body []byte, limit uint16) {
		for version := range protocols() {
			agrees(t, version, body, int(limit))
		}
	})
}

// TestPackedV2PlacesSeriesByTheirKey: a series is on the partition where packed has it,
// and each partition's series are in the order of the request.
func TestPackedV2PlacesSeriesByTheirKey(t *testing.T) {
	const partitions, limit = 5, 4 << 10
	req := request(1000, 10)
	for i := range 1000 { // every series twice
		again := req.Timeseries[i]
		again.Samples = []prompb.Sample{{Timestamp: 1_800_000_000_000, Value: 1}}
		req.Timeseries = append(req.Timeseries, again)
	}
	p := packing{partitions: partitions, limit: limit}
	var want [partitions][]prompb.TimeSeries
	for _, m := range encodeAs(decoded(t, req, true), packedFormat, p) {
		var part prompb.WriteRequest
		require.NoError(t, part.Unmarshal(m.Payload))
		want[m.Partition] = append(want[m.Partition], part.Timeseries...)
	}
	for name, f := range forms() {
		t.Run(name, func(t *testing.T) {
			var records [partitions][]messaging.Record
			for _, m := range encodeAs(decodedAs(t, 0, marshal(t, req), f), packedV2Format, p) {
				records[m.Partition] = append(records[m.Partition], m)
			}
			for i := range records {
				got := unpackV2(t, records[i], limit, true)
				assert.Greater(t, len(records[i]), 1)
				require.Len(t, got.Timeseries, len(want[i]))
				for j, ts := range got.Timeseries {
					builder := strings.Builder{}
					for k := 0; k < len(ts.LabelsRefs); k += 2 {
						fmt.Fprintf(&builder, "%s=%s,", got.Symbols[ts.LabelsRefs[k]], got.Symbols[ts.LabelsRefs[k+1]])
					}
					wanted := strings.Builder{}
					for _, l := range want[i][j].Labels {
						fmt.Fprintf(&wanted, "%s=%s,", l.Name, l.Value)
					}
					require.Equal(t, wanted.String(), builder.String())
					require.Equal(t, want[i][j].Samples[0].Timestamp, ts.Samples[0].Timestamp)
				}
			}
		})
	}
}

// TestPackedV2TellsOfFamilies: what 1.0 requests say of a family is put into its series,
// and what 2.0 requests say is kept, too long texts but cut.
func TestPackedV2TellsOfFamilies(t *testing.T) {
	d := newDouble(t, func(c *Config) { c.Format = packedV2Format })
	about := &prompb.WriteRequest{Metadata: []prompb.MetricMetadata{{Type: prompb.MetricMetadata_GAUGE, MetricFamilyName: "up", Help: "Is it up?", Unit: "bool"}}}
	require.Equal(t, 204, d.v1(t, about).status)
	assert.Empty(t, d.published(), "a request has no place for it without a series")
	require.Equal(t, 204, d.v1(t, oneSeries("__name__", "up", "job", "a")).status)
	long := v2Of("__name__", "long")
	long.Symbols = append(long.Symbols, strings.Repeat("h", 2000))
	long.Timeseries[0].Metadata = writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_INFO, HelpRef: uint32(len(long.Symbols) - 1)}
	require.Equal(t, 204, d.v2(t, long).status)
	var got []string
	for _, payload := range d.payloadsBehind(2) {
		lines, err := readPackedV2([]byte(payload))
		require.NoError(t, err)
		got = append(got, lines...)
	}
	assert.Equal(t, []string{
		`{__name__="up",job="a"} (2 "bool" "Is it up?") 1 since 0: 1`,
		`{__name__="long"} (6 "" "` + strings.Repeat("h", maxFamilyHelp) + `...") 1 since 0: 1`,
	}, got)
}

// TestPackedV2BehindRules: filters and relabelling see the labels, and what they change
// is in the messages; what they leave is as it was.
func TestPackedV2BehindRules(t *testing.T) {
	for version, request := range []func(*double) answer{
		func(d *double) answer {
			req := new(prompb.WriteRequest)
			for _, labels := range [][]string{{"__name__", "up", "job", "a", "zone", "x"}, {"__name__", "down", "job", "a"}, {"__name__", "up", "job", "keep"}} {
				req.Timeseries = append(req.Timeseries, oneSeries(labels...).Timeseries...)
			}
			return d.v1(t, req)
		},
		func(d *double) answer {
			req := v2Of("__name__", "up", "job", "a", "zone", "x", "down", "keep")
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
		drop, err := ParseSelector("down")
		require.NoError(t, err)
		d := newDouble(t, func(c *Config) {
			c.Format, c.Filter.Drop = packedV2Format, []Selector{drop}
			rule := RelabelConfig{}
			rule.SetDefaults()
			rule.SourceLabels, rule.Regex, rule.TargetLabel, rule.Replacement = []string{"job"}, "a", "job", "changed"
			c.RelabelConfigs = []RelabelConfig{rule}
		})
		require.Equal(t, 204, request(d).status)
		var got []string
		for _, payload := range d.payloadsBehind(2) {
			lines, err := readPackedV2([]byte(payload))
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

// TestSymbolsAreBoundedInMemory: references and symbols are charged as other elements.
func TestSymbolsAreBoundedInMemory(t *testing.T) {
	const bound = 1 << 20
	limits := testLimits()
	limits.MemoryBytes, limits.Series = bound, 1<<30
	texts := func(n int) (labels []byte) {
		for i := range n {
			labels = append(labels, field(1, append(field(1, []byte("a")), field(2, fmt.Appendf(nil, "%x", i))...))...)
		}
		return field(1, labels)
	}
	all := bombs(1 << 18)
	type bomb = struct {
		decode func(*batch, []byte, Limits) error
		body   []byte
	}
	all["distinct labels"] = bomb{decodeV1, texts(1 << 15)}
	for name, one := range all {
		for kind, f := range forms() {
			t.Run(name+", "+kind, func(t *testing.T) {
				b := &batch{form: f}
				err := one.decode(b, one.body, limits)
				refused := (*door.Refusal)(nil)
				require.ErrorAs(t, err, &refused)
				assert.Equal(t, "memory_bytes", refused.Reason)
				assert.Less(t, b.size(), 3*bound/2+leastSlots*slotBytes)
			})
		}
	}
}

// TestTextsOfMessagesAreBoundedInMemory: the labels of exemplars get into the symbols
// only when they are encoded, and no further than the bound.
func TestTextsOfMessagesAreBoundedInMemory(t *testing.T) {
	req := oneSeries("__name__", "up")
	for i := range 2000 {
		req.Timeseries[0].Exemplars = append(req.Timeseries[0].Exemplars, prompb.Exemplar{Labels: []prompb.Label{{Name: "id", Value: strconv.Itoa(i)}}, Timestamp: 1})
	}
	d := newDouble(t, func(c *Config) {
		c.Format, c.Limits.MemoryBytes = packedV2Format, 160<<10
	})
	got := d.v1(t, req)
	assert.Equal(t, 413, got.status, got.text)
	assert.Empty(t, d.published())
	require.Equal(t, 204, d.v1(t, oneSeries("__name__", "up")).status)
}

// TestSymbolTableTakesAnyTexts, finds them all again, and forgets them.
func TestSymbolTableTakesAnyTexts(t *testing.T) {
	b := new(batch)
	for round := range 3 {
		b.elements.limit = math.MaxInt
		refs := map[string]uint32{}
		for i := range 5000 * (3 - round) {
			text := strconv.Itoa(i)
			ref, err := b.intern(text)
			require.NoError(t, err)
			refs[text] = ref
		}
		require.Len(t, slices.Compact(slices.Sorted(maps.Values(refs))), len(refs))
		for text, want := range refs {
			ref, err := b.intern(text)
			require.NoError(t, err)
			require.Equal(t, want, ref)
			require.Equal(t, text, b.symbols[ref])
		}
		b.reset()
	}
}
