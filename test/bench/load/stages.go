package load

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// sumTolerance is the allowed difference between the sum of the stages and the total delay, as a
// fraction.
const sumTolerance = 0.05

// message holds the times at which a message reached each point, in nanoseconds since 1970; 0: not
// yet, or unknown.
type message struct {
	due      int64
	sent     int64 // the client has written its batch to the connection
	begun    int64 // the broker begins to store it: the broker's time stamp
	stored   int64 // the broker has acknowledged it
	offered  int64 // the other cluster has sent it to a consumer
	received int64 // the consumer has it
}

// stages returns the time between consecutive points. Without the broker's time stamp, send and
// write are one stage.
func (m *message) stages() map[string]int64 {
	all := map[string]int64{"queue": m.sent - m.due}
	if m.begun > 0 {
		all["send"], all["write"] = m.begun-m.sent, m.stored-m.begun
	} else {
		all["send_write"] = m.stored - m.sent
	}
	if m.offered > 0 {
		all["replicate"], all["pull"] = m.offered-m.stored, m.received-m.offered
	} else {
		all["pull"] = m.received - m.stored
	}
	return all
}

// results adds figures and histograms of the stages, of messages that were due after since.
// The means include negative values, which the histograms cannot hold. The sum of the means must
// equal the mean of the total delay, which is measured independently.
func (t *tap) results(since time.Time, into *Result) error {
	if t.compressed.Load() {
		return errors.New("stages: entries are compressed: the side needs publisher: {compression: none}")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	histograms, sums := map[string]*hdrhistogram.Histogram{}, map[string]float64{}
	messages, negative := 0.0, 0.0
	for _, m := range t.messages {
		if m.due < since.UnixNano() || m.received == 0 || m.stored == 0 {
			continue
		}
		messages++
		for name, ns := range m.stages() {
			if histograms[name] == nil {
				histograms[name] = NewHistogram()
			}
			Record(histograms[name], time.Duration(ns))
			sums[name] += float64(ns) / 1e6
			if ns < 0 {
				negative++
			}
		}
	}
	if messages == 0 {
		return errors.New("stages: no message was seen on the connections")
	}
	f, sum := into.Figures, 0.0
	for name, h := range histograms {
		if err := into.AddHistogram("stage_"+name, h); err != nil {
			return err
		}
		f["stage_"+name+"_mean_ms"] = sums[name] / messages
		sum += sums[name] / messages
	}
	f["stages_sum_over_total"], f["stages_messages"] = sum/f["e2e_mean_ms"], messages
	f["stages_negative_ratio"] = negative / messages / float64(len(histograms))
	if math.Abs(f["stages_sum_over_total"]-1) > sumTolerance {
		return fmt.Errorf("stages: their sum is %.3f ms, but the total delay is %.3f ms", sum, f["e2e_mean_ms"])
	}
	return nil
}
