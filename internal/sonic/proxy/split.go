package proxy

import (
	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

const errUnexpectedPart = "ERR Sonic cannot read the reply of a primary of the cluster"

// slotKeys are the keys of a command that are in one slot.
type slotKeys struct {
	slot int
	keys []int // their positions among the arguments
}

// split runs a command that the proxy splits if its keys are in several slots: see splits. There is
// a part for each slot, since Redis refuses several slots even if one primary has them all. The
// command is not atomic then: other clients may see the effect of some parts only. If a part fails,
// the client gets the first error, and the effects of the other parts stay.
func (c *client) split(cmd *command.Command, r request.Request) bool {
	if c.slot != manySlots {
		if c.loop.proxy.writesBy(cmd, r) {
			return c.write(cmd, r)
		}
		return c.relay(cmd, r)
	}
	calls := c.loop.proxy.writesBy(cmd, r)
	if calls && !c.writable() {
		return c.holdOrRefuseWrite()
	}
	values := 0 // arguments of each key, behind it
	if cmd.Name == "mset" {
		values = 1
		if r.Len()%2 == 0 {
			c.replyError("ERR wrong number of arguments for 'mset' command")
			return true
		}
	}
	groups := groupBySlot(cmd, r)
	parts := make([]part, len(groups))
	for i, group := range groups {
		parts[i] = part{slot: group.slot, command: partOf(r, group.keys, values), reads: cmd.Class == command.Read}
		if calls {
			n := len(group.keys) * (1 + values)
			parts[i].command = c.loop.proxy.appendCall(nil, cmd, group.slot, c.mode, n, appendKeysOf(nil, r, group.keys, values))
			parts[i].cmd = cmd
		}
	}
	return c.gather(parts, func(all [][]byte) []byte {
		if problem := firstError(all); problem != nil {
			return problem
		}
		switch cmd.Name {
		case "mget":
			return joinValues(groups, all, r.Len()-1)
		case "mset":
			return []byte(replyOK)
		default:
			return sum(all)
		}
	})
}

// groupBySlot returns the keys of a command by slot, in the order of the arguments.
func groupBySlot(cmd *command.Command, r request.Request) (groups []slotKeys) {
	bySlot := map[int]int{} // positions in groups
	cmd.Keys(r.Raw, r.Args, func(i int) bool {
		slot := cluster.Slot(r.Arg(i))
		at, known := bySlot[slot]
		if !known {
			at = len(groups)
			bySlot[slot] = at
			groups = append(groups, slotKeys{slot: slot})
		}
		groups[at].keys = append(groups[at].keys, i)
		return true
	})
	return groups
}

// partOf returns the command with some of its keys, each with so many values behind it.
func partOf(r request.Request, keys []int, values int) []byte {
	size := r.Args[0].End + 2
	for _, i := range keys {
		size += r.Args[i+values].End - r.Args[i-1].End
	}
	out := resp.AppendHeader(make([]byte, 0, size), '*', 1+len(keys)*(1+values))
	return appendKeysOf(resp.AppendBulk(out, r.Arg(0)), r, keys, values)
}

// appendKeysOf appends some of the keys of a command, each with so many values behind it.
func appendKeysOf(out []byte, r request.Request, keys []int, values int) []byte {
	for _, i := range keys {
		out = append(out, r.Raw[r.Args[i-1].End+2:r.Args[i+values].End+2]...)
	}
	return out
}

// joinValues returns the reply to MGET of n keys: the values in the order of the client's keys.
func joinValues(groups []slotKeys, all [][]byte, n int) []byte {
	values := make([][]byte, n)
	for i, group := range groups {
		found, err := resp.Elements(all[i])
		if err != nil || len(found) != len(group.keys) {
			return resp.AppendError(nil, errUnexpectedPart)
		}
		for j, at := range group.keys {
			values[at-1] = found[j]
		}
	}
	return array(values)
}

// array returns the array of elements.
func array(elements [][]byte) []byte {
	size := 16
	for _, element := range elements {
		size += len(element)
	}
	out := resp.AppendHeader(make([]byte, 0, size), '*', len(elements))
	for _, element := range elements {
		out = append(out, element...)
	}
	return out
}

// sum returns the sum of replies that are numbers.
func sum(all [][]byte) []byte {
	total := 0
	for _, reply := range all {
		n, ok := resp.ParseInt(resp.Text(reply))
		if !ok {
			return resp.AppendError(nil, errUnexpectedPart)
		}
		total += int(n)
	}
	return resp.AppendHeader(nil, ':', total)
}
