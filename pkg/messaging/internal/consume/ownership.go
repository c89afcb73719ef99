package consume

import (
	"context"
	"errors"
	"sync"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// ErrOwnershipLost is the cause of a partition's context that ended because the broker delivers
// the partition to another consumer, or may do so.
var ErrOwnershipLost = errors.New("messaging: the partition is no longer this consumer's")

// ConsumerOption adjusts a Consumer.
type ConsumerOption func(*Consumer)

// OnOwned makes Run, RunAsync and Drain call f for each partition that an Exclusive or Failover
// subscription begins to deliver to the consumer, so that the service can load what it keeps for
// the partition. topic is the partition's full name
// (persistent://tenant/namespace/name-partition-3, or the topic's where it has no partitions), and
// partition its index (0 without partitions). With other types of subscriptions [Client.Consumer]
// returns an error.
//
// Each call has its own goroutine. No message of the partition is handled before f returns;
// those of the topic's other partitions may wait as well. f must return when ctx ends: Run, and the
// next session, wait for it, up to StopTimeout. What f cannot load it tries again until ctx ends. f
// must not panic.
//
// ctx ends when the partition is lost: to another consumer, with the subscription's session, or
// when Run has handled its last message. Its cause then is [ErrOwnershipLost]; it is
// [context.Canceled] when handlers ran for StopTimeout after the end of Run's context. Handlers of
// the partition's messages get a context that ends with it. The partition may be gained again
// later: f is then called again, perhaps while a handler, or a call of f, of the time before still
// runs. That also happens when the consumer itself subscribes again for another length of its
// receive queue (metric aviary_messaging_resubscribes_total, reasons longer_queue and
// shorter_queue). Set MaxMessageBytes to the real size of messages, and it happens seldom.
//
// A broker may have begun to deliver the partition to another consumer before the loss is known
// here, for as long as a broken connection takes to be noticed. Data that two
// consumers must not write at once need another fence, for instance a publisher with
// [ExclusiveOwnership].
func OnOwned(f func(ctx context.Context, topic string, partition int)) ConsumerOption {
	return func(c *Consumer) { c.onOwned = f }
}

// ownership is the partitions that a session has. The zero ownership, without f, does nothing.
type ownership struct {
	f        func(ctx context.Context, topic string, partition int)
	parent   context.Context
	byBroker bool // the broker says which partitions are gained and lost

	mu    sync.Mutex
	of    map[string]*ownedInterval // by partition's topic
	ended bool
	calls sync.WaitGroup
}

// ownedInterval is one time for which a partition is ours.
type ownedInterval struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	ready  chan struct{} // closed when f has returned
}

// gain begins an interval, and ends the one before. The underlying client does not know the index
// of a partition that is consumed by its name.
func (o *ownership) gain(topic string, partition int) *ownedInterval {
	if o.f == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if was := o.of[topic]; was != nil {
		was.cancel(ErrOwnershipLost)
	}
	if o.of == nil {
		o.of = make(map[string]*ownedInterval)
	}
	i := &ownedInterval{ready: make(chan struct{})}
	i.ctx, i.cancel = context.WithCancelCause(o.parent)
	if o.ended { // calls is being waited for: nothing is added
		i.cancel(ErrOwnershipLost)
		close(i.ready)
		return i
	}
	o.of[topic] = i
	o.calls.Go(func() {
		defer close(i.ready)
		if i.ctx.Err() == nil {
			o.f(i.ctx, topic, record.PartitionIndex(topic, partition))
		}
	})
	return i
}

// current is the interval that a handler gets: was, or the present one when was has ended.
func (o *ownership) current(was *ownedInterval, topic string) *ownedInterval {
	if was.ctx.Err() == nil {
		return was
	}
	o.mu.Lock()
	i := o.of[topic]
	o.mu.Unlock()
	if i == nil {
		return was
	}
	<-i.ready // f ends with its context at the latest
	return i
}

// lose ends a partition's interval.
func (o *ownership) lose(topic string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i := o.of[topic]; i != nil {
		i.cancel(ErrOwnershipLost)
		delete(o.of, topic)
	}
}

// end ends all intervals.
func (o *ownership) end(cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	for _, i := range o.of {
		i.cancel(cause)
	}
	clear(o.of)
}

// awaitCalls waits until f has returned for all intervals, or ctx ends. end must have been called.
func (o *ownership) awaitCalls(ctx context.Context) { clientquirks.Within(ctx, o.calls.Wait) }

// await returns the present interval of a message's partition once f has returned for it; nil
// without OnOwned. ok is false for a message of a partition that was lost, or is about
// to be: the session ends.
func (o *ownership) await(
	stop context.Context, topic string, partition int, gone <-chan struct{},
) (i *ownedInterval, ok bool) {
	if o.f == nil {
		return nil, true
	}
	o.mu.Lock()
	i = o.of[topic]
	o.mu.Unlock()
	if i == nil {
		if o.byBroker {
			return nil, false
		}
		i = o.gain(topic, partition) // a partition that the topic has gained
	}
	select {
	case <-i.ready:
		return i, true
	case <-stop.Done():
	case <-gone:
	}
	return nil, false // f has not returned
}
