// Package read reads topics without a subscription: readers, and the last message of a topic.
package read
