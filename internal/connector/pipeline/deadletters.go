package pipeline

import (
	"fmt"
	"sync"
)

// refuse counts a message that the sink or the route's rules refused, and queues it for the
// dead-letter sink. l.mu is held.
func (l *Pipeline) refuse(e *entry, reason error) {
	l.set.route.Metrics.refused.WithLabelValues(Reason(reason)).Inc()
	e.state, e.err = stateRefused, reason
	l.refused = append(l.refused, e)
	if !l.storingDeadLetters {
		l.storingDeadLetters = true
		go l.storeDeadLetters()
	}
}

// storeDeadLetters stores the dead letters until none is left or the pipeline is closed. It has its own
// goroutine: while the dead-letter sink is unavailable, the pipeline sends and commits other messages.
func (l *Pipeline) storeDeadLetters() {
	wait := l.set.cfg.backoff()
	var failed []*entry
	for {
		refused := l.takeRefused(failed)
		if len(refused) == 0 {
			return
		}
		if l.set.route.DeadLetter == nil {
			l.stop(fmt.Errorf("a message was refused (%s at %d): %w", l.name, refused[0].position, refused[0].err))
			return
		}
		var final error
		failed, final = l.storeAll(refused)
		switch {
		case final != nil:
			l.stop(final)
			return
		case len(failed) == 0:
			l.set.deadLetterFailures.remove(l, nil)
			wait.Reset()
		case !wait.Wait(l.ctx):
			return
		}
	}
}

// takeRefused returns failed and the messages that were refused since. When there are none,
// storeDeadLetters ends and the next refusal starts it again.
func (l *Pipeline) takeRefused(failed []*entry) []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil
	}
	refused := append(failed, l.refused...)
	l.refused = nil
	l.storingDeadLetters = len(refused) > 0
	return refused
}

// storeAll gives all of refused to the dead-letter sink, then waits for all outcomes. It returns
// those that failed, in their order, and an error when the dead-letter sink refused one for good.
func (l *Pipeline) storeAll(refused []*entry) (failed []*entry, final error) {
	outcomes := make([]error, len(refused))
	var waiting sync.WaitGroup
	waiting.Add(len(refused))
	for i, e := range refused {
		l.set.route.DeadLetter(l.ctx, e.to, e.m, e.err, func(err error) {
			if outcomes[i] = err; err == nil {
				l.mu.Lock()
				e.state = stateDone
				l.set.refused.Add(1)
				l.set.route.Metrics.deadLettered.Inc()
				l.advance()
				l.mu.Unlock()
			} else {
				l.set.deadLetterFailures.add(l, err)
			}
			waiting.Done()
		})
	}
	waiting.Wait()
	for i, err := range outcomes {
		if _, refusedForGood := Refused(err); refusedForGood && final == nil {
			final = fmt.Errorf("a refused message cannot be stored as a dead letter (%s at %d): %w", l.name, refused[i].position, err)
		}
		if err != nil {
			failed = append(failed, refused[i])
		}
	}
	return failed, final
}
