package clientquirks

import (
	"regexp"
	"strings"
)

// Anchored returns a pattern of full topic names for the client, which accepts a match anywhere
// in a name (consumer_regex.go, filterTopics). Without the anchor, orders.* would also match
// my-orders-x.
func Anchored(pattern string) string {
	i := strings.LastIndexByte(pattern, '/') + 1
	return pattern[:i] + "(?:" + pattern[i:] + ")$"
}

// PatternMatcher returns which topics the client subscribes to by a pattern: match takes a full
// topic name without -partition-N. The client matches from the tenant on (extractTopicPattern), so
// the part before :// does not count. If the client changes, backlogs are counted of other topics
// than those consumed.
func PatternMatcher(pattern string) (match func(topic string) bool, err error) {
	_, pattern, _ = strings.Cut(pattern, "://")
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	return func(topic string) bool {
		_, name, ok := strings.Cut(topic, "://")
		return ok && re.MatchString(name)
	}, nil
}
