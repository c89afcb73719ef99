package consume

import (
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
)

// stopwatch times the handling of messages. Asking for the time costs as much as handling a message
// does where handlers are brief: there it is asked for once for several.
type stopwatch struct {
	worker  *schedule.Worker
	metrics subscriptionMetrics

	began   time.Time
	last    time.Duration // since began, when it was last asked for
	every   int           // how many messages are timed together
	untimed int

	handled int           // since began
	elapsed time.Duration // the same, known after end
}

const (
	// brief is the time per message below which several are timed together. So many of them take
	// less time than the metric's resolution.
	brief         = 2 * time.Microsecond
	timedTogether = 8
)

// begin is called before a worker's next messages.
func (t *stopwatch) begin() {
	t.every = 1
	if t.handled > 0 && t.elapsed < time.Duration(t.handled)*brief {
		t.every = timedTogether
	}
	t.began, t.last, t.untimed, t.handled = time.Now(), 0, 0, 0
	t.worker.Start(t.began)
}

// next is called behind each message.
func (t *stopwatch) next() {
	t.handled++
	if t.untimed++; t.untimed >= t.every {
		t.look()
	}
}

// end is called behind the last.
func (t *stopwatch) end() {
	if t.untimed > 0 {
		t.look()
	}
	t.elapsed = t.last
	t.worker.Idle()
}

// look asks for the time. It observes every slow message, and one in 16 of those that take less
// than a metric does. Of several messages timed together, one that is slow takes nearly all of it.
func (t *stopwatch) look() {
	now := time.Since(t.began)
	took := now - t.last
	switch {
	case took >= schedule.Quick:
		t.metrics.seconds.Observe(took.Seconds())
	case t.handled%16 < t.untimed:
		t.metrics.seconds.Observe(took.Seconds() / float64(t.untimed))
	}
	t.last, t.untimed = now, 0
	t.worker.Start(t.began.Add(now))
}
