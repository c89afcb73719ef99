package record

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// FullTopicName completes a short topic name the way Pulsar does.
func FullTopicName(t string) string {
	switch {
	case t == "" || strings.Contains(t, "://"):
		return t
	case strings.Contains(t, "/"):
		return "persistent://" + t
	default:
		return "persistent://public/default/" + t
	}
}

// ValidTopic reports whether name can be a topic's: a bare name, tenant/namespace/name, or the same
// behind persistent:// or non-persistent://. White space, control characters, invalid UTF-8, '?'
// and '#' are refused: names are a part of addresses of the admin API.
func ValidTopic(name string) bool {
	unfit := func(c rune) bool {
		return c == '?' || c == '#' || c == utf8.RuneError || unicode.IsSpace(c) || unicode.IsControl(c)
	}
	return HasTopicParts(name) && strings.IndexFunc(name, unfit) < 0
}

// HasTopicParts reports whether t has the parts of a topic's name, or of a pattern for names.
func HasTopicParts(t string) bool {
	domain, rest, _ := strings.Cut(FullTopicName(t), "://")
	parts := strings.SplitN(rest, "/", 3)
	if (domain != "persistent" && domain != "non-persistent") || len(parts) != 3 {
		return false
	}
	return parts[0] != "" && parts[1] != "" && parts[2] != ""
}

// PersistentTopic reports whether a full name is a persistent topic's.
func PersistentTopic(name string) bool {
	return strings.HasPrefix(name, "persistent://") && HasTopicParts(name)
}

// Keeps is nil for a topic that stores messages.
func Keeps(topic string) error {
	if strings.HasPrefix(topic, "non-persistent://") {
		return errors.New("a topic that is not persistent keeps nothing to read")
	}
	return nil
}
