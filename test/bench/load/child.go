package load

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bits-and-blooms/bitset"

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
	size     float64 // mean of the payloads, in bytes
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
	open, ok := drivers()[r.turn.Side.Driver]
	if !ok {
		return fmt.Errorf("driver: %q: must be one of %s", r.turn.Side.Driver, strings.Join(Drivers(), ", "))
	}
	if r.payloads, err = r.turn.Workload.Payloads(); err != nil {
		return err
	}
	for _, payload := range r.payloads {
		r.size += float64(len(payload)) / float64(len(r.payloads))
	}
	switch {
	case !r.turn.Side.Stages:
	case !strings.HasPrefix(cluster.URL, plainScheme):
		fmt.Fprintln(os.Stderr, "bench: stages are not measured: the connections use TLS")
	default:
		r.tap = newTap()
		defer r.tap.close()
		if err := r.tap.replace(&cluster.URL, &r.turn.RemoteURL); err != nil {
			return err
		}
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
		r.driver = &geo{r.driver, remote, r.tap != nil}
	}
	for range r.turn.Subscriptions {
		r.arrived = append(r.arrived, &arrivals{seen: map[uint32]*bitset.BitSet{}})
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
	w := &r.turn.Workload
	r.enter(PhaseWarmUp)
	ticking, stopTicks := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { r.tick(ticking) })
	defer wg.Wait()
	defer stopTicks()
	if r.turn.Stored > 0 {
		return r.receiveStored(ctx)
	}
	for _, topic := range r.turn.Topics {
		for range w.ProducersPerTopic {
			producer, err := r.driver.Producer(ctx, topic, r.report)
			if err != nil {
				return err
			}
			r.senders = append(r.senders, &sender{producer: producer, number: uint32(len(r.senders))})
		}
	}
	if r.turn.Side.Idle {
		return r.idle(ctx)
	}
	if w.ConsumerBacklogSizeGB > 0 {
		return r.backlog(ctx)
	}
	return r.consuming(ctx, func(context.Context) error {
		if err := r.warmUp(ctx, phaseLoad); err != nil {
			return err
		}
		err := r.send(ctx, w.Duration(), r.turn.Messages, float64(w.ProducerRate))
		r.stop()
		return err
	})
}

// warmUp sends during the warm-up. Then it begins to measure.
func (r *run) warmUp(ctx context.Context, next string) error {
	if w := &r.turn.Workload; w.Warmup() > 0 {
		if err := r.send(ctx, w.Warmup(), 0, float64(w.ProducerRate)); err != nil {
			return err
		}
	}
	return r.start(next)
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
	if err := r.warmUp(ctx, phaseBuild); err != nil {
		return err
	}
	w := &r.turn.Workload
	messages := max(int(w.ConsumerBacklogSizeGB*1e9/r.size)-int(r.acked.Load()), 1)
	if err := r.send(ctx, drainTimeout, messages, float64(w.ProducerRate)); err != nil {
		return err
	}
	if got := int(r.acked.Load()); got < messages {
		return fmt.Errorf("the backlog was not built within %s: %d of %d messages", drainTimeout, got, messages)
	}
	r.enter(phaseDrain)
	r.backlogMessages, r.drainBegan = r.acked.Load(), time.Now()
	return r.consuming(ctx, func(receiving context.Context) error {
		sent := make(chan error, 1)
		go func() { sent <- r.send(ctx, drainTimeout, 0, float64(w.ProducerRate)*w.BacklogDrainRatio) }()
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
