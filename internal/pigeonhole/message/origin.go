package message

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrHops is wrapped by what Hop returns past the limit.
var ErrHops = errors.New("too many hops")

// Begin sets the message's origin, unless it has one from before: the first is kept.
func (m *Message) Begin(o Origin) {
	if m.Origin.IsZero() {
		m.Origin = o
	}
}

// Hop notes that the Pigeonhole named id passes the message on. It reports again when
// id has done so before: the message runs in a circle and is to be dropped. Past limit
// hops the error wraps [ErrHops]. In both cases the message is unchanged. It is called
// once for each message, before it is sent.
func (m *Message) Hop(id string, limit int) (again bool, err error) {
	if slices.Contains(m.Hops, id) {
		return true, nil
	}
	if len(m.Hops) >= limit {
		return false, fmt.Errorf("%w: %d, the limit is %d; it has passed %s", ErrHops, len(m.Hops)+1, limit, strings.Join(m.Hops, ", "))
	}
	// The new list is exact: whoever holds the old one keeps it.
	hops := make([]string, len(m.Hops)+1)
	copy(hops, m.Hops)
	hops[len(m.Hops)] = id
	m.Hops = hops
	return false, nil
}

// Place is where the last Pigeonhole took a message with these properties from: what
// effectively once resumes after. System and Cluster are empty when the message came
// by way of several. ok is false for a message that no Pigeonhole has sent.
func Place(properties map[string]string) (o Origin, ok bool) {
	if text, there := properties[EntryFrom]; there {
		return ParseOrigin(text)
	}
	if text, there := properties[EntryOrigin]; there {
		return ParseOrigin(text)
	}
	return Origin{}, false
}

// String writes the origin as system;cluster;topic;partition;offset, and ;id where
// there is one: "kafka;main;orders;3;1042". What is none is empty; ';' in a name is
// %3B.
func (o Origin) String() string { return string(o.append(nil)) }

func (o Origin) append(b []byte) []byte {
	for _, s := range [...]string{o.System, o.Cluster, o.Topic} {
		b = append(appendEscaped(b, s, ";"), ';')
	}
	if o.Partition != -1 {
		b = strconv.AppendInt(b, int64(o.Partition), 10)
	}
	b = append(b, ';')
	if o.Offset != -1 {
		b = strconv.AppendInt(b, o.Offset, 10)
	}
	if o.ID != "" {
		b = appendEscaped(append(b, ';'), o.ID, ";")
	}
	return b
}

// ParseOrigin is the reverse of [Origin.String]. It does not allocate unless something
// is escaped.
func ParseOrigin(text string) (o Origin, ok bool) {
	names := [...]*string{&o.System, &o.Cluster, &o.Topic}
	for _, name := range names {
		var field string
		if field, text, ok = strings.Cut(text, ";"); !ok {
			return Origin{}, false
		}
		if *name, ok = unescape(field); !ok {
			return Origin{}, false
		}
	}
	partition, text, ok := strings.Cut(text, ";")
	if !ok {
		return Origin{}, false
	}
	offset, id, _ := strings.Cut(text, ";")
	if o.ID, ok = unescape(id); !ok || strings.IndexByte(id, ';') >= 0 {
		return Origin{}, false
	}
	o.Partition, o.Offset = -1, -1
	if partition != "" {
		n, err := strconv.ParseInt(partition, 10, 32)
		if err != nil {
			return Origin{}, false
		}
		o.Partition = int32(n)
	}
	if offset != "" {
		n, err := strconv.ParseInt(offset, 10, 64)
		if err != nil {
			return Origin{}, false
		}
		o.Offset = n
	}
	return o, !o.IsZero()
}

func (m *Message) tellsOrigin() bool { return !m.Origin.IsZero() && !m.OmitOrigin }

// appendFrom appends EntryFrom, or nothing where the origin says it.
func (m *Message) appendFrom(b []byte) []byte {
	if !m.hasFrom() {
		return b
	}
	return Origin{Topic: m.From.Topic, Partition: m.From.Partition, Offset: m.From.Offset}.append(b)
}

func (m *Message) hasFrom() bool {
	return !m.OmitOrigin && len(m.Hops) > 1 && m.From.Topic != "" && m.From.Offset >= 0
}

func appendHops(b []byte, hops []string) []byte {
	for i, id := range hops {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendEscaped(b, id, ",")
	}
	return b
}

func parseHops(text string) ([]string, bool) {
	hops := strings.Split(text, ",")
	for i := range hops {
		var ok bool
		if hops[i], ok = unescape(hops[i]); !ok || hops[i] == "" {
			return nil, false
		}
	}
	return hops, true
}
