package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/message"
)

// How much is asked for at once. Entries may be large: more are asked for only while they are small.
const (
	readLeast = 16
	readMost  = 1024
	readBytes = 1 << 20
	readBlock = time.Second
)

// read reads the stream behind begin.
func (l *loader) read(ctx context.Context, begin message.ID, q *queue) error {
	count := int64(readLeast)
	for {
		found, err := l.redis.XRead(ctx, &redis.XReadArgs{Streams: []string{l.lane.Outbox(), begin.String()}, Count: count, Block: readBlock}).Result()
		if errors.Is(err, redis.Nil) { // nothing came
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot read the outbox: %w", err)
		}
		entries, bytes, err := entriesOf(found[0].Messages)
		if err != nil {
			return err
		}
		begin = entries[len(entries)-1].id
		all := int64(len(entries)) < count // that there was
		switch {
		case bytes > readBytes:
			count = readLeast
		case !all:
			count = min(2*count, readMost)
		}
		if err := q.put(ctx, entries); err != nil {
			return err
		}
		if all {
			pause(ctx, q, bytes)
		}
	}
}

// entriesOf makes entries of what Redis returns.
func entriesOf(found []redis.XMessage) (entries []entry, bytes int, err error) {
	entries = make([]entry, len(found))
	for i, m := range found {
		e := &entries[i]
		if e.id, err = message.ParseID(m.ID); err != nil {
			return nil, 0, fmt.Errorf("%w: the outbox holds %w", ErrState, err)
		}
		e.effects, _ = m.Values["e"].(string)
		e.transaction, _ = m.Values["t"].(string)
		bytes += e.size()
	}
	return entries, bytes, nil
}
