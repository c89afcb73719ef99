package remotewrite

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/prompb"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"

	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

func TestDecodeV2AgreesWithPrometheus(t *testing.T) {
	b := new(batch.Batch)
	for name, req := range map[string]*writev2.Request{
		"empty": {}, "symbols only": {Symbols: []string{""}}, "usual": writetest.RequestV2(200, 10), "everything": writetest.EverythingV2(), "flawed": writetest.FlawedV2(),
		"many symbols": writetest.RequestV2(3000, 12), // references of three bytes
	} {
		t.Run(name, func(t *testing.T) {
			b.Reset()
			require.NoError(t, DecodeV2(b, writetest.MarshalV2(t, req), DefaultLimits()))
			writetest.SameV2(t, req, b)
		})
	}
}

// TestDecodeV2TakesAnyEncoding: protobuf lets fields come in any order and repeated
// numbers unpacked, in pieces, and a message in pieces.
func TestDecodeV2TakesAnyEncoding(t *testing.T) {
	sample, err := (&writev2.Sample{Timestamp: 1, Value: 2}).Marshal()
	require.NoError(t, err)
	field := func(dst []byte, number protowire.Number, data []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(dst, number, protowire.BytesType), data)
	}
	single := func(dst []byte, number protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(dst, number, protowire.VarintType), v)
	}
	ts := field(nil, 1, []byte{1, 2, 3}) // a name without its value
	ts = field(ts, 5, single(nil, 1, 1))
	ts = field(ts, 2, sample)
	ts = field(ts, 4, field(nil, 1, []byte{5, 6}))
	ts = single(ts, 1, 4) // here it is
	ts = field(ts, 5, single(nil, 4, 7))
	ts = single(ts, 6, 99) // release candidate 3
	ts = field(ts, 77, []byte("unknown"))
	body := field(nil, 5, ts)
	for _, s := range []string{"", "__name__", "m", "job", "api", "trace_id", "abc", "seconds"} {
		body = field(body, 4, []byte(s))
	}
	b := new(batch.Batch)
	require.NoError(t, DecodeV2(b, body, DefaultLimits()))
	want := new(writev2.Request)
	require.NoError(t, want.Unmarshal(body))
	writetest.SameV2(t, want, b)
}

// TestDecodeV2BoundsExpansion: a small body must not stand for gigabytes.
func TestDecodeV2BoundsExpansion(t *testing.T) {
	limits := DefaultLimits()
	limits.DecodedBytes = 1 << 20
	large := string(make([]byte, 64<<10))
	for name, req := range map[string]*writev2.Request{
		"large symbols":   {Symbols: []string{"", "a", large}, Timeseries: slices.Repeat([]writev2.TimeSeries{{LabelsRefs: []uint32{1, 2}}}, 20)},
		"many labels":     {Symbols: []string{""}, Timeseries: []writev2.TimeSeries{{LabelsRefs: make([]uint32, 400_000)}}},
		"many symbols":    {Symbols: make([]string, 70_000)},
		"exemplar labels": {Symbols: []string{"", large}, Timeseries: []writev2.TimeSeries{{Exemplars: slices.Repeat([]writev2.Exemplar{{LabelsRefs: []uint32{1, 1}}}, 10)}}},
	} {
		t.Run(name, func(t *testing.T) {
			body := writetest.MarshalV2(t, req)
			require.Less(t, len(body), 500<<10)
			err := DecodeV2(new(batch.Batch), body, limits)
			refused := (*refusal.Error)(nil)
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, 413, refused.Status)
			assert.Contains(t, refused.Text, "1048576")
		})
	}
	b := new(batch.Batch)
	require.NoError(t, DecodeV2(b, writetest.MarshalV2(t, writetest.RequestV2(2000, 10)), limits))
	v1 := len(writetest.Marshal(t, writetest.Request(2000, 10)))
	assert.Greater(t, b.Expanded, v1)
	assert.Less(t, b.Expanded, 2*v1, "what the same takes in version 1 is about the measure")
}

func TestDecodeV2DoesNotAllocate(t *testing.T) {
	for name, req := range map[string]*writev2.Request{"usual": writetest.RequestV2(2000, 10), "everything": writetest.EverythingV2()} {
		t.Run(name, func(t *testing.T) {
			body := writetest.MarshalV2(t, req)
			b, limits := new(batch.Batch), DefaultLimits()
			scratch := make([]byte, 0, 4096)
			allocations := testing.AllocsPerRun(20, func() {
				b.Reset()
				if err := DecodeV2(b, body, limits); err != nil {
					t.Fatal(err)
				}
				_, scratch = Validate(b, limits, scratch)
			})
			assert.Zero(t, allocations)
		})
	}
}

// FuzzDecodeV2 checks what FuzzDecodeV1 does, with version 2's own oracle.
func FuzzDecodeV2(f *testing.F) {
	f.Add([]byte{})
	f.Add(writetest.MarshalV2(f, writetest.RequestV2(2, 3)))
	f.Add(writetest.MarshalV2(f, writetest.EverythingV2()))
	f.Add(writetest.MarshalV2(f, writetest.FlawedV2()))
	f.Add(writetest.Marshal(f, &prompb.WriteRequest{Timeseries: writetest.Request(2, 3).Timeseries}))                                             // version 1
	f.Add([]byte("\"\x00\"\x01a*\x02\b\x01*\x040\x050\x06"))                                                                                      // unpacked, field 6
	f.Add(append(writetest.MarshalV2(f, &writev2.Request{Symbols: []string{""}}), 0x2a, 7, 0x0a, 5, 0x80, 0x80, 0x80, 0x80, 0x10))                // beyond 32 bits
	f.Add(binary.AppendUvarint([]byte{4<<3 | 2}, math.MaxUint64))                                                                                 // a length beyond everything
	f.Add(append(writetest.MarshalV2(f, &writev2.Request{Symbols: []string{"", "é\xff"}}), writetest.MarshalV2(f, writetest.RequestV2(1, 2))...)) // two in one
	f.Add(writetest.MarshalV2(f, &writev2.Request{Symbols: []string{"x"}, Timeseries: []writev2.TimeSeries{{LabelsRefs: []uint32{0}}}}))          // first symbol
	f.Fuzz(func(t *testing.T, body []byte) {
		limits := DefaultLimits()
		b, want := new(batch.Batch), new(writev2.Request)
		err, oracle := DecodeV2(b, body, limits), want.Unmarshal(body)
		if err == nil {
			require.NoError(t, oracle, "accepted what Prometheus' decoder refuses")
			writetest.SameV2(t, want, b)
			bad, _ := Validate(b, limits, nil)
			_ = bad.Err(len(want.Timeseries))
			var out format.Messages
			format.EncodeJSON(b, nil, &out)
			for _, r := range out.Records {
				require.True(t, json.Valid(r.Payload), "%s", r.Payload)
			}
		}
		if oracle == nil && (len(want.Timeseries) == 0 || len(want.Symbols) > 0 && want.Symbols[0] == "") {
			writetest.Known(reflect.ValueOf(want))
			b.Reset()
			require.NoError(t, DecodeV2(b, writetest.MarshalV2(t, want), limits))
			writetest.SameV2(t, want, b)
		}
	})
}

func BenchmarkDecodeV2(b *testing.B) {
	body := writetest.MarshalV2(b, writetest.RequestV2(2000, 10))
	limits, space := DefaultLimits(), new(batch.Batch)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		space.Reset()
		if err := DecodeV2(space, body, limits); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "series/s")
}
