package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// How many entries read asks for at once. A stream entry holds at most 64 KiB, so no reply is
// larger than 16 MiB. Most replies are much smaller, because read asks for more entries only while
// they are small.
const (
	minReadCount = 16
	maxReadCount = 256
	maxReadBytes = 1 << 20
	readBlock    = time.Second
)

// readPause is the pause between reads of the stream, unless store waits for entries. Redis answers
// a blocking read at the next write: without a pause each read could return a single write.
const readPause = 2 * time.Millisecond

// read reads the stream after begin.
func (o *owner) read(ctx context.Context, begin wire.ID, q *queue) error {
	count := int64(minReadCount)
	var joiner wire.Joiner
	for {
		found, err := o.redis.XRead(ctx, &redis.XReadArgs{Streams: []string{o.library.Outbox(), begin.String()}, Count: count, Block: readBlock}).Result()
		if errors.Is(err, redis.Nil) { // no new entry
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot read the outbox: %w", err)
		}
		list := found[0].Messages
		entries, err := entriesOf(&joiner, list)
		if err != nil {
			return err
		}
		if begin, err = wire.ParseID(list[len(list)-1].ID); err != nil {
			return err
		}
		all := int64(len(list)) < count // the reply holds everything that the stream had
		switch {
		case bytesOf(list) > maxReadBytes:
			count = minReadCount
		case !all:
			count = min(2*count, maxReadCount)
		}
		if err := q.put(ctx, entries); err != nil {
			return err
		}
		if all {
			q.awaitTake(ctx, readPause)
		}
	}
}

// entriesOf converts stream entries of Redis to entries of the outbox.
func entriesOf(j *wire.Joiner, found []redis.XMessage) ([]wire.Entry, error) {
	entries := make([]wire.Entry, 0, len(found))
	for _, m := range found {
		e, ok, err := j.Add(m.ID, m.Values)
		if err != nil {
			return nil, fmt.Errorf("%w: the outbox holds %w", ErrState, err)
		}
		if ok {
			entries = append(entries, e)
		}
	}
	return entries, nil
}

func bytesOf(found []redis.XMessage) (n int) {
	for _, m := range found {
		for _, v := range m.Values {
			text, _ := v.(string)
			n += len(text)
		}
	}
	return n
}

// readRange reads the stream after begin, up to an id or "+", or until enough accepts the entries. last
// is the last entry of the stream that was read.
func (o *owner) readRange(ctx context.Context, begin wire.ID, end string, enough func([]wire.Entry) bool) (all []wire.Entry, last wire.ID, err error) {
	var joiner wire.Joiner
	for last = begin; enough == nil || !enough(all); {
		found, err := o.redis.XRangeN(ctx, o.library.Outbox(), "("+last.String(), end, minReadCount).Result()
		if err != nil {
			return nil, last, fmt.Errorf("cannot read the outbox: %w", err)
		}
		if len(found) == 0 {
			break
		}
		entries, err := entriesOf(&joiner, found)
		if err != nil {
			return nil, last, err
		}
		all = append(all, entries...)
		if last, err = wire.ParseID(found[len(found)-1].ID); err != nil {
			return nil, last, err
		}
	}
	return all, last, nil
}
