package proxy

import (
	"slices"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// In front of a Redis Cluster the loop has a connection to each primary, and a command goes to the
// primary of the slot of its keys.

// noSlot is the slot of a command without keys: any primary may execute it.
const noSlot = -1

// manySlots is the slot of a command that the proxy splits.
const manySlots = -2

const (
	errCrossSlot = "CROSSSLOT Keys in request don't hash to the same slot"
	errNoCluster = "ERR This instance has cluster support disabled"
)

// runsAsFunction reports whether the handler of a single Redis, which calls functions of the library,
// also serves a Redis Cluster with Config.SlotOutboxes.
func (p *Proxy) runsAsFunction(cmd *command.Command) bool {
	switch cmd.Name {
	case "del", "unlink", "mset":
		return false // split calls functions, too
	case "sort", "georadius", "georadiusbymember", "dbsize", "function|flush":
		return true
	}
	return cmd.Class == command.Write || cmd.Class == command.Blocking || cmd.Class == command.Script
}

// inCluster returns the handler of a command in front of a Redis Cluster. h is that of a single
// Redis.
func (p *Proxy) inCluster(cmd *command.Command, h handler) handler {
	if p.cfg.SlotOutboxes && p.runsAsFunction(cmd) {
		return h
	}
	switch cmd.Name {
	case "scan":
		return (*client).scanAll
	case "randomkey":
		return (*client).randomKeyOfAll
	case "watch":
		return (*client).watchInCluster
	case "ssubscribe", "sunsubscribe":
		return (*client).subscribeShards
	case "client|tracking", "client|caching", "client|trackinginfo":
		return (*client).refuseTracking
	}
	if splittable(cmd) {
		return (*client).split
	}
	if join := joinOfAll(cmd); join != nil {
		return askAll(join)
	}
	switch cmd.Class {
	case command.Write, command.Script:
		return (*client).relay
	case command.Blocking:
		return (*client).blockInCluster
	default:
		if cmd.Group == "cluster" {
			return (*client).refuseCluster
		}
		return h
	}
}

// refuseCluster answers what a Redis that is no part of a cluster answers.
func (c *client) refuseCluster(_ *command.Command, _ request.Request) bool {
	return c.refuse(errNoCluster)
}

// findSlot sets the slot of the command that is executed. It returns an error if its keys are in
// several slots, and the command is not one that the proxy splits.
func (c *client) findSlot(cmd *command.Command, r request.Request) (problem string) {
	c.slot = noSlot
	if cmd.Name == "spublish" {
		c.slot = cluster.Slot(r.Arg(1))
		return ""
	}
	if i := cmd.SingleKey(); i > 0 {
		c.slot = cluster.Slot(r.Arg(i))
	} else if cmd.HasKeys() {
		same := true
		cmd.Keys(r.Raw, r.Args, func(i int) bool {
			c.slot, same = joinSlots(c.slot, cluster.Slot(r.Arg(i)))
			return same
		})
		if !same {
			if c.tx != nil || !c.loop.proxy.splits(cmd) {
				return errCrossSlot
			}
			c.slot = manySlots
		}
	}
	return ""
}

// joinSlots returns the slot of keys of which some are in slot a and others in slot b; each may be
// noSlot. same is false if these are two slots.
func joinSlots(a, b int) (slot int, same bool) {
	if a == noSlot {
		return b, true
	}
	return a, b == noSlot || a == b
}

// splittable reports whether a command can be split by the slots of its keys.
func splittable(cmd *command.Command) bool {
	switch cmd.Name {
	case "mget", "del", "unlink", "exists", "touch", "mset":
		return true
	default:
		return false
	}
}

// splits reports whether the proxy splits a command whose keys are in several slots.
func (p *Proxy) splits(cmd *command.Command) bool {
	return splittable(cmd) && (cmd.Name != "mset" || p.cfg.SplitMSET)
}

// primary returns the connection for a command with keys in c.slot. ok is false if the client must
// wait: after a change of the map, its commands may arrive at the new primary of a slot before those
// that were sent to the former one.
func (c *client) primary() (b *backend, ok bool) {
	l := c.loop
	if c.slotsAt != l.slotsAt {
		if c.outstanding > 0 {
			return nil, false
		}
		c.slotsAt = l.slotsAt
	}
	c.backend = l.primaryOf(c.slot, c.proto)
	return c.backend, true
}

// primaryOf returns the connection to the primary that has a slot.
func (l *loop) primaryOf(slot, proto int) *backend { return l.connectionTo(l.ownerOf(slot), 0, proto) }

// ownerOf returns the address of the primary that has a slot. If none has it, it is that of any
// primary, which says so, or knows a new one. For a single Redis it is empty.
func (l *loop) ownerOf(slot int) string {
	if l.slots == nil {
		return ""
	}
	if slot != noSlot {
		if address := l.slots.Owner(slot); address != "" {
			return address
		}
	}
	return l.keylessPrimary()
}

// keylessPrimary returns the address of the primary for commands without keys. It stays the same as
// long as it can be reached: so PUBLISH counts all subscribers of this Sonic. It prefers the present
// one, then one that there is a connection to, then one that no connect has failed to.
func (l *loop) keylessPrimary() string {
	if l.keyless != "" && l.isPrimary(l.keyless) && l.connectionTo(l.keyless, 0, 2).state == up {
		return l.keyless
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	best, rank := "", -1
	for _, primary := range l.slots.Primaries() {
		one := 0
		err, known := l.proxy.primaries[primary.Address]
		switch {
		case err != nil:
		case l.keyless == primary.Address:
			one = 3
		case known:
			one = 2
		default:
			one = 1
		}
		if one > rank {
			best, rank = primary.Address, one
		}
	}
	l.keyless = best
	return best
}

func (l *loop) isPrimary(address string) bool {
	return slices.ContainsFunc(l.slots.Primaries(), func(p cluster.Primary) bool { return p.Address == address })
}

// ClusterChanged says that the map of the cluster has changed. It is safe for concurrent use.
func (p *Proxy) ClusterChanged() {
	p.post((*loop).clusterChanged)
}

// clusterChanged takes the new map. It moves commands that wait for a primary that cannot be reached
// to the one that has taken over, and ends the connections to servers that have no slots any more.
func (l *loop) clusterChanged() {
	slots := l.cfg.Cluster.Map()
	if slots == nil || len(slots.Primaries()) == 0 {
		return // all nodes are new or have forgotten their slots: the former map is as good
	}
	l.slots, l.firstSlots = slots, firstSlots(slots)
	l.slotsAt++
	for _, primary := range slots.Primaries() {
		l.connectionTo(primary.Address, 0, 2)
	}
	for b := range l.backends() {
		if b.state != up && b.owner == nil {
			b.moveWaiting()
		}
	}
	l.moveWatchers()
	for _, c := range l.clients {
		if c.dedicated != nil {
			c.moveDedicated()
		}
	}
	l.dropFormerPrimaries()
}

// dropFormerPrimaries ends the connections to servers that have no slots any more.
func (l *loop) dropFormerPrimaries() {
	for key, b := range l.shared {
		if b.replies.n == 0 && !l.isPrimary(key.primary) {
			b.discard()
			delete(l.shared, key)
			l.proxy.forgetPrimary(key.primary)
		}
	}
}

// Unreachable returns the primaries of the cluster that the proxy cannot reach, by address, and why.
// It is safe for concurrent use.
func (p *Proxy) Unreachable() map[string]error {
	p.mu.Lock()
	defer p.mu.Unlock()
	unreachable := map[string]error{}
	for address, err := range p.primaries {
		if err != nil {
			unreachable[address] = err
		}
	}
	return unreachable
}

func (p *Proxy) forgetPrimary(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.primaries, address)
}

// useAnySlot gives a write without keys, which Redis will refuse, the slot of some primary.
func (c *client) useAnySlot() {
	if c.loop.cfg.SlotOutboxes && c.slot == noSlot {
		c.slot = c.loop.firstSlots[0]
	}
}

// slotOutboxes returns the names of the streams of effects of all slots, as bulk strings.
func slotOutboxes() [][]byte {
	outboxes := make([][]byte, cluster.Slots)
	all := make([]byte, 0, cluster.Slots*26)
	for slot := range outboxes {
		start := len(all)
		all = resp.AppendBulk(all, script.SlotOutbox(slot))
		outboxes[slot] = all[start:len(all):len(all)]
	}
	return outboxes
}

// outbox returns the stream of effects of a slot, as a bulk string. For a single Redis it returns
// nil: the calls of functions have it already.
func (p *Proxy) outbox(slot int) []byte {
	if p.outboxes == nil {
		return nil
	}
	return p.outboxes[slot]
}
