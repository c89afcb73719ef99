package remotewrite

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

func TestDecodeV1AgreesWithPrompb(t *testing.T) {
	b := new(batch.Batch)
	for name, req := range map[string]*prompb.WriteRequest{
		"empty": {}, "usual": writetest.Request(200, 10), "everything": writetest.Everything(),
		"long labels": {Timeseries: []prompb.TimeSeries{{Labels: []prompb.Label{
			{Name: "__name__", Value: string(make([]byte, 127))}, {Name: string(make([]byte, 200)), Value: string(make([]byte, 128))}, {Name: "empty"}, {},
		}}}},
	} {
		t.Run(name, func(t *testing.T) {
			b.Reset()
			require.NoError(t, DecodeV1(b, writetest.Marshal(t, req), DefaultLimits()))
			writetest.Same(t, req, b)
		})
	}
}

func TestDecodeV1DoesNotAllocate(t *testing.T) {
	for name, req := range map[string]*prompb.WriteRequest{"usual": writetest.Request(2000, 10), "everything": writetest.Everything()} {
		t.Run(name, func(t *testing.T) {
			body := writetest.Marshal(t, req)
			b, limits := new(batch.Batch), DefaultLimits()
			scratch := make([]byte, 0, 4096)
			allocations := testing.AllocsPerRun(20, func() {
				b.Reset()
				if err := DecodeV1(b, body, limits); err != nil {
					t.Fatal(err)
				}
				_, scratch = Validate(b, limits, scratch)
			})
			assert.Zero(t, allocations)
		})
	}
}

// FuzzDecodeV1 checks that nothing crashes, that what is accepted is what the
// oracle makes of it, and that what the oracle makes of anything is accepted in its
// own encoding. (The oracle takes groups and overlong varints, which no sender
// writes and which are refused here.)
func FuzzDecodeV1(f *testing.F) {
	f.Add([]byte{})
	f.Add(writetest.Marshal(f, writetest.Request(2, 3)))
	f.Add(writetest.Marshal(f, writetest.Everything()))
	f.Add([]byte("\n\x00\x000")) // field number 0
	f.Fuzz(func(t *testing.T, body []byte) {
		limits := DefaultLimits()
		b, want := new(batch.Batch), new(prompb.WriteRequest)
		err, oracle := DecodeV1(b, body, limits), want.Unmarshal(body)
		if err == nil {
			require.NoError(t, oracle, "accepted what prompb refuses")
			writetest.Same(t, want, b)
			bad, _ := Validate(b, limits, nil)
			_ = bad.Err(len(want.Timeseries))
			var out format.Messages
			format.EncodeJSON(b, nil, &out)
			for _, r := range out.Records {
				require.True(t, json.Valid(r.Payload), "%s", r.Payload)
			}
		}
		if oracle == nil {
			writetest.Known(reflect.ValueOf(want))
			b.Reset()
			require.NoError(t, DecodeV1(b, writetest.Marshal(t, want), limits))
			writetest.Same(t, want, b)
		}
	})
}

func BenchmarkDecodeV1(b *testing.B) {
	body := writetest.Marshal(b, writetest.Request(2000, 10))
	limits, space := DefaultLimits(), new(batch.Batch)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		space.Reset()
		if err := DecodeV1(space, body, limits); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "series/s")
}
