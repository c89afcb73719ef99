package load

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// longest is the greatest latency of a histogram: longer ones count as this.
const longest = 10 * time.Minute

// NewHistogram returns an empty histogram of microseconds, with three digits.
func NewHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, longest.Microseconds(), 3)
}

// Record adds a time to a histogram. Shorter ones count as 1 us, longer ones as ten minutes.
func Record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d, time.Microsecond), longest).Microseconds()) // within the bounds
}

// AddHistogram adds a histogram to the result unless it is empty, and its percentiles as figures:
// NAME_p50_ms and so on.
func (r *Result) AddHistogram(name string, h *hdrhistogram.Histogram) error {
	percentiles(name, h, r.Figures)
	if h.TotalCount() == 0 {
		return nil
	}
	encoded, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	r.Histograms[name] = string(encoded)
	return err
}

// recorder keeps the latencies of the current second and of each phase. It is safe for concurrent
// use.
type recorder struct {
	mu     sync.Mutex
	second *hdrhistogram.Histogram
	phase  string
	phases map[string]*hdrhistogram.Histogram
}

func newRecorder() *recorder {
	return &recorder{second: NewHistogram(), phases: map[string]*hdrhistogram.Histogram{}}
}

func (r *recorder) record(d time.Duration) {
	r.mu.Lock()
	Record(r.second, d)
	r.mu.Unlock()
}

// tick adds the percentiles of the second to values, as NAME_p50_ms and so on, and begins the next
// second.
func (r *recorder) tick(name string, values map[string]float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.second.TotalCount() > 0 {
		percentiles(name, r.second, values)
	}
	r.close()
}

// enter ends the phase and begins another.
func (r *recorder) enter(phase string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.close()
	r.phase = phase
}

// close adds the latencies of the second to its phase. The caller holds mu.
func (r *recorder) close() {
	if r.second.TotalCount() == 0 {
		return
	}
	if r.phases[r.phase] == nil {
		r.phases[r.phase] = NewHistogram()
	}
	r.phases[r.phase].Merge(r.second)
	r.second.Reset()
}

// results adds figures and a histogram of all phases except the warm-up. If there are several
// phases, it adds figures of each one too.
func (r *recorder) results(name string, into *Result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.close()
	delete(r.phases, PhaseWarmUp)
	all := NewHistogram()
	for phase, h := range r.phases {
		all.Merge(h)
		if len(r.phases) > 1 {
			percentiles(name+"_"+phase, h, into.Figures)
		}
	}
	if all.TotalCount() == 0 {
		return nil
	}
	return into.AddHistogram(name, all)
}

// percentiles adds a histogram's percentiles and mean in milliseconds.
func percentiles(name string, h *hdrhistogram.Histogram, into map[string]float64) {
	for suffix, q := range map[string]float64{"p50": 50, "p95": 95, "p99": 99, "p999": 99.9, "max": 100} {
		into[name+"_"+suffix+"_ms"] = float64(h.ValueAtQuantile(q)) / 1000
	}
	into[name+"_mean_ms"] = h.Mean() / 1000
}
