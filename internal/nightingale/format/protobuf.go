package format

import "github.com/aviaryhq/aviary/internal/nightingale/batch"

// encodeProtobuf writes the protobuf format: one message per series of a request, a
// prometheus.TimeSeries with labels sorted by name, all samples of the request in their order,
// exemplars and native histograms. A stale marker is a NaN with the bits that the sender sent. The
// message's key is the series' key, 16 hexadecimal digits.
func encodeProtobuf(b *batch.Batch, _ *Packing, out *Messages) {
	out.newArena(protobufSize(b, nil))
	for i := range b.Series {
		s := &b.Series[i]
		var c contents
		c.add(s)
		if !out.begin(s.Key, b.Latest(s), c) {
			return
		}
		out.arena = b.AppendSeries(out.arena, s)
	}
	out.makeRecords()
}

func protobufSize(b *batch.Batch, _ *Packing) (size int) {
	for i := range b.Series {
		size += 16 + b.EncodedSize(&b.Series[i])
	}
	return size
}
