package load

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// tick writes a sample every second.
func (r *run) tick(ctx context.Context) {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	began := time.Now()
	last, acked, received, cpu := began, int64(0), int64(0), measure.CPUSeconds()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		now, nowAcked, nowReceived, nowCPU := time.Now(), r.acked.Load(), r.received.Load(), measure.CPUSeconds()
		seconds := now.Sub(last).Seconds()
		memory, _, _ := measure.ResidentMiB(os.Getpid()) // 0 where it is not known
		values := map[string]float64{
			"publish_msg_s": float64(nowAcked-acked) / seconds, "consume_msg_s": float64(nowReceived-received) / seconds,
			"cpu_cores": (nowCPU - cpu) / seconds, "memory_mib": memory,
		}
		if len(r.arrived) > 0 && r.turn.Stored == 0 {
			values["backlog_messages"] = float64(max(r.behind(nowAcked), 0))
		}
		r.publish.tick("publish", values)
		r.endToEnd.tick("e2e", values)
		sample := Sample{At: now.Sub(began).Seconds(), Phase: *r.phase.Load(), Values: values}
		last, acked, received, cpu = now, nowAcked, nowReceived, nowCPU
		_ = r.out.Encode(line{Sample: &sample}) // if the parent is gone, writing the result fails too
	}
}

// result calculates the figures.
func (r *run) result() (*Result, error) {
	o := r.meter.Outcome
	published, received := float64(r.acked.Load()-r.warmAcked), float64(r.measuredReceived)
	if r.turn.Stored > 0 {
		published = 0
	}
	_, peak, err := measure.ResidentMiB(os.Getpid())
	if err != nil {
		return nil, err
	}
	handled := max(published, received, 1)
	f := map[string]float64{
		"seconds": o.Seconds, "cpu_us": o.CPU / handled * 1e6, "cpu_cores": o.CPU / o.Seconds, "peak_mib": peak,
		"allocs":        o.Allocs / handled,
		"publish_msg_s": published / o.Seconds, "publish_mb_s": published * r.size / o.Seconds / 1e6,
		"acknowledged": float64(r.acked.Load()), "failed": float64(r.failed.Load()), "unsent": float64(r.unsent.Load()),
	}
	if len(r.arrived) > 0 {
		f["consume_msg_s"] = received / o.Seconds
		for _, a := range r.arrived {
			f["lost"] += float64(max(r.acked.Load()-a.distinct.Load(), 0))
			f["duplicated"] += float64(a.duplicates.Load())
			f["unexpected"] += float64(a.unexpected.Load())
		}
	}
	if r.drainSeconds > 0 {
		f["drain_s"], f["drain_msg_s"] = r.drainSeconds, float64(r.received.Load())/r.drainSeconds
		f["backlog_messages"] = float64(r.backlogMessages)
	}
	if d, ok := r.driver.(interface{ figures(map[string]float64) }); ok { // those of the driver itself
		d.figures(f)
	}
	result := &Result{Figures: f, Histograms: map[string]string{}}
	err = errors.Join(r.publish.results("publish", result), r.endToEnd.results("e2e", result))
	if r.tap != nil {
		err = errors.Join(err, r.tap.results(time.Unix(0, r.measuredFrom.Load()), result))
	}
	return result, err
}
