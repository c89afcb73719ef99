package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// functionFlush runs FUNCTION FLUSH [ASYNC|SYNC]: it deletes each library but Sonic's own, without
// which Redis takes no writes.
func (c *client) functionFlush(_ *command.Command, r request.Request) bool {
	switch {
	case r.Len() > 3:
		c.replyError("ERR unknown subcommand or wrong number of arguments for '" + string(request.CString(r.Arg(1), 128)) + "'. Try FUNCTION HELP.")
		return true
	case r.Len() == 3 && !resp.EqualFold(r.Arg(2), "sync") && !resp.EqualFold(r.Arg(2), "async"):
		c.replyError("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")
		return true
	}
	if c.loop.cfg.Replicate {
		return c.flushFunctionsOfAll()
	}
	b, ok := c.connection()
	if !ok || c.outstanding > 0 {
		return false
	}
	c.busy = true
	finish := func(answer []byte) {
		c.commandDone()
		c.deliver(answer)
	}
	b.send(pending{client: c, kind: handled, then: &replyHandler{onLost: c.lostCommand, onReply: func(reply []byte) {
		names := replies.LibraryNames(reply)
		if reply[0] == '-' || len(names) == 0 || c.closed {
			if reply[0] != '-' {
				reply = []byte(replyOK)
			}
			finish(reply)
			return
		}
		var deletions []byte
		for _, name := range names {
			deletions = append(deletions, resp.AppendCommand(nil, "FUNCTION", "DELETE", name)...)
		}
		answer, left := []byte(replyOK), len(names)
		b.send(pending{client: c, kind: handled, then: &replyHandler{replies: left, onLost: c.lostCommand, onReply: func(reply []byte) {
			if reply[0] == '-' && !bytes.HasPrefix(reply, []byte("-ERR Library not found")) { // another client has deleted it
				answer = bytes.Clone(reply)
			}
			if left--; left == 0 {
				finish(answer)
			}
		}}}, deletions)
	}}}, resp.AppendCommand(nil, "FUNCTION", "LIST"))
	return true
}
