package registry

import "time"

// Bounds of the registry.
const (
	// MaxBuses, MaxSubscribers and MaxRules bound the whole registry.
	MaxBuses       = 1_000
	MaxSubscribers = 10_000
	MaxRules       = 100_000
	// MaxBytes bounds all records together.
	MaxBytes = 64 << 20
	// MaxSubscriberRules bounds the rules of one subscriber.
	MaxSubscriberRules = 1_000
	// MaxWeight bounds what the patterns of all rules take in an engine, MaxSubscriberWeight those of one subscriber: a pattern of a few hundred bytes
	// may take a megabyte. See [match.Pattern.Weight], which is 2 and more.
	MaxWeight           = 2_000_000
	MaxSubscriberWeight = 200_000
)

const (
	defaultPartitions    = 4
	defaultMaxEventBytes = 256 << 10
	defaultConcurrency   = 16
	defaultTimeout       = Duration(10 * time.Second)
	defaultProbe         = Duration(30 * time.Second)
	defaultBatchEvents   = 100
	defaultBatchLinger   = Duration(20 * time.Millisecond)
)

// NewBus is a bus with the defaults. What is zero in it gets its default, or keeps what is stored, in the change.
func NewBus(name string) Bus {
	return Bus{Name: name, DedupWindow: Duration(10 * time.Minute), MaxEventBytes: defaultMaxEventBytes}
}

// NewSubscriber is a subscriber with the defaults. What is zero in it gets its default, or keeps what is stored, in the
// change. Its rules and its target have to be set.
func NewSubscriber(bus, name string) Subscriber {
	return Subscriber{
		Bus: bus, Name: name,
		Delivery: Delivery{
			Retry:   Retry{MaxAttempts: 16, MaxAge: Duration(24 * time.Hour), Jitter: 0.2},
			Breaker: Breaker{Failures: 10},
		},
	}
}

func defaultSchedule() []Duration {
	return []Duration{
		Duration(time.Second), Duration(5 * time.Second), Duration(30 * time.Second),
		Duration(2 * time.Minute), Duration(10 * time.Minute), Duration(time.Hour),
	}
}

// or sets v where it is zero.
func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// keep takes over what cannot be changed, or stays, where it is not given.
func (s *Subscriber) keep(old *Subscriber) {
	if old == nil {
		return
	}
	or(&s.State, old.State)
	or(&s.Order, old.Order)
	or(&s.Start, old.Start)
}

// fill sets the defaults of what is zero. Lists and parts that it changes are copies.
func (s *Subscriber) fill() {
	or(&s.State, Active)
	or(&s.Order, OrderNone)
	or(&s.Start, "latest")
	if s.Order == OrderTotal {
		or(&s.Delivery.Concurrency, 1)
	}
	or(&s.Delivery.Concurrency, defaultConcurrency)
	or(&s.Delivery.Timeout, defaultTimeout)
	or(&s.Delivery.Breaker.Probe, defaultProbe)
	if len(s.Delivery.Retry.Schedule) == 0 {
		s.Delivery.Retry.Schedule = defaultSchedule()
	}
	if s.Transform != nil {
		t := *s.Transform
		or(&t.ContentType, "application/json")
		s.Transform = &t
	}
	if s.Target.Webhook != nil {
		w := *s.Target.Webhook
		or(&w.Mode, ModeStructured)
		if w.Mode == ModeBatch {
			or(&w.BatchEvents, defaultBatchEvents)
			or(&w.BatchLinger, defaultBatchLinger)
		}
		s.Target.Webhook = &w
	}
}
