package load

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/measure"
)

// The phases of a turn.
const (
	PhaseWarmUp = "warmup"
	phaseLoad   = "load"
	phaseBuild  = "build" // of a backlog
	phaseDrain  = "drain"
)

const (
	// arrivalTimeout is how long messages may take to arrive after the last one was acknowledged.
	arrivalTimeout = time.Minute
	// drainTimeout is how long building and draining a backlog may take.
	drainTimeout = 30 * time.Minute
	// maxBehind is how many messages a subscription may be behind when the backlog counts as drained.
	maxBehind = 1000
)

// run is a turn in the child process.
type run struct {
	turn   Turn
	driver Driver
	tap    *tap // nil unless the side measures stages
	meter  measure.Meter

	senders  []*sender
	payloads [][]byte
	keys     []string

	publish, endToEnd       *recorder
	acked, failed, received atomic.Int64
	unsent                  atomic.Int64 // messages that were due and not sent: the rate is too high
	stopped                 atomic.Bool
	firstFailure            sync.Once
	arrived                 []*arrivals // of each subscription

	// Counts of the warm-up, and of the measured time.
	warmAcked, warmReceived, measuredReceived int64

	measuredFrom atomic.Int64 // Unix time in nanoseconds

	backlogMessages int64
	drainBegan      time.Time
	drainSeconds    float64

	out   *json.Encoder // of the ticker, and of the result after it
	phase atomic.Pointer[string]
}

// RunChild reads a turn from in, runs it at the cluster, and writes samples and the result to out.
func RunChild(ctx context.Context, cluster messaging.Config, in io.Reader, out io.Writer) (err error) {
	r := &run{publish: newRecorder(), endToEnd: newRecorder(), out: json.NewEncoder(out), keys: keyNames()}
	if err := json.NewDecoder(in).Decode(&r.turn); err != nil {
		return err
	}
	if r.turn.URL != "" {
		cluster = messaging.DefaultConfig()
		cluster.URL, cluster.AdminURL, cluster.ListenerName = r.turn.URL, r.turn.AdminURL, r.turn.Listener
	}
	open, ok := drivers()[r.turn.Side.Driver]
	if !ok {
		return fmt.Errorf("driver: %q: must be one of %s", r.turn.Side.Driver, strings.Join(Drivers(), ", "))
	}
	if r.payloads, err = r.turn.Workload.Payloads(); err != nil {
		return err
	}
	switch {
	case !r.turn.Side.Stages:
	case !strings.HasPrefix(cluster.URL, plainScheme):
		fmt.Fprintln(os.Stderr, "bench: stages are not measured: the connections use TLS")
	default:
		if r.tap, err = newTap(&cluster, &r.turn.RemoteURL); err != nil {
			return err
		}
		defer r.tap.close()
	}
	if r.driver, err = open(ctx, cluster, r.turn); err != nil {
		return err
	}
	defer r.driver.Close()
	if r.turn.RemoteURL != "" {
		cluster.URL, cluster.AdminURL = r.turn.RemoteURL, ""
		remote, err := open(ctx, cluster, r.turn)
		if err != nil {
			return err
		}
		defer remote.Close()
		r.driver = &geo{r.driver, remote}
	}
	for range r.turn.Subscriptions {
		r.arrived = append(r.arrived, new(arrivals))
	}
	r.meter.Profile = r.turn.Profile
	if err := r.measure(ctx); err != nil {
		return err
	}
	result, err := r.result()
	if err != nil {
		return err
	}
	return errors.Join(r.meter.Finish(), r.out.Encode(line{Result: result}))
}

// measure runs the turn's phases.
func (r *run) measure(ctx context.Context) error {
	r.enter(PhaseWarmUp)
	ticking, stopTicks := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { r.tick(ticking) })
	defer wg.Wait()
	defer stopTicks()
	if r.turn.Stored > 0 {
		return r.receiveStored(ctx)
	}
	for i, topic := range r.turn.Topics {
		for p := range r.turn.Workload.ProducersPerTopic {
			producer, err := r.driver.Producer(ctx, topic, r.report)
			if err != nil {
				return err
			}
			r.senders = append(r.senders, &sender{producer: producer, number: uint32(i*r.turn.Workload.ProducersPerTopic + p)})
		}
	}
	if r.turn.Side.Idle {
		return r.idle(ctx)
	}
	if r.turn.Workload.ConsumerBacklogSizeGB > 0 {
		return r.backlog(ctx)
	}
	return r.consuming(ctx, func(context.Context) error {
		w := r.turn.Workload
		if w.Warmup() > 0 {
			if err := r.send(ctx, time.Now().Add(w.Warmup()), 0, float64(w.ProducerRate)); err != nil {
				return err
			}
		}
		if err := r.start(phaseLoad); err != nil {
			return err
		}
		err := r.send(ctx, time.Now().Add(w.Duration()), r.turn.Messages, float64(w.ProducerRate))
		r.stop()
		return err
	})
}

// start ends the warm-up and begins to measure.
func (r *run) start(phase string) error {
	r.warmAcked, r.warmReceived = r.acked.Load(), r.received.Load()
	r.measuredFrom.Store(time.Now().UnixNano())
	r.enter(phase)
	return r.meter.Start()
}

// stop ends the measured time.
func (r *run) stop() {
	r.measuredReceived = r.received.Load() - r.warmReceived
	r.meter.Stop(int(r.acked.Load() - r.warmAcked))
}

// consuming starts the consumers, runs f, waits until all messages are received, and stops them.
func (r *run) consuming(ctx context.Context, f func(receiving context.Context) error) error {
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		err := r.consume(receiving)
		if err != nil {
			r.stopped.Store(true)
			stop()
		}
		ended <- err
	}()
	err := f(receiving)
	if err == nil {
		r.awaitArrivals(receiving, 0, arrivalTimeout) // messages that do not arrive count as lost
	}
	stop()
	return cmp.Or(<-ended, err)
}

// receiveStored measures how long consumers take to subscribe and to receive all stored messages.
func (r *run) receiveStored(ctx context.Context) error {
	if err := r.start(phaseLoad); err != nil {
		return err
	}
	r.acked.Store(int64(r.turn.Stored * len(r.turn.Topics)))
	return r.consuming(ctx, func(receiving context.Context) error {
		r.awaitArrivals(receiving, 0, arrivalTimeout)
		r.stop()
		return nil
	})
}

// idle measures producers that publish nothing.
func (r *run) idle(ctx context.Context) error {
	debug.FreeOSMemory()
	if err := r.start(phaseLoad); err != nil {
		return err
	}
	sleepUntil(ctx, time.Now().Add(r.turn.Workload.Duration()))
	r.stop()
	return ctx.Err()
}

// backlog publishes until the backlog has its size, and continues while consumers drain it.
func (r *run) backlog(ctx context.Context) error {
	w := r.turn.Workload
	if w.Warmup() > 0 {
		if err := r.send(ctx, time.Now().Add(w.Warmup()), 0, float64(w.ProducerRate)); err != nil {
			return err
		}
	}
	if err := r.start(phaseBuild); err != nil {
		return err
	}
	messages := max(int(w.ConsumerBacklogSizeGB*1e9/float64(len(r.payloads[0])))-int(r.acked.Load()), 1)
	if err := r.send(ctx, time.Now().Add(drainTimeout), messages, float64(w.ProducerRate)); err != nil {
		return err
	}
	if got := int(r.acked.Load()); got < messages {
		return fmt.Errorf("the backlog was not built within %s: %d of %d messages", drainTimeout, got, messages)
	}
	r.enter(phaseDrain)
	r.backlogMessages, r.drainBegan = r.acked.Load(), time.Now()
	return r.consuming(ctx, func(receiving context.Context) error {
		sent := make(chan error, 1)
		go func() {
			sent <- r.send(ctx, time.Now().Add(drainTimeout), 0, float64(w.ProducerRate)*w.BacklogDrainRatio)
		}()
		draining, cancel := context.WithTimeout(receiving, drainTimeout)
		defer cancel()
		if !r.awaitArrivals(draining, maxBehind, drainTimeout) {
			return fmt.Errorf("the backlog was not drained within %s: reduce producerRate or backlogDrainRatio", drainTimeout)
		}
		r.drainSeconds = time.Since(r.drainBegan).Seconds()
		r.stopped.Store(true)
		err := <-sent
		r.stop()
		return err
	})
}

func (r *run) enter(phase string) {
	r.publish.enter(phase)
	r.endToEnd.enter(phase)
	r.phase.Store(&phase)
}

// fail counts a message that the broker did not acknowledge.
func (r *run) fail(err error) {
	r.failed.Add(1)
	r.firstFailure.Do(func() { fmt.Fprintln(os.Stderr, "bench: first failed message:", err) })
}

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
		memory, _ := measure.ResidentMiB(os.Getpid(), "VmRSS") // 0 where it is not known
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
	size := float64(len(r.payloads[0]))
	peak, err := measure.ResidentMiB(os.Getpid(), "VmHWM")
	if err != nil {
		return nil, err
	}
	f := map[string]float64{
		"seconds": o.Seconds, "publish_msg_s": published / o.Seconds, "publish_mb_s": published * size / o.Seconds / 1e6,
		"acknowledged": float64(r.acked.Load()), "failed": float64(r.failed.Load()), "unsent": float64(r.unsent.Load()),
		"peak_mib": peak,
		"cpu_us":   o.CPU / max(published, received, 1) * 1e6, "cpu_cores": o.CPU / o.Seconds, "allocs": o.Allocs * float64(max(o.Messages, 1)) / max(published, received, 1),
	}
	if len(r.arrived) > 0 {
		f["consume_msg_s"] = received / o.Seconds
		var lost, duplicated, unexpected int64
		for _, a := range r.arrived {
			distinct, duplicates, aborted := a.counts()
			lost, duplicated, unexpected = lost+max(r.acked.Load()-distinct, 0), duplicated+duplicates, unexpected+aborted
		}
		f["lost"], f["duplicated"], f["unexpected"] = float64(lost), float64(duplicated), float64(unexpected)
	}
	if r.drainSeconds > 0 {
		f["drain_s"], f["drain_msg_s"] = r.drainSeconds, float64(r.received.Load())/r.drainSeconds
		f["backlog_messages"] = float64(r.backlogMessages)
	}
	maps.Copy(f, r.driver.Figures())
	if _, ok := r.driver.(*transactions); ok { // its producer is another process
		for _, name := range []string{"cpu_us", "cpu_cores", "allocs", "peak_mib"} {
			delete(f, name)
		}
	}
	result := &Result{Figures: f, Histograms: map[string]string{}}
	err = errors.Join(r.publish.results("publish", result), r.endToEnd.results("e2e", result))
	if r.tap != nil {
		err = errors.Join(err, r.tap.results(time.Unix(0, r.measuredFrom.Load()), result))
	}
	return result, err
}
