package wire

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Format is the version of the messages that this Sonic writes, and the only one that it reads.
// Format 5 has groups of slots.
const Format = 5

// Names of properties.
const (
	propFormat    = "sonic_format"
	propOrigin    = "sonic_origin"
	propShard     = "sonic_shard"
	propEpoch     = "sonic_epoch"
	propPrev      = "sonic_prev"
	propFirst     = "sonic_first"
	propLast      = "sonic_last"
	propCount     = "sonic_count"
	propPosition  = "sonic_position"
	propPart      = "sonic_part"
	propConfig    = "sonic_config"
	propSlots     = "sonic_slots"
	propWatermark = "sonic_watermark"
	propReached   = "sonic_reached"
)

// Header is the content of a message's properties.
type Header struct {
	Origin string // the zone that wrote it
	Shard  int
	Epoch  int64 // of the origin's Redis: increases each time it is opened for writes
	// Prev is the last effect of the previous message. First and Last are the first and the last
	// effect of this one.
	Prev, First, Last ID
	// Count is how many effects the topic has had, including this message. It serves only to
	// compute how far behind a reader is.
	Count int64
	// Position orders the messages of the topic; see [ID.Position].
	Position int64
	// Part is the number of this part of a payload that is too large for one message, from 1 to
	// Parts. Parts is 1 for a whole payload.
	Part, Parts int
	// Config is the origin's result of [Config]; empty: unknown.
	Config string

	// Slots says that the origin has a Redis Cluster, and that the payload is one of [GroupsPayload].
	// Prev is then zero, and Last the greatest id of an effect so far.
	Slots bool
	// Watermark is a time in milliseconds: all effects of the origin with an earlier id are in this
	// message or before it. Only with Slots.
	Watermark uint64
	// Reached says for each other zone up to which time, in milliseconds, the origin has applied all
	// of its effects. Only with Slots.
	Reached map[string]uint64
}

// ReachedIDs returns Reached as ids.
func (h *Header) ReachedIDs() map[string]ID {
	ids := make(map[string]ID, len(h.Reached))
	for zone, ms := range h.Reached {
		ids[zone] = ID{Ms: ms}
	}
	return ids
}

// ErrNewer says that a newer Sonic wrote the message.
var ErrNewer = errors.New("a newer version of Sonic wrote it")

// ErrForeign says that the message does not come from Sonic, or not from the expected zone and
// shard: it has no effects.
var ErrForeign = errors.New("it is not a message of Sonic")

// ErrUnreadable says that this version cannot read the message of a Sonic.
var ErrUnreadable = errors.New("it cannot be read")

// Properties returns the header as message properties.
func (h *Header) Properties() map[string]string {
	p := map[string]string{
		propFormat: strconv.Itoa(Format), propOrigin: h.Origin, propShard: strconv.Itoa(h.Shard), propEpoch: strconv.FormatInt(h.Epoch, 10),
		propPrev: h.Prev.String(), propFirst: h.First.String(), propLast: h.Last.String(),
		propCount: strconv.FormatInt(h.Count, 10), propPosition: strconv.FormatInt(h.Position, 10),
	}
	if h.Parts > 1 {
		p[propPart] = fmt.Sprintf("%d/%d", h.Part, h.Parts)
	}
	if h.Config != "" {
		p[propConfig] = h.Config
	}
	if h.Slots {
		p[propSlots], p[propWatermark] = "yes", strconv.FormatUint(h.Watermark, 10)
		var reached []string
		for _, zone := range slices.Sorted(maps.Keys(h.Reached)) {
			reached = append(reached, zone+"="+strconv.FormatUint(h.Reached[zone], 10))
		}
		p[propReached] = strings.Join(reached, " ")
	}
	return p
}

// ParseHeader reads a message's properties. Its errors are [ErrForeign]; [ErrNewer], with a text
// that says what to do; and [ErrUnreadable]. With the latter two the header has Origin and Last
// only, and with ErrNewer these may be missing.
//
// A message that does not say its last effect is foreign: if it had effects, the message behind it
// shows that they are missing.
func ParseHeader(p map[string]string) (*Header, error) {
	text, found := p[propFormat]
	if !found {
		return nil, fmt.Errorf("%w: it has no property %s", ErrForeign, propFormat)
	}
	format, err := strconv.Atoi(text)
	last, errLast := ParseID(p[propLast])
	partial := &Header{Origin: p[propOrigin], Last: last}
	switch {
	case err == nil && format > Format:
		return partial, fmt.Errorf("%w, in format %d, and this one reads format %d: run the newer version in this zone, too", ErrNewer, format, Format)
	case errLast != nil || partial.Origin == "":
		return nil, fmt.Errorf("%w: its properties %s and %s are %q and %q", ErrForeign, propOrigin, propLast, p[propOrigin], p[propLast])
	case err != nil || format < 1:
		return partial, fmt.Errorf("%w: its property %s is %q", ErrUnreadable, propFormat, text)
	case format < Format:
		return partial, fmt.Errorf("%w by this version: it is in format %d, and this one reads format %d: use a new topic in all zones", ErrUnreadable, format, Format)
	}
	h := &Header{Origin: p[propOrigin], Part: 1, Parts: 1, Config: p[propConfig]}
	var errs []error
	number := func(name string) int64 {
		n, err := strconv.ParseInt(p[name], 10, 64)
		if err != nil || n < 0 {
			errs = append(errs, fmt.Errorf("%s is %q", name, p[name]))
		}
		return n
	}
	id := func(name string) ID {
		id, err := ParseID(p[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is %q", name, p[name]))
		}
		return id
	}
	h.Shard, h.Epoch, h.Count, h.Position = int(number(propShard)), number(propEpoch), number(propCount), number(propPosition)
	h.Prev, h.First, h.Last = id(propPrev), id(propFirst), id(propLast)
	if text, ok := p[propPart]; ok {
		part, parts, _ := strings.Cut(text, "/")
		h.Part, err = strconv.Atoi(part)
		n, err2 := strconv.Atoi(parts)
		if h.Parts = n; err != nil || err2 != nil || h.Part < 1 || h.Part > h.Parts {
			errs = append(errs, fmt.Errorf("%s is %q", propPart, text))
		}
	}
	if h.Slots = p[propSlots] != ""; h.Slots {
		h.Watermark, h.Reached = uint64(number(propWatermark)), map[string]uint64{}
		for _, word := range strings.Fields(p[propReached]) {
			zone, ms, _ := strings.Cut(word, "=")
			if h.Reached[zone], err = strconv.ParseUint(ms, 10, 64); err != nil {
				errs = append(errs, fmt.Errorf("%s is %q", propReached, p[propReached]))
			}
		}
	} else if h.First.Compare(h.Last) > 0 || h.Prev.Compare(h.First) >= 0 {
		errs = append(errs, fmt.Errorf("%s %s, %s %s and %s %s do not rise", propPrev, h.Prev, propFirst, h.First, propLast, h.Last))
	}
	if len(errs) > 0 {
		return partial, fmt.Errorf("%w: %w", ErrUnreadable, errors.Join(errs...))
	}
	return h, nil
}
