package measure

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"

	"github.com/klauspost/compress/snappy"
)

const (
	// RemoteSeries is the number of series of a request.
	RemoteSeries = 2000
	// FirstTime is the time, in milliseconds, of the first request of a connection. The nth is for
	// FirstTime + n.
	FirstTime = 1_700_000_000_000
)

// RemoteLoad says what the requests of a load are like. The zero value is the usual load.
type RemoteLoad struct {
	Series  int  `json:"series"`  // of a request; 0: RemoteSeries
	Varied  bool `json:"varied"`  // labels that compress less well
	Version int  `json:"version"` // of remote write; 0: 1
}

// PerRequest is how many series a request has.
func (l RemoteLoad) PerRequest() int { return cmp.Or(l.Series, RemoteSeries) }

// labels are the ten labels of a series of one connection, sorted.
func (l RemoteLoad) labels(connection, series int) [][2]string {
	if l.Varied {
		return variedLabels(connection, series)
	}
	return RemoteLabels(connection, series)
}

// value is the series' sample.
func (l RemoteLoad) value(connection, series int) float64 {
	if l.Varied {
		return rand.New(rand.NewPCG(uint64(connection), uint64(series))).NormFloat64() * 1e6
	}
	return float64(series)*1.25 + float64(connection)
}

// RemoteLabels have values that are mostly alike.
func RemoteLabels(connection, series int) [][2]string {
	return [][2]string{
		{"__name__", "http_requests_total_" + strconv.Itoa(series%50)},
		{"cluster", "prod-eu-central-1"}, {"connection", strconv.Itoa(connection)},
		{"container", "checkout"}, {"endpoint", "/api/v1/orders/" + strconv.Itoa(series%20)},
		{"instance", "10.0." + strconv.Itoa(series%7) + ".12:9090"}, {"job", "kubernetes-pods"},
		{"method", []string{"GET", "POST", "PUT"}[series%3]}, {"pod", "checkout-7d9f8b6c5d-" + strconv.Itoa(series)},
		{"series", strconv.Itoa(series)},
	}
}

// variedTarget is how many series of a target come together.
const variedTarget = 10

// variedLabels have values that say nothing of one another: those of a target are the
// same in a few series, one is each series' own.
func variedLabels(connection, series int) [][2]string {
	target := rand.New(rand.NewPCG(uint64(connection), uint64(series/variedTarget)))
	text := func(r *rand.Rand, n int) string {
		b := make([]byte, n/2)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return hex.EncodeToString(b)
	}
	own := rand.New(rand.NewPCG(uint64(connection)+1<<32, uint64(series)))
	return [][2]string{
		{"__name__", "app_" + text(rand.New(rand.NewPCG(1, uint64(series%200))), 12) + "_total"},
		{"connection", strconv.Itoa(connection)}, {"container_id", text(target, 64)},
		{"instance", fmt.Sprintf("10.%d.%d.%d:9090", target.IntN(256), target.IntN(256), target.IntN(256))}, {"job", "kubernetes-pods"},
		{"namespace", text(target, 8)}, {"path", "/orders/" + text(own, 16)}, {"pod", "checkout-" + text(target, 10) + "-" + text(target, 6)},
		{"series", strconv.Itoa(series)}, {"uid", text(target, 32)},
	}
}

// RemoteBodies makes the requests of one connection. They are alike but for the
// timestamps, all of a width, so that a new one costs no marshalling.
type RemoteBodies struct {
	Template []byte
	places   []int // of the timestamps
}

// NewRemoteBodies returns the requests of a connection.
func NewRemoteBodies(connection int, l RemoteLoad) *RemoteBodies {
	b := new(RemoteBodies)
	symbols := map[string]uint64{}
	reference := func(text string) uint64 {
		if _, known := symbols[text]; !known {
			symbols[text] = uint64(len(symbols))
			b.Template = appendBytes(b.Template, 4, []byte(text))
		}
		return symbols[text]
	}
	var field byte = 1
	if l.Version == 2 {
		field = 5
		reference("")
		for series := range l.PerRequest() { // symbols stand before the series
			for _, label := range l.labels(connection, series) {
				reference(label[0])
				reference(label[1])
			}
		}
	}
	for series := range l.PerRequest() {
		var ts, refs []byte
		for _, label := range l.labels(connection, series) {
			if l.Version == 2 {
				refs = binary.AppendUvarint(binary.AppendUvarint(refs, reference(label[0])), reference(label[1]))
			} else {
				ts = appendBytes(ts, 1, appendBytes(appendBytes(nil, 1, []byte(label[0])), 2, []byte(label[1])))
			}
		}
		if l.Version == 2 {
			ts = appendBytes(ts, 1, refs)
		}
		sample := binary.LittleEndian.AppendUint64([]byte{1<<3 | 1}, math.Float64bits(l.value(connection, series)))
		sample = binary.AppendUvarint(append(sample, 2<<3), FirstTime)
		ts = appendBytes(ts, 2, sample)
		behind := 0
		if l.Version == 2 { // metadata without anything, as Prometheus writes it
			ts = appendBytes(ts, 5, nil)
			behind = 2
		}
		b.Template = appendBytes(b.Template, field, ts)
		b.places = append(b.places, len(b.Template)-behind-len(binary.AppendUvarint(nil, FirstTime)))
	}
	return b
}

// appendBytes appends a field of protobuf.
func appendBytes(dst []byte, field byte, data []byte) []byte {
	return append(binary.AppendUvarint(append(dst, field<<3|2), uint64(len(data))), data...)
}

// Body returns the nth request, compressed.
func (b *RemoteBodies) Body(n int) []byte {
	stamp := binary.AppendUvarint(nil, FirstTime+uint64(n))
	for _, at := range b.places {
		copy(b.Template[at:], stamp)
	}
	return snappy.Encode(nil, b.Template)
}
