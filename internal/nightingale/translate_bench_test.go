package nightingale

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/pierrec/lz4/v4"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/require"
)

// alike makes series whose labels compress well: most are the same in all of them.
func alike(i int) []prompb.Label {
	return labelsFrom("__name__", fmt.Sprintf("http_requests_total_%d", i%50), "cluster", "prod-eu-central-1", "connection", "3",
		"container", "checkout", "endpoint", fmt.Sprintf("/api/v1/orders/%d", i%20), "instance", fmt.Sprintf("10.0.%d.12:9090", i%7),
		"job", "kubernetes-pods", "method", []string{"GET", "POST", "PUT"}[i%3], "pod", fmt.Sprintf("checkout-7d9f8b6c5d-%d", i), "series", fmt.Sprint(i))
}

// scraped makes series as targets of a hundred series have them, with names that say
// nothing of one another.
func scraped(i int) []prompb.Label {
	r := rand.New(rand.NewPCG(1, uint64(i/100)))
	hex := func(n int) (s string) {
		for range n / 16 {
			s += fmt.Sprintf("%016x", r.Uint64())
		}
		return s
	}
	return labelsFrom("__name__", fmt.Sprintf("container_%d_bytes_total", i%100/4), "cluster", "prod-eu-central-1", "container_id", hex(64),
		"device", fmt.Sprintf("dev%d", i%4), "instance", fmt.Sprintf("10.%d.%d.%d:9090", r.IntN(256), r.IntN(256), r.IntN(256)),
		"job", "kubernetes-pods", "namespace", hex(16), "pod", "checkout-"+hex(16), "series", fmt.Sprint(i), "uid", hex(32))
}

func labelsFrom(pairs ...string) (labels []prompb.Label) {
	for pair := range slices.Chunk(pairs, 2) {
		labels = append(labels, prompb.Label{Name: pair[0], Value: pair[1]})
	}
	return labels
}

// bodies returns the same series in a request of each version.
func bodies(t testing.TB, series int, labels func(int) []prompb.Label) [2][]byte {
	t.Helper()
	v1, v2, table := new(prompb.WriteRequest), new(writev2.Request), writev2.NewSymbolTable()
	for i := range series {
		one := prompb.TimeSeries{Labels: labels(i), Samples: []prompb.Sample{{Timestamp: 1_700_000_000_000, Value: float64(i) * 1.25}}}
		two := writev2.TimeSeries{Samples: []writev2.Sample{{Timestamp: 1_700_000_000_000, Value: float64(i) * 1.25}}}
		for _, l := range one.Labels {
			two.LabelsRefs = append(two.LabelsRefs, table.Symbolize(l.Name), table.Symbolize(l.Value))
		}
		v1.Timeseries, v2.Timeseries = append(v1.Timeseries, one), append(v2.Timeseries, two)
	}
	v2.Symbols = table.Symbols()
	return [2][]byte{marshal(t, v1), marshalV2(t, v2)}
}

// BenchmarkTranslate is all that a request costs besides HTTP, snappy and publishing;
// and lz4 what the publisher's compression of it costs.
func BenchmarkTranslate(b *testing.B) {
	for name, labels := range map[string]func(int) []prompb.Label{"alike": alike, "scraped": scraped} {
		for _, series := range []int{100, 2000, 10000} {
			both := bodies(b, series, labels)
			for version, body := range both {
				for _, format := range []string{packedFormat, packedV2Format} {
					for _, partitions := range []int{1, 16} {
						b.Run(fmt.Sprintf("%s/%s/%d.0/%d/p%d", format, name, version+1, series, partitions), func(b *testing.B) {
							benchmarkTranslate(b, body, version, format, series, partitions)
						})
					}
				}
			}
		}
	}
}

func benchmarkTranslate(b *testing.B, body []byte, version int, name string, series, partitions int) {
	b.Helper()
	space, limits, f := new(batch), testLimits(), findFormat(name)
	out := outgoing{packing: packing{partitions: partitions, limit: 256 << 10}}
	decode := protocols()[version].decode
	var scratch []byte
	b.ReportAllocs()
	fastest := time.Hour // what a machine that others use, too, has to say
	for b.Loop() {
		began := time.Now()
		space.reset()
		out.reset()
		symbolic := f.symbols || version == 1
		space.form = form{symbolic: symbolic, lean: symbolic, lateKeys: f.byPartition}
		require.NoError(b, decode(space, body, limits))
		_, scratch = space.validate(limits, scratch)
		f.encode(space, &out)
		fastest = min(fastest, time.Since(began))
	}
	b.ReportMetric(float64(fastest.Nanoseconds())/float64(series), "fastest-ns/sample")
	b.ReportMetric(float64(out.bytes)/float64(series), "B/sample")
	dst := make([]byte, 1<<20)
	var c lz4.Compressor
	stored, compressed := 0, time.Hour
	for range 100 {
		began := time.Now()
		stored = 0
		for _, r := range out.records {
			n, err := c.CompressBlock(r.Payload, dst)
			require.NoError(b, err)
			stored += n
		}
		compressed = min(compressed, time.Since(began))
	}
	b.ReportMetric(float64(compressed.Nanoseconds())/float64(series), "lz4-ns/sample")
	b.ReportMetric(float64(stored)/float64(series), "lz4-B/sample")
}
