package messaging

import "strings"

// fullTopicName completes a short topic name the way Pulsar does.
func fullTopicName(t string) string {
	switch {
	case t == "" || strings.Contains(t, "://"):
		return t
	case strings.Contains(t, "/"):
		return "persistent://" + t
	default:
		return "persistent://public/default/" + t
	}
}

// ValidTopic reports whether name can be a topic's: a bare name, tenant/namespace/name,
// or the same behind persistent:// or non-persistent://.
func ValidTopic(name string) bool { return validTopic(name) }

// validTopic reports whether t names a topic: a bare name, tenant/namespace/name,
// or the same behind persistent:// or non-persistent://.
func validTopic(t string) bool {
	domain, rest, _ := strings.Cut(fullTopicName(t), "://")
	parts := strings.SplitN(rest, "/", 3)
	if (domain != "persistent" && domain != "non-persistent") || len(parts) != 3 {
		return false
	}
	return parts[0] != "" && parts[1] != "" && parts[2] != ""
}

// persistentTopic reports whether a full name is a persistent topic's.
func persistentTopic(name string) bool {
	return strings.HasPrefix(name, "persistent://") && validTopic(name)
}
