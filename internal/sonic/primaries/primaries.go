// Package primaries calls functions of the library at the primaries of a Redis Cluster. Of the
// packages of Sonic it may import cluster and script.
package primaries

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Bounds of the pause before calls are made again that no primary has executed.
const (
	minPause = 20 * time.Millisecond
	maxPause = time.Second
)

// Topology says which primary has which slot. See [cluster.Cluster].
type Topology interface {
	Map() *cluster.Map // nil: not known yet
	Refresh()          // asks the cluster again soon, and does not block
}

// Primaries calls functions of the library at the primaries of a Redis Cluster. It is safe for
// concurrent use.
type Primaries struct {
	topology Topology
	dial     func(address string) *redis.Client

	mu      sync.Mutex
	clients map[string]*redis.Client // by address
}

// New returns the primaries of a cluster. It sends no request. dial returns a client of the Redis at
// an address, host:port; Primaries closes it. The client must not retry, as Do does.
func New(topology Topology, dial func(address string) *redis.Client) *Primaries {
	return &Primaries{topology: topology, dial: dial, clients: map[string]*redis.Client{}}
}

// Close closes all clients. It must not be called while other methods run.
func (p *Primaries) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for address, client := range p.clients {
		errs = append(errs, client.Close())
		delete(p.clients, address)
	}
	return errors.Join(errs...)
}

// Map returns the latest map of the cluster, nil before the first one.
func (p *Primaries) Map() *cluster.Map { return p.topology.Map() }

// Refresh makes the map follow the cluster soon. Callers of At call it if the primary refuses a
// call because it has no longer the slots, or does not answer.
func (p *Primaries) Refresh() { p.topology.Refresh() }

// At returns a client of the primary at an address, for functions without a slot. It may be closed
// once the map has no such primary: the caller asks for it again before each use.
func (p *Primaries) At(address string) *redis.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	client := p.clients[address]
	if client == nil {
		p.closeGone()
		client = p.dial(address)
		p.clients[address] = client
	}
	return client
}

// closeGone closes clients of primaries that the map does not have. The caller holds the lock.
func (p *Primaries) closeGone() {
	m := p.topology.Map()
	if m == nil {
		return
	}
	known := m.Addresses()
	for address, client := range p.clients {
		if !slices.Contains(known, address) {
			_ = client.Close()
			delete(p.clients, address)
		}
	}
}

// Call is the call of a function for a slot: FCALL Function 1 <stream of effects of Slot> Args...
type Call struct {
	Slot     int
	Function string
	Args     []any
}

// Command returns the words of the command.
func (c Call) Command() []any {
	return append([]any{"FCALL", c.Function, 1, script.SlotOutbox(c.Slot)}, c.Args...)
}

// Reply is the reply to a Call. Err is an error that Redis or the function returned, or redis.Nil.
type Reply struct {
	Value any
	Err   error
}

// Do makes calls, pipelined for each primary, and returns the replies in the order of calls. Calls
// of one slot are executed in their order; one round trip each. A call that no primary has executed
// is made again, by the map of then, after a pause, until ctx ends; later calls of its slot wait
// for it. This is so if the slot moves or has no primary, and if a primary is loading, cannot be
// reached or closes the connection. In the last case it may have executed the call: functions must
// be such that this does no harm.
//
// Do does not follow ASK: while a slot moves, some of its keys are not at the primary that ASK
// names. It returns an error only if ctx ends.
func (p *Primaries) Do(ctx context.Context, calls []Call) ([]Reply, error) {
	replies := make([]Reply, len(calls))
	waiting := map[int][]int{} // by slot, the indexes of its calls that are not executed
	for i := range calls {
		waiting[calls[i].Slot] = append(waiting[calls[i].Slot], i)
	}
	pause := backoff.Backoff{Min: minPause, Max: maxPause}
	blocked := map[int]error{} // by slot, why its first call was not executed
	for len(waiting) > 0 {
		done := p.round(ctx, calls, replies, waiting, blocked)
		if err := ctx.Err(); err != nil && len(waiting) > 0 {
			return nil, unfinished(err, blocked)
		}
		if done > 0 {
			pause.Reset()
		}
		if len(blocked) < len(waiting) || len(waiting) == 0 {
			continue
		}
		p.topology.Refresh()
		if !pause.Wait(ctx) {
			return nil, unfinished(ctx.Err(), blocked)
		}
		clear(blocked)
	}
	return replies, nil
}

// round makes the first waiting call of each slot that is not blocked. It removes executed calls
// from waiting, adds slots to blocked, and returns how many calls were executed.
func (p *Primaries) round(ctx context.Context, calls []Call, replies []Reply, waiting map[int][]int, blocked map[int]error) (done int) {
	m := p.topology.Map()
	batches := map[string][]int{} // by address, indexes of calls
	for slot, indexes := range waiting {
		switch {
		case blocked[slot] != nil:
		case m == nil:
			blocked[slot] = errNoMap
		case m.Owner(slot) == "":
			blocked[slot] = errNoOwner
		default:
			batches[m.Owner(slot)] = append(batches[m.Owner(slot)], indexes[0])
		}
	}
	var running sync.WaitGroup
	for address, batch := range batches {
		running.Go(func() { send(ctx, p.At(address), calls, replies, batch) })
	}
	running.Wait()
	for _, batch := range batches {
		for _, i := range batch {
			slot := calls[i].Slot
			if err := replies[i].Err; err != nil && !executed(err) {
				blocked[slot] = err
				continue
			}
			done++
			if waiting[slot] = waiting[slot][1:]; len(waiting[slot]) == 0 {
				delete(waiting, slot)
			}
		}
	}
	return done
}

// callsAtOnce is how many calls one pipeline has at most: the client's timeout is that of all of
// them, and a flush is a call for each slot.
const callsAtOnce = 100

// send makes the calls of a batch at one primary.
func send(ctx context.Context, client *redis.Client, calls []Call, replies []Reply, batch []int) {
	for some := range slices.Chunk(batch, callsAtOnce) {
		pipe := client.Pipeline()
		cmds := make([]*redis.Cmd, len(some))
		for n, i := range some {
			cmds[n] = pipe.Do(ctx, calls[i].Command()...)
		}
		script.SetErrors(pipe.Exec(ctx))
		for n, i := range some {
			replies[i].Value, replies[i].Err = cmds[n].Result()
		}
	}
}

var (
	errNoMap   = errors.New("the cluster's slots are not known yet")
	errNoOwner = errors.New("no primary has the slot")
)

// executed reports whether err is the outcome of a call, and not the reason why it was not executed.
func executed(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false // of the connection
	}
	return !Moving(err) && !script.IsReply(err, "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "BUSY ", "ERR max number of clients")
}

// Moving reports whether a primary has refused a call because it does not have all of the slot.
func Moving(err error) bool { return script.IsReply(err, "MOVED ", "ASK ", "TRYAGAIN") }

// unfinished returns the error for calls that were not executed when ctx ended.
func unfinished(ctxErr error, blocked map[int]error) error {
	for slot, why := range blocked {
		return fmt.Errorf("%w: %d slots, for instance %d: %w", ctxErr, len(blocked), slot, why)
	}
	return ctxErr
}
