// Package topic checks which messages in a zone's topic a Sonic of that zone wrote. Of the packages
// of Sonic it may import wire.
package topic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Header reads the header of a message of a zone's topic. Its errors are those of
// [wire.ParseHeader], which also say what the header has then, and [wire.ErrForeign] for a
// message of another zone.
func Header(d *messaging.Delivery, zone string) (*wire.Header, error) {
	h, err := wire.ParseHeader(d.Properties)
	switch {
	case errors.Is(err, wire.ErrForeign):
		return nil, err
	case err == nil && (h.Origin != zone || h.Shard != 0):
		return nil, fmt.Errorf("%w for this topic: it is of shard %d of zone %s", wire.ErrForeign, h.Shard, h.Origin)
	default:
		return h, err
	}
}

// lookBack is how much earlier than the last message the last one of a Sonic is searched first: a
// running zone stores one each second.
const lookBack = time.Minute

// Last returns the header of the last message of a zone's Sonic in a topic whose last message is d.
// It is nil if there is none. A foreign message at the end is passed to skipped, and the topic is
// read again: its last minute, or all of it. The errors are those of reading, and those of [Header]
// but ErrForeign.
func Last(ctx context.Context, c *messaging.Client, d *messaging.Delivery, zone string, skipped func(*messaging.Delivery, error)) (*wire.Header, error) {
	if d == nil {
		return nil, nil //nolint:nilnil // an empty topic
	}
	h, err := Header(d, zone)
	if !errors.Is(err, wire.ErrForeign) {
		return h, wrap(d, err)
	}
	skipped(d, err)
	for _, from := range []messaging.Position{messaging.AtTime(d.PublishTime.Add(-lookBack)), messaging.Earliest()} {
		h, err = nil, nil
		failed := Read(ctx, c, d.Topic, from, zone, func(_ context.Context, last *wire.Header, _ *messaging.Delivery, unreadable error) error {
			h, err = last, unreadable
			return nil
		})
		if failed != nil {
			return nil, failed
		}
		if h != nil || err != nil {
			return h, err
		}
	}
	return nil, nil //nolint:nilnil // no message of the zone's Sonic
}

// Read passes the messages of a zone's topic from a position on, up to the end, to handle, with the
// error of [Header] if there is one. It skips foreign messages, and stops at an error of handle.
func Read(ctx context.Context, c *messaging.Client, name string, from messaging.Position, zone string,
	handle func(ctx context.Context, h *wire.Header, d *messaging.Delivery, err error) error) error {
	r, err := c.Reader(ctx, messaging.ReaderConfig{Topic: name, Name: "sonic", From: &from})
	if err != nil {
		return fmt.Errorf("cannot read the topic of zone %s: %w", zone, err)
	}
	defer func() { _ = r.Close(context.WithoutCancel(ctx)) }()
	_, err = r.ReadToEnd(ctx, func(ctx context.Context, d *messaging.Delivery) error {
		h, err := Header(d, zone)
		if errors.Is(err, wire.ErrForeign) {
			return nil
		}
		return handle(ctx, h, d, wrap(d, err))
	})
	return err
}

func wrap(d *messaging.Delivery, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("message %s of %s: %w", d.ID, d.Topic, err)
}
