package lane

import (
	"fmt"
	"sync"
	"time"
)

// refuse counts a message that the sink or the route's own rules refused, and has it
// stored as a dead letter. l.mu is held.
func (l *Lane) refuse(e *entry, why error) {
	l.set.route.Metrics.refused.WithLabelValues(Reason(why)).Inc()
	e.state, e.err = stateRefused, why
	l.refused = append(l.refused, e)
	if !l.storing {
		l.storing = true
		go l.storeDeadLetters()
	}
}

// storeDeadLetters stores the dead letters until none is left or the lane ends. It runs
// beside the lane: a dead-letter sink that is away keeps no message from being sent and
// no position from being committed.
func (l *Lane) storeDeadLetters() {
	var backoff time.Duration
	for refused := l.takeRefused(); len(refused) > 0; refused = l.takeRefused() {
		if l.set.route.Dead == nil {
			first := refused[0]
			l.stop(fmt.Errorf("a message was refused (%s at %d): %w", l.name, first.position, first.err))
			return
		}
		failed, final := l.storeTogether(refused)
		if final != nil {
			l.stop(final)
			return
		}
		if len(failed) == 0 {
			l.set.dead.over(l, nil)
			backoff = 0
			continue
		}
		l.mu.Lock()
		l.refused = append(failed, l.refused...)
		l.mu.Unlock()
		backoff = l.set.cfg.longer(backoff)
		if !l.sleep(backoff) {
			return
		}
	}
}

// takeRefused returns what waits to be stored as dead letters. Where that is nothing,
// the next refusal starts storeDeadLetters anew.
func (l *Lane) takeRefused() []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil
	}
	refused := l.refused
	l.refused = nil
	l.storing = len(refused) > 0
	return refused
}

// storeTogether stores dead letters, all under way at once, and waits for their
// outcomes. It returns those that failed, in their order, and an error when one can
// never be stored.
func (l *Lane) storeTogether(refused []*entry) (failed []*entry, final error) {
	outcomes := make([]error, len(refused))
	var waiting sync.WaitGroup
	waiting.Add(len(refused))
	for i, e := range refused {
		l.set.route.Dead(l.ctx, e.to, e.m, e.err, func(err error) {
			if outcomes[i] = err; err == nil {
				l.deadLetterStored(e)
			} else {
				l.set.dead.note(l, err)
			}
			waiting.Done()
		})
	}
	waiting.Wait()
	for i, err := range outcomes {
		if _, is := Refused(err); is && final == nil {
			final = fmt.Errorf("a refused message cannot be stored as a dead letter (%s at %d): %w", l.name, refused[i].position, err)
		}
		if err != nil {
			failed = append(failed, refused[i])
		}
	}
	return failed, final
}

// deadLetterStored lets the watermark pass a dead letter.
func (l *Lane) deadLetterStored(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.state = stateDone
	l.set.refused.Add(1)
	l.set.route.Metrics.dead.Inc()
	l.advance()
}
