package model

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aviaryhq/aviary/pkg/eventpattern"
)

// ValidateSubscriber returns what is wrong with s alone, without looking at what is stored, and
// compiles its patterns. s must have its defaults. Secrets may be hidden.
func ValidateSubscriber(s *Subscriber, checks Checks) (f FaultList) {
	f.Name("/bus", s.Bus)
	f.Name("/name", s.Name)
	f.Text("/description", s.Description, maxDescription)
	OneOf(&f, "/state", s.State, Active, Paused, Disabled)
	OneOf(&f, "/order", s.Order, OrderNone, OrderGroup, OrderTotal)
	if _, err := time.Parse(time.RFC3339, s.Start); err != nil && s.Start != "latest" && s.Start != "earliest" {
		f.Add("/start", "must be latest, earliest, or a time such as 2026-01-02T15:04:05Z, got %s", Quote(s.Start))
	}
	ValidateRules(&f, s)
	if s.Transform != nil && checks.Transform != nil {
		f.below("/transform", checks.Transform(s.Transform))
	}
	f.below("/target", validateTarget(s, checks))
	validateDelivery(&f, s)
	return f
}

// ValidateRules compiles the rules' patterns. The list of rules becomes a copy.
func ValidateRules(f *FaultList, s *Subscriber) {
	if n := len(s.Rules); n < 1 || n > MaxSubscriberRules {
		f.Add("/rules", "must be 1 to %d rules, got %d", MaxSubscriberRules, n)
	}
	s.Rules = slices.Clone(s.Rules)
	names := make(map[string]int)
	for i := range s.Rules {
		r, at := &s.Rules[i], fmt.Sprintf("/rules/%d", i)
		f.Name(at+"/name", r.Name)
		if first, twice := names[r.Name]; twice {
			f.Add(at+"/name", "must differ from that of /rules/%d", first)
		} else {
			names[r.Name] = i
		}
		if len(r.Pattern) == 0 || string(r.Pattern) == "null" { // null: it was not given, and encoded since
			f.Add(at+"/pattern", "must be given")
			continue
		}
		pattern, err := eventpattern.Parse(r.Pattern)
		if bad := (*eventpattern.Error)(nil); errors.As(err, &bad) {
			f.Add(at+"/pattern"+bad.Pointer, "%s (offset %d of the pattern)", bad.Reason, bad.Offset)
		}
		r.compiled = pattern
	}
}

func validateDelivery(f *FaultList, s *Subscriber) {
	d := &s.Delivery
	if s.Order == OrderTotal && d.Concurrency != 1 {
		f.Add("/delivery/concurrency", "must be 1, or omitted, with order total, got %d", d.Concurrency)
	} else {
		between(f, "/delivery/concurrency", d.Concurrency, 1, 1000)
	}
	between(f, "/delivery/rate", d.Rate, 0, 1e6)
	f.lasts("/delivery/timeout", d.Timeout, Duration(10*time.Millisecond), Duration(5*time.Minute))

	const month = Duration(30 * 24 * time.Hour)
	at := "/delivery/retry"
	between(f, at+"/max_attempts", d.Retry.MaxAttempts, 0, 10_000)
	f.lasts(at+"/max_age", d.Retry.MaxAge, 0, month)
	if d.Retry.MaxAttempts == 0 && d.Retry.MaxAge == 0 {
		f.Add(at, "must have a bound: max_attempts or max_age above 0")
	}
	if n := len(d.Retry.Schedule); n < 1 || n > 100 {
		f.Add(at+"/schedule", "must be 1 to 100 delays, or omitted, got %d", n)
	}
	for i, delay := range d.Retry.Schedule {
		f.lasts(fmt.Sprintf("%s/schedule/%d", at, i), delay, Duration(10*time.Millisecond), month)
	}
	between(f, at+"/jitter", d.Retry.Jitter, 0, 1)

	between(f, "/delivery/breaker/failures", d.Breaker.Failures, 0, 10_000)
	f.lasts("/delivery/breaker/probe", d.Breaker.Probe, Duration(100*time.Millisecond), Duration(time.Hour))
}
