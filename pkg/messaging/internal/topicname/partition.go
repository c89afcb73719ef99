// Package topicname has Pulsar's names for the partitions of a topic: name-partition-3. It imports
// no other package of this repository.
package topicname

import (
	"strconv"
	"strings"
)

const mark = "-partition-"

// Partition is the name of topic's partition with that index.
func Partition(topic string, index int) string { return topic + mark + strconv.Itoa(index) }

// SplitPartition takes a partition's name apart. ok is false when name is no partition's; topic is
// name then.
func SplitPartition(name string) (topic string, index int, ok bool) {
	at := strings.LastIndex(name, mark)
	if at < 0 {
		return name, 0, false
	}
	// An index has 31 bits, and ParseUint takes no sign.
	n, err := strconv.ParseUint(name[at+len(mark):], 10, 31)
	if err != nil {
		return name, 0, false
	}
	return name[:at], int(n), true
}

// WithoutPartition is the name of the topic that a partition belongs to. Any other name stays as
// it is.
func WithoutPartition(name string) string {
	topic, _, _ := SplitPartition(name)
	return topic
}
