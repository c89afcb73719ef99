package nightingale

import (
	"fmt"
	"testing"
	"time"

	"github.com/pierrec/lz4/v4"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// BenchmarkTranslate is all that a request costs besides HTTP, snappy and publishing;
// and lz4 what the publisher's compression of it costs.
func BenchmarkTranslate(b *testing.B) {
	for name, labels := range map[string]func(int) []prompb.Label{"alike": writetest.Alike, "scraped": writetest.Scraped} {
		for _, series := range []int{100, 2000, 10000} {
			both := writetest.Bodies(b, series, labels)
			for version, body := range both {
				for _, partitions := range []int{1, 16} {
					b.Run(fmt.Sprintf("%s/%d.0/%d/p%d", name, version+1, series, partitions), func(b *testing.B) {
						benchmarkTranslate(b, body, version, series, partitions)
					})
				}
			}
		}
	}
}

func benchmarkTranslate(b *testing.B, body []byte, version, series, partitions int) {
	b.Helper()
	space, limits, f := new(batch.Batch), remotewrite.DefaultLimits(), format.Find("packed")
	out, p := format.Messages{}, format.Packing{Partitions: partitions, Limit: 256 << 10}
	decode := remotewrite.Protocols()[version].Decode
	var scratch []byte
	b.ReportAllocs()
	fastest := time.Hour // what a machine that others use, too, has to say
	for b.Loop() {
		began := time.Now()
		space.Reset()
		p.Reset()
		out.Reset()
		space.References = true
		require.NoError(b, decode(space, body, limits))
		_, scratch = remotewrite.Validate(space, limits, scratch)
		f.Encode(space, &p, &out)
		fastest = min(fastest, time.Since(began))
	}
	b.ReportMetric(float64(fastest.Nanoseconds())/float64(series), "fastest-ns/sample")
	b.ReportMetric(float64(out.Bytes)/float64(series), "B/sample")
	dst := make([]byte, 1<<20)
	var c lz4.Compressor
	stored, compressed := 0, time.Hour
	for range 100 {
		began := time.Now()
		stored = 0
		for _, r := range out.Records {
			n, err := c.CompressBlock(r.Payload, dst)
			require.NoError(b, err)
			stored += n
		}
		compressed = min(compressed, time.Since(began))
	}
	b.ReportMetric(float64(compressed.Nanoseconds())/float64(series), "lz4-ns/sample")
	b.ReportMetric(float64(stored)/float64(series), "lz4-B/sample")
}
