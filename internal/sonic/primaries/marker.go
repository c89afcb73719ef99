package primaries

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Marker says up to which message of a zone's topic everything is in the data of a primary. It is
// written behind that data, so a replica that has the marker has the data, too.
type Marker struct {
	Message messaging.MessageID
	// Watermark is the time, in milliseconds, before which all effects of the zone are in that
	// message or before it.
	Watermark uint64
}

// ReachedMarker returns the name of the marker whose watermark says how far a zone has applied the
// effects of another one. The name of any other marker is that of its zone.
func ReachedMarker(zone, other string) string { return zone + " " + other }

// CutReachedMarker returns the zones of ReachedMarker. ok is false for any other marker.
func CutReachedMarker(name string) (zone, other string, ok bool) { return strings.Cut(name, " ") }

// IsZero reports whether there is no marker.
func (m Marker) IsZero() bool { return m.Message.IsZero() }

// Text returns the marker as Redis has it. It is empty if there is none.
func (m Marker) Text() string {
	if m.IsZero() {
		return ""
	}
	return hex.EncodeToString(m.Message.Bytes()) + " " + strconv.FormatUint(m.Watermark, 10)
}

func parseMarker(text string) (m Marker, err error) {
	id, watermark, _ := strings.Cut(text, " ")
	bytes, err := hex.DecodeString(id)
	if err == nil {
		m.Message, err = messaging.ParseMessageID(bytes)
	}
	if err == nil {
		m.Watermark, err = strconv.ParseUint(watermark, 10, 64)
	}
	if err != nil {
		return Marker{}, fmt.Errorf("the marker %q: %w", text, err)
	}
	return m, nil
}

// Pipeliner sends several commands to Redis at once. Clients of go-redis and their connections
// implement it.
type Pipeliner interface {
	Pipelined(ctx context.Context, f func(redis.Pipeliner) error) ([]redis.Cmder, error)
}

// WriteMarker writes the marker of a zone to a primary with these slots, which are in order. The
// primary refuses with SONICNOTREADY while it may lack data. While a slot of the marker moves the
// error is one of [Moving]: a later marker serves as well.
//
// The marker is in the lowest slot and in the highest one: when many slots leave, from either end on,
// one of them stays. It is in some others, too, each time in different ones: a primary that gets its
// first slots gets a marker with them.
func WriteMarker(ctx context.Context, db Pipeliner, slots []int, zone string, m Marker) error {
	if len(slots) == 0 {
		return nil
	}
	chosen := []int{slots[0], slots[len(slots)-1]}
	for i := int(m.Watermark / 1000 % markerEvery); i < len(slots); i += markerEvery {
		chosen = append(chosen, slots[i])
	}
	commands, err := db.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, slot := range chosen {
			p.Do(ctx, "FCALL", "sonic_marker", 1, script.SlotOutbox(slot), zone, m.Text())
		}
		return nil
	})
	for _, c := range commands { // an error besides that of a slot that moves comes first
		if c.Err() != nil && !Moving(c.Err()) {
			return c.Err()
		}
	}
	return err
}

// markerEvery is how many slots have no marker between two that get one, at the same time.
const markerEvery = 256

// markersAtOnce is how many slots one request asks for markers.
const markersAtOnce = 1000

// ReadMarker returns the greatest of the markers of a zone that a primary has in these slots. It is
// zero if there is none. ReadMarker passes over slots that the primary does not have.
func ReadMarker(ctx context.Context, db Pipeliner, slots []int, zone string) (greatest Marker, err error) {
	err = eachMarker(ctx, db, slots, zone, func(k script.Keys) string { return k.Markers }, func(m Marker) {
		if greatest.IsZero() || m.Message.Compare(greatest.Message) > 0 {
			greatest = m
		}
	})
	return greatest, err
}

// ReadRecovery returns the marker behind which a primary may lack effects of a zone. It is that of
// [ReadMarker], unless a slot came from another primary that had not recovered: then it is the
// earlier one of that.
func ReadRecovery(ctx context.Context, db Pipeliner, slots []int, zone string) (from Marker, err error) {
	if from, err = ReadMarker(ctx, db, slots, zone); err != nil {
		return from, err
	}
	err = eachMarker(ctx, db, slots, zone, func(k script.Keys) string { return k.Recovery }, func(m Marker) {
		if m.IsZero() || m.Message.Compare(from.Message) < 0 {
			from = m
		}
	})
	return from, err
}

// eachMarker calls f for each marker of a zone in a hash of these slots.
func eachMarker(ctx context.Context, db Pipeliner, slots []int, zone string, hash func(script.Keys) string, f func(Marker)) error {
	for some := range slices.Chunk(slots, markersAtOnce) {
		var commands []*redis.StringCmd
		script.SetErrors(db.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, slot := range some {
				commands = append(commands, p.HGet(ctx, hash(script.SlotKeys(slot)), zone))
			}
			return nil
		}))
		for _, c := range commands {
			text, err := c.Result()
			switch {
			case errors.Is(err, redis.Nil) || script.IsReply(err, "MOVED ", "ASK "):
				continue
			case err != nil:
				return fmt.Errorf("cannot read the marker of zone %s: %w", zone, err)
			}
			var m Marker
			if text != "" {
				if m, err = parseMarker(text); err != nil {
					return err
				}
			}
			f(m)
		}
	}
	return nil
}

// ReadMarkers returns all markers in a slot, by name. It returns none if another primary has the
// slot.
func ReadMarkers(ctx context.Context, db redis.HashCmdable, slot int) (map[string]Marker, error) {
	texts, err := db.HGetAll(ctx, script.SlotKeys(slot).Markers).Result()
	if Moving(err) {
		return map[string]Marker{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the markers of slot %d: %w", slot, err)
	}
	markers := map[string]Marker{}
	for name, text := range texts {
		if markers[name], err = parseMarker(text); err != nil {
			return nil, err
		}
	}
	return markers, nil
}

// SlotsOf returns the slots of the primary at an address, in order.
func SlotsOf(m *cluster.Map, address string) []int {
	slots := make([]int, 0, m.Count(address))
	for slot := range cluster.Slots {
		if m.Owner(slot) == address {
			slots = append(slots, slot)
		}
	}
	return slots
}
