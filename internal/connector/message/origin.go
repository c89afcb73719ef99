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
		f := &m.From
		m.Origin = Origin{System: f.System, Cluster: f.Cluster, Topic: f.Topic, Partition: f.Partition, Offset: f.Offset, ID: id}
	}
}

// NeedsOrigin reports whether the message has no origin from an earlier route.
func (m *Message) NeedsOrigin() bool { return m.Origin.IsZero() || len(m.Hops) == 0 }

// PlaceName names a topic or queue in the hops of messages: system;cluster;topic. Pulsar's short and
// full names of one topic, and its partitions, have the same name.
func PlaceName(system, cluster, topic string) string {
	if system == "pulsar" {
		topic = strings.TrimPrefix(strings.TrimPrefix(topic, "persistent://"), "public/default/")
		if at := strings.LastIndex(topic, "-partition-"); at > 0 {
			if _, err := strconv.ParseUint(topic[at+len("-partition-"):], 10, 31); err == nil {
				topic = topic[:at]
			}
		}
	}
	b := make([]byte, 0, len(system)+len(cluster)+len(topic)+2)
	b = append(appendEscaped(b, system, ";"), ';')
	b = append(appendEscaped(b, cluster, ";"), ';')
	return string(appendEscaped(b, topic, ";"))
}

// CheckHops returns an error that wraps [ErrHops] when the message already has limit hops.
func (m *Message) CheckHops(limit int) error {
	if len(m.Hops) < limit {
		return nil
	}
	return fmt.Errorf("%w: %d, the limit is %d; it has passed %s", ErrHops, len(m.Hops)+1, limit, strings.Join(m.Hops, ", "))
}

// HasPassed reports whether a route has taken the message from place before. Sending it there would
// make a loop.
func (m *Message) HasPassed(place string) bool {
	if slices.Contains(m.Hops, place) {
		return true
	}
	// Older versions wrote the process as a hop, not the place. The first hop's place is the origin.
	first := len(m.Hops) > 0 && !strings.Contains(m.Hops[0], ";")
	return first && place == PlaceName(m.Origin.System, m.Origin.Cluster, m.Origin.Topic)
}

// hopCount is how many hops are sent.
func (m *Message) hopCount() int {
	if m.Hop == "" {
		return len(m.Hops)
	}
	return len(m.Hops) + 1
}

// Place is where the last Pigeonhole took a message with these properties from. Effectively once
// resumes behind it. System and Cluster may be empty for a message that has passed several
// Pigeonholes, the last of an older version. ok is false for a message that no Pigeonhole has sent.
func Place(properties map[string]string) (o Origin, ok bool) {
	if properties[EntryHops] == "" {
		return Origin{}, false
	}
	if text, there := properties[EntryFrom]; there {
		return ParseOrigin(text)
	}
	if text, there := properties[EntryOrigin]; there {
		return ParseOrigin(text)
	}
	return Origin{}, false
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

func (m *Message) sendsOrigin() bool { return !m.Origin.IsZero() && !m.OmitOrigin }

// appendFrom appends EntryFrom, or nothing if hasFrom is false.
func (m *Message) appendFrom(b []byte) []byte {
	if !m.hasFrom() {
		return b
	}
	f := &m.From
	return Origin{System: f.System, Cluster: f.Cluster, Topic: f.Topic, Partition: f.Partition, Offset: f.Offset, ID: f.TopicID}.append(b)
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
