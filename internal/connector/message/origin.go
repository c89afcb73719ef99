package message

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrHops is wrapped by what CheckHops returns.
var ErrHops = errors.New("too many hops")

// SetOrigin sets the message's origin from From, unless an earlier route has set it. id is the
// message's id at the source; it may be empty.
func (m *Message) SetOrigin(id string) {
	if m.NeedsOrigin() {
		m.Origin = m.From.origin(id)
	}
}

// origin is the position in the form of an Origin.
func (f *From) origin(id string) Origin {
	return Origin{System: f.System, Cluster: f.Cluster, Topic: f.Topic, Partition: f.Partition, Offset: f.Offset, ID: id}
}

// NeedsOrigin reports whether the message has no origin from an earlier route.
func (m *Message) NeedsOrigin() bool { return m.Origin.IsZero() || len(m.Hops) == 0 }

// PlaceName names a topic or queue in the hops of messages: system;cluster;topic. Pulsar's short and
// full names of one topic, and its partitions, have the same name.
func PlaceName(system, cluster, topic string) string {
	if system == "pulsar" {
		topic, _ = SplitPartition(strings.TrimPrefix(strings.TrimPrefix(topic, "persistent://"), "public/default/"))
	}
	var b []byte
	for _, s := range [...]string{system, cluster, topic} {
		b = append(appendEscaped(b, s, ";"), ';')
	}
	return string(b[:len(b)-1])
}

// SplitPartition splits the name of a partition of Pulsar into the topic and its number, -1 for a name
// without one.
func SplitPartition(name string) (topic string, partition int32) {
	const mark = "-partition-"
	if at := strings.LastIndex(name, mark); at > 0 {
		if n, err := strconv.ParseUint(name[at+len(mark):], 10, 31); err == nil {
			return name[:at], int32(n)
		}
	}
	return name, -1
}

// CheckHops returns an error that wraps [ErrHops] when the message already has limit hops.
func (m *Message) CheckHops(limit int) error {
	if len(m.Hops) < limit {
		return nil
	}
	return fmt.Errorf("%w: %d, the limit is %d; routes took the message from %s",
		ErrHops, len(m.Hops)+1, limit, strings.Join(m.Hops, ", "))
}

// HasPassed reports whether a route has taken the message from place before. Sending it there would
// make a loop.
func (m *Message) HasPassed(place string) bool { return slices.Contains(m.Hops, place) }

// Place is where the last Pigeonhole took a message with these properties from. Effectively once
// resumes behind it. ok is false for a message that no Pigeonhole has sent.
func Place(properties map[string]string) (o Origin, ok bool) {
	text, there := properties[EntryFrom]
	if !there {
		text = properties[EntryOrigin]
	}
	if properties[EntryHops] == "" {
		return Origin{}, false
	}
	return ParseOrigin(text)
}

// String returns the origin as system;cluster;topic;partition;offset, and ;id if there is one:
// "kafka;main;orders;3;1042". A partition or offset of -1 is empty; ';' in a name is %3B.
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

// ParseOrigin parses the text of [Origin.String]. It does not allocate unless something is escaped.
func ParseOrigin(text string) (Origin, bool) {
	var fields [6]string
	n := 0
	for more := true; more; n++ {
		if n == len(fields) {
			return Origin{}, false
		}
		var ok bool
		fields[n], text, more = strings.Cut(text, ";")
		if fields[n], ok = unescape(fields[n]); !ok {
			return Origin{}, false
		}
	}
	partition, err := parseOptional(fields[3], 32)
	offset, err2 := parseOptional(fields[4], 64)
	if n < 5 || err != nil || err2 != nil {
		return Origin{}, false
	}
	o := Origin{System: fields[0], Cluster: fields[1], Topic: fields[2], Partition: int32(partition), Offset: offset, ID: fields[5]}
	return o, !o.IsZero()
}

// parseOptional parses a number; an empty text is -1.
func parseOptional(text string, bits int) (int64, error) {
	if text == "" {
		return -1, nil
	}
	return strconv.ParseInt(text, 10, bits)
}

func (m *Message) hasFrom() bool {
	return !m.OmitOrigin && len(m.Hops) > 0 && m.Hop != "" && m.From.Topic != "" && m.From.Offset >= 0
}

// appendHops appends EntryHops.
func (m *Message) appendHops(b []byte) []byte {
	for _, place := range m.Hops {
		b = append(appendEscaped(b, place, ","), ',')
	}
	if m.Hop == "" {
		return b[:len(b)-1]
	}
	return appendEscaped(b, m.Hop, ",")
}

// parseHops returns nil for a text that is not one of EntryHops.
func parseHops(text string) []string {
	hops := strings.Split(text, ",")
	for i := range hops {
		var ok bool
		if hops[i], ok = unescape(hops[i]); !ok || hops[i] == "" {
			return nil
		}
	}
	return hops
}
