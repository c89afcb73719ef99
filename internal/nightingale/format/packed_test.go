package format

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/prompb"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"

	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// forms are the two forms in which the format gets the labels of a batch.
func forms() map[string]bool { return map[string]bool{"references": true, "texts": false} }

// decodedAs returns a valid batch of a body.
func decodedAs(t testing.TB, version int, body []byte, references bool) *batch.Batch {
	t.Helper()
	b := &batch.Batch{References: references}
	require.NoError(t, remotewrite.Protocols()[version].Decode(b, body, remotewrite.DefaultLimits()))
	bad, _ := remotewrite.Validate(b, remotewrite.DefaultLimits(), nil)
	require.Empty(t, bad.First)
	return b
}

// TestConsumePacked is how a consumer of the packed format reads: a message is a
// whole request, with its symbols.
func TestConsumePacked(t *testing.T) {
	const series, about = `{__name__="latency",job="api"}`, ` (5 "seconds" "How long.")`
	for name, references := range forms() {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, message := range encodeAs(decodedAs(t, 1, writetest.MarshalV2(t, writetest.EverythingV2()), references), "packed", Packing{}) {
				lines, err := writetest.ReadPacked(message.Payload)
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

// unpack makes one request of the messages of a partition, and checks what each
// message promises.
func unpack(t testing.TB, records []messaging.Record, limit int) *writev2.Request {
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
	}
	all.Symbols = table.Symbols()
	return all
}

// TestTextsAreMostlyOnceInAMessage: a text is there twice only where another one has taken its place
// in the table of a request.
func TestTextsAreMostlyOnceInAMessage(t *testing.T) {
	for version, body := range writetest.Bodies(t, 2000, writetest.Alike) {
		for _, m := range encodeAs(decodedAs(t, version, body, true), "packed", Packing{}) {
			var req writev2.Request
			require.NoError(t, req.Unmarshal(m.Payload))
			distinct := len(slices.Compact(slices.Sorted(slices.Values(req.Symbols))))
			assert.LessOrEqual(t, len(req.Symbols), distinct+distinct/20)
		}
	}
}

// samePacked compares what messages have with what the batch of the zero form has.
// Series with nothing to them are left out, and one with samples and histograms, which
// only 1.0 has, is two.
func samePacked(t testing.TB, want *batch.Batch, records []messaging.Record, limit int) {
	t.Helper()
	wanted := new(writev2.Request)
	all := writetest.DecodedV2(t, want)
	_ = all.Bytes(t) // which sets the symbols
	wanted.Symbols = all.Req.Symbols
	for _, ts := range all.Req.Timeseries {
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
	got := unpack(t, records, limit)
	require.True(t, string(writetest.MarshalV2(t, inOneOrder(wanted))) == string(writetest.MarshalV2(t, inOneOrder(got))), "the same series") //nolint:testifylint // it would look for the differences for minutes
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

// agrees checks that a body in any form is what it is in the zero form: the same is
// accepted, the same series are valid, of the same keys, and all of it is in the messages.
func agrees(t testing.TB, version int, body []byte, limit int) {
	t.Helper()
	limits, decode := remotewrite.DefaultLimits(), remotewrite.Protocols()[version].Decode
	plain := new(batch.Batch)
	want := decode(plain, body, limits)
	var rejectedThere batch.Rejected
	if want == nil {
		rejectedThere, _ = remotewrite.Validate(plain, limits, nil)
	}
	for name, references := range forms() {
		b := &batch.Batch{References: references}
		err := decode(b, body, limits)
		require.Equal(t, want, err, name)
		if err != nil {
			continue
		}
		bad, scratch := remotewrite.Validate(b, limits, nil)
		require.Equal(t, rejectedThere, bad, name)
		require.Len(t, b.Series, len(plain.Series), name)
		for i := range b.Series {
			key := b.Series[i].Key
			if references {
				key, scratch = b.SeriesKey(&b.Series[i], scratch)
			}
			require.Equal(t, plain.Series[i].Key, key, name)
			require.Equal(t, b.Series[i].Refs.Len() > 0, b.Series[i].Labels.Len() == 0, name)
		}
		samePacked(t, plain, encodeAs(b, "packed", Packing{Limit: limit}), limit)
	}
}

// TestPackedKeepsEverything, in messages of any size and from any form.
func TestPackedKeepsEverything(t *testing.T) {
	scarce := writetest.Request(50, 4)
	scarce.Timeseries = append(scarce.Timeseries, writetest.Everything().Timeseries...)
	for _, labels := range [][]string{
		{"zone", "a", "__name__", "up"},              // not sorted
		{"__name__", "up", "empty", "", "zone", "ü"}, // a label without a value
		{"__name__", "up", "zone", "a", "zone", "b"}, // twice
		{"job", "a"},            // no name
		{"__name__", "bad\xff"}, // not UTF-8
		{"__name__", strings.Repeat("long", 40), "z", ""},
	} {
		scarce.Timeseries = append(scarce.Timeseries, writetest.OneSeries(labels...).Timeseries...)
	}
	bodies := [][][]byte{
		{writetest.Marshal(t, scarce), writetest.Marshal(t, writetest.Request(300, 10))},
		{writetest.MarshalV2(t, writetest.EverythingV2()), writetest.MarshalV2(t, writetest.FlawedV2()), writetest.MarshalV2(t, writetest.RequestV2(300, 10))},
	}
	for _, limit := range []int{0, 1, 100, 1 << 10} {
		for version, all := range bodies {
			t.Run(fmt.Sprintf("%d.0 in %d bytes", version+1, limit), func(t *testing.T) {
				t.Parallel()
				for _, body := range all {
					agrees(t, version, body, limit)
				}
			})
		}
	}
	t.Run("references of three bytes", func(t *testing.T) {
		t.Parallel()
		req := writetest.RequestV2(450, 40)
		require.Greater(t, len(req.Symbols), 1<<14)
		agrees(t, 1, writetest.MarshalV2(t, req), 0)
	})
}

// TestNothingIsPublishedAfterTheMemoryIsUsedUp: labels for which there is no memory would be empty.
func TestNothingIsPublishedAfterTheMemoryIsUsedUp(t *testing.T) {
	req := new(prompb.WriteRequest)
	for i := range 20_000 {
		req.Timeseries = append(req.Timeseries, writetest.OneSeries("__name__", "m", "label", strings.Repeat("x", 1000)+strconv.Itoa(i)).Timeseries...)
	}
	b := decoded(t, req, true) // its labels are texts, which become symbols when they are encoded
	b.Elements = batch.Elements{Limit: 500_000}
	out, series := new(Messages), 0
	out.Publish = func() error {
		for _, r := range out.Records {
			var got writev2.Request
			require.NoError(t, got.Unmarshal(r.Payload))
			for _, ts := range got.Timeseries {
				require.Len(t, ts.LabelsRefs, 4)
				require.True(t, strings.HasSuffix(got.Symbols[ts.LabelsRefs[3]], strconv.Itoa(series)))
				series++
			}
		}
		out.NextPiece(true)
		return nil
	}
	Find("packed").Encode(b, &Packing{Limit: 256 << 10}, out)
	assert.Equal(t, http.StatusRequestEntityTooLarge, writetest.StatusOf(t, out.Err))
	assert.Positive(t, series)
	assert.Less(t, series, 20_000)
}

// FuzzPacked checks bodies of both versions as agrees does.
func FuzzPacked(f *testing.F) {
	for _, body := range [][]byte{writetest.Marshal(f, writetest.Everything()), writetest.Marshal(f, writetest.Request(3, 3)), writetest.MarshalV2(f, writetest.EverythingV2()), writetest.MarshalV2(f, writetest.FlawedV2()), writetest.MarshalV2(f, writetest.RequestV2(3, 3))} {
		f.Add(body, uint16(0))
		f.Add(body, uint16(90))
	}
	f.Fuzz(func(t *testing.T, body []byte, limit uint16) {
		for version := range remotewrite.Protocols() {
			agrees(t, version, body, int(limit))
		}
	})
}

// TestPackedPlacesSeriesByTheirKey: the partition is that to which the publisher routes the key of
// the other formats, and each partition's series are in the order of the request.
func TestPackedPlacesSeriesByTheirKey(t *testing.T) {
	const partitions, limit = 5, 4 << 10
	req := writetest.Request(1000, 10)
	for i := range 1000 { // every series twice
		again := req.Timeseries[i]
		again.Samples = []prompb.Sample{{Timestamp: 1_800_000_000_000, Value: 1}}
		req.Timeseries = append(req.Timeseries, again)
	}
	p := Packing{Partitions: partitions, Limit: limit}
	var want [partitions][]prompb.TimeSeries
	for i, s := range decoded(t, req, true).Series {
		h := uint32(0)
		for _, c := range batch.AppendKey(nil, s.Key) {
			h = 31*h + uint32(c)
		}
		require.Equal(t, h, keyHash(s.Key))
		want[h%partitions] = append(want[h%partitions], req.Timeseries[i])
	}
	for name, references := range forms() {
		t.Run(name, func(t *testing.T) {
			var records [partitions][]messaging.Record
			for _, m := range encodeAs(decodedAs(t, 0, writetest.Marshal(t, req), references), "packed", p) {
				records[m.Partition] = append(records[m.Partition], m)
			}
			for i := range records {
				got := unpack(t, records[i], limit)
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
