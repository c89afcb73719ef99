package proxy

import (
	"strconv"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// cursorPrimaries is how many primaries a cursor of SCAN can name. A Redis Cluster has at most about
// 1000 nodes.
const cursorPrimaries = 1024

// scanAll runs SCAN on one primary after the other, in the order of their ids. The client's cursor is
// the one of Redis times cursorPrimaries plus the number of the primary. That of Redis is below 2^53,
// for it is smaller than the hash table.
//
// While slots move, or when a replica takes over, a SCAN may miss keys.
func (c *client) scanAll(cmd *command.Command, r request.Request) bool {
	cursor, err := strconv.ParseUint(string(r.Arg(1)), 10, 64)
	if err != nil {
		c.replyError("ERR invalid cursor")
		return true
	}
	slots, at := c.loop.firstSlots, int(cursor%cursorPrimaries)
	if at >= len(slots) { // a primary is gone
		c.reply([]byte("*2\r\n$1\r\n0\r\n*0\r\n"))
		return true
	}
	one := r.With(1, strconv.AppendUint(nil, cursor/cursorPrimaries, 10))
	return c.gather([]part{{slot: slots[at], command: one.Raw, reads: true}}, func(all [][]byte) []byte {
		reply := c.loop.proxy.filterReply(cmd, all[0], c, 0)
		found, err := resp.Elements(reply)
		if err != nil || len(found) != 2 {
			return reply // an error
		}
		next, err := strconv.ParseUint(string(resp.Text(found[0])), 10, 64)
		if err != nil {
			return resp.AppendError(nil, errUnexpectedPart)
		}
		switch {
		case next > 0:
			next = next*cursorPrimaries + uint64(at)
		case at+1 < len(slots):
			next = uint64(at) + 1
		}
		out := resp.AppendHeader(nil, '*', 2)
		out = resp.AppendBulk(out, strconv.AppendUint(nil, next, 10))
		return append(out, found[1]...)
	})
}
