package model

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
	// MaxWeight bounds the weight in an engine of the patterns of all rules, MaxSubscriberWeight of
	// the rules of one subscriber: a pattern of a few hundred bytes may take a megabyte. See
	// [eventpattern.Pattern.Weight], which is 2 or more.
	MaxWeight           = 2_000_000
	MaxSubscriberWeight = 200_000
)

// These are the defaults of definitions.
const (
	DefaultPartitions    = 4
	DefaultMaxEventBytes = 256 << 10
	defaultConcurrency   = 16
	defaultTimeout       = Duration(10 * time.Second)
	defaultProbe         = Duration(30 * time.Second)
	defaultBatchEvents   = 100
	defaultBatchLinger   = Duration(20 * time.Millisecond)
)

// NewBus returns a bus with the defaults. When it is put, a zero field gets its default, or keeps
// the stored value.
func NewBus(name string) Bus {
	return Bus{Name: name, DedupWindow: Duration(10 * time.Minute), MaxEventBytes: DefaultMaxEventBytes}
}

// NewSubscriber returns a subscriber with the defaults. When it is put, a zero field gets its
// default, or keeps the stored value. Its rules and its target have to be set.
func NewSubscriber(bus, name string) Subscriber {
	return Subscriber{
		Bus: bus, Name: name,
		Delivery: Delivery{
			Retry:   Retry{MaxAttempts: 16, MaxAge: Duration(24 * time.Hour), Jitter: 0.2},
			Breaker: Breaker{Failures: 10},
		},
	}
}

// SetDefault sets v to otherwise if v is zero.
func SetDefault[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// Fill sets zero fields to their defaults, also below pointers.
func (s *Subscriber) Fill() {
	SetDefault(&s.State, Active)
	SetDefault(&s.Order, OrderNone)
	SetDefault(&s.Start, "latest")
	if s.Order == OrderTotal {
		SetDefault(&s.Delivery.Concurrency, 1)
	}
	SetDefault(&s.Delivery.Concurrency, defaultConcurrency)
	SetDefault(&s.Delivery.Timeout, defaultTimeout)
	SetDefault(&s.Delivery.Breaker.Probe, defaultProbe)
	if s.Delivery.Retry.Schedule == nil {
		s.Delivery.Retry.Schedule = []Duration{
			Duration(time.Second), Duration(5 * time.Second), Duration(30 * time.Second),
			Duration(2 * time.Minute), Duration(10 * time.Minute), Duration(time.Hour),
		}
	}
	if s.Transform != nil {
		SetDefault(&s.Transform.ContentType, "application/json")
	}
	if w := s.Target.Webhook; w != nil {
		SetDefault(&w.Mode, ModeStructured)
		if w.Mode == ModeBatch {
			SetDefault(&w.BatchEvents, defaultBatchEvents)
			SetDefault(&w.BatchLinger, defaultBatchLinger)
		}
	}
}
