package outbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// subscription is a connection on which Redis publishes effects that do not go through the stream,
// see 12_unsent.lua.
type subscription struct {
	conn net.Conn
	in   *bufio.Reader
}

// publishedEntry is one published entry, or the end of a transaction.
type publishedEntry struct {
	number   int64 // the number of its last write; numbers go on over all entries
	writes   int64 // how many writes it has the effects of; 0 if it is in the stream
	inStream bool  // it is in the stream because it is large or must not be lost
	entry    wire.Entry
}

// subscribe subscribes to the shard channel. It uses a connection of its own, whose buffer shows
// how much has arrived: receive then returns all of it together.
func subscribe(ctx context.Context, o *redis.Options, channel string) (s *subscription, err error) {
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return nil, fmt.Errorf("cannot reach Redis: %w", err)
	}
	s = &subscription{conn, bufio.NewReaderSize(conn, 256<<10)}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() {
		if err != nil {
			_ = conn.Close()
		}
	}()
	if o.Password != "" {
		words := []string{"AUTH", o.Password}
		if o.Username != "" {
			words = []string{"AUTH", o.Username, o.Password}
		}
		if err := s.send(words...); err != nil {
			return nil, err
		}
		if reply, err := resp.ReadReply(s.in); err != nil || string(reply) != "+OK\r\n" {
			return nil, errors.Join(fmt.Errorf("cannot log in to Redis: %.100s", reply), err)
		}
	}
	if err := s.send("SSUBSCRIBE", channel); err != nil {
		return nil, err
	}
	reply, err := resp.ReadReply(s.in)
	if err != nil {
		return nil, fmt.Errorf("cannot subscribe to %s: %w", channel, err)
	}
	// the reply is: "ssubscribe", the channel, the number of channels
	if said, err := resp.Elements(reply); err != nil || len(said) != 3 || string(resp.Text(said[0])) != "ssubscribe" {
		return nil, errors.Join(fmt.Errorf("cannot subscribe to %s: %.100s", channel, reply), err)
	}
	return s, nil
}

func (s *subscription) close() { _ = s.conn.Close() }

// errUnsubscribed says that the subscription has ended, and all effects that Redis has sent were
// received.
var errUnsubscribed = errors.New("the subscription has ended")

// unsubscribe unsubscribes. From then on Redis notes what writes change instead of publishing
// effects. receive returns [errUnsubscribed] after the last effect, or another error if that takes
// longer than within.
func (s *subscription) unsubscribe(channel string, within time.Duration) {
	err := s.conn.SetDeadline(time.Now().Add(within))
	if err == nil {
		err = s.send("SUNSUBSCRIBE", channel)
	}
	if err != nil {
		s.close()
	}
}

func (s *subscription) send(words ...string) error {
	if _, err := s.conn.Write(resp.AppendCommand(nil, words...)); err != nil {
		return fmt.Errorf("cannot ask Redis for effects: %w", err)
	}
	return nil
}

// isUnsubscribed reads the first word of a push. ended says that it is the reply to SUNSUBSCRIBE;
// otherwise the push is an effect.
func (s *subscription) isUnsubscribed() (ended bool, err error) {
	const last = "sunsubscribe"
	n, err := s.length('$')
	if err != nil {
		return false, err
	}
	word, err := s.in.Peek(min(n+2, len(last)))
	if err == nil {
		ended = string(word) == last
		_, err = s.in.Discard(n + 2)
	}
	return ended, err
}

// skip reads and discards a bulk string.
func (s *subscription) skip() error {
	n, err := s.length('$')
	if err == nil {
		_, err = s.in.Discard(n + 2)
	}
	return err
}

// length reads the header of an array or a bulk string.
func (s *subscription) length(kind byte) (int, error) {
	line, err := s.in.ReadSlice('\n')
	if err != nil {
		return 0, fmt.Errorf("cannot receive effects of Redis: %w", err)
	}
	n := 0
	for _, c := range line[1 : len(line)-1] {
		if c == '\r' {
			break
		}
		if n = n*10 + int(c-'0'); c < '0' || c > '9' || n > maxPublishedBytes {
			return 0, errPublished
		}
	}
	if line[0] != kind {
		return 0, errPublished
	}
	return n, nil
}

// maxPublishedBytes bounds the length of a published entry. The library publishes shorter ones.
const maxPublishedBytes = 1 << 20

var errPublished = errors.New("what Redis published is not what this version reads")

// receive waits for an effect, and returns it together with those that have already arrived.
func (s *subscription) receive() (list []publishedEntry, err error) {
	for len(list) == 0 || s.in.Buffered() > 0 && len(list) < wire.PackEntries {
		n, err := s.length('*')
		if err == nil && n != 3 {
			err = errPublished
		}
		ended := false
		if err == nil {
			ended, err = s.isUnsubscribed()
		}
		if err == nil && ended {
			err = errUnsubscribed
		}
		if err == nil {
			err = s.skip() // the channel
		}
		if err == nil {
			n, err = s.length('$')
		}
		if err != nil {
			return list, err
		}
		text := make([]byte, n+2)
		if _, err := io.ReadFull(s.in, text); err != nil {
			return list, fmt.Errorf("cannot receive effects of Redis: %w", err)
		}
		p, err := parsePublished(string(text[:n]))
		if err != nil {
			return list, err
		}
		list = append(list, p)
	}
	return list, nil
}

// parsePublished reads "<number> <writes> <id> <transaction> <l if it is in the stream>", a
// newline, and effects.
func parsePublished(text string) (p publishedEntry, err error) {
	head, effects, ok := strings.Cut(text, "\n")
	number, rest, ok1 := strings.Cut(head, " ")
	writes, rest, ok2 := strings.Cut(rest, " ")
	id, rest, ok3 := strings.Cut(rest, " ")
	transaction, flags, ok4 := strings.Cut(rest, " ")
	if p.number, err = strconv.ParseInt(number, 10, 64); err == nil {
		p.writes, err = strconv.ParseInt(writes, 10, 64)
	}
	if err == nil {
		p.entry.ID, err = wire.ParseID(id)
	}
	if err != nil || !ok || !ok1 || !ok2 || !ok3 || !ok4 || p.writes < 0 || p.writes == 0 && flags == "" || p.number < p.writes || flags != "" && flags != "l" {
		return p, fmt.Errorf("%w: %.100q", errPublished, head)
	}
	p.entry.Transaction, p.entry.Effects, p.inStream = transaction, effects, flags == "l"
	return p, nil
}
