package senders

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
)

// FirstTime is the time, in milliseconds, of the first request of a connection. The nth request
// after it has the time FirstTime + n.
const FirstTime = 1_700_000_000_000

// Remote says what the requests of remote write contain. The zero value is the usual load.
type Remote struct {
	Series  int  // of a request; 0: 2000
	Varied  bool // labels and values that compress less well
	Version int  // of remote write; 0: 1
}

// PerRequest is the number of series of a request. Each has one sample.
func (l Remote) PerRequest() int { return cmp.Or(l.Series, 2000) }

// Sample returns the ten labels of a series of a connection, and its value.
func (l Remote) Sample(connection, series int) (labels.Labels, float64) {
	if l.Varied {
		return variedLabels(connection, series), rand.New(rand.NewPCG(uint64(connection), uint64(series))).NormFloat64() * 1e6
	}
	return labels.FromStrings(
		"__name__", "http_requests_total_"+strconv.Itoa(series%50), "cluster", "prod-eu-central-1",
		"connection", strconv.Itoa(connection), "container", "checkout", "endpoint", "/api/v1/orders/"+strconv.Itoa(series%20),
		"instance", "10.0."+strconv.Itoa(series%7)+".12:9090", "job", "kubernetes-pods",
		"method", []string{"GET", "POST", "PUT"}[series%3], "pod", "checkout-7d9f8b6c5d-"+strconv.Itoa(series),
		"series", strconv.Itoa(series),
	), float64(series)*1.25 + float64(connection)
}

// variedLabels returns labels with random values. Five of them change with every tenth series, as
// for the series of one target. The path is different in every series.
func variedLabels(connection, series int) labels.Labels {
	target := rand.New(rand.NewPCG(uint64(connection), uint64(series/10)))
	own := rand.New(rand.NewPCG(uint64(connection)+1<<32, uint64(series)))
	text := func(r *rand.Rand, n int) string {
		b := make([]byte, n/2)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return hex.EncodeToString(b)
	}
	return labels.FromStrings(
		"__name__", "app_"+text(rand.New(rand.NewPCG(1, uint64(series%200))), 12)+"_total",
		"connection", strconv.Itoa(connection), "container_id", text(target, 64),
		"instance", fmt.Sprintf("10.%d.%d.%d:9090", target.IntN(256), target.IntN(256), target.IntN(256)), "job", "kubernetes-pods",
		"namespace", text(target, 8), "path", "/orders/"+text(own, 16), "pod", "checkout-"+text(target, 10)+"-"+text(target, 6),
		"series", strconv.Itoa(series), "uid", text(target, 32),
	)
}

// Bodies returns a function that makes the nth request of a connection, compressed. Requests differ
// in their time only.
func (l Remote) Bodies(connection int) func(n int) ([]byte, error) {
	var first prompb.WriteRequest
	var second writev2.Request
	symbols := writev2.NewSymbolTable()
	for series := range l.PerRequest() {
		set, value := l.Sample(connection, series)
		first.Timeseries = append(first.Timeseries, prompb.TimeSeries{
			Labels: prompb.FromLabels(set, nil), Samples: []prompb.Sample{{Value: value}},
		})
		second.Timeseries = append(second.Timeseries, writev2.TimeSeries{
			LabelsRefs: symbols.SymbolizeLabels(set, nil), Samples: []writev2.Sample{{Value: value}},
		})
	}
	second.Symbols = symbols.Symbols()
	return func(n int) ([]byte, error) {
		for i := range first.Timeseries {
			first.Timeseries[i].Samples[0].Timestamp = FirstTime + int64(n)
			second.Timeseries[i].Samples[0].Timestamp = FirstTime + int64(n)
		}
		marshal := first.Marshal
		if l.Version == 2 {
			marshal = second.Marshal
		}
		body, err := marshal()
		return snappy.Encode(nil, body), err
	}
}
