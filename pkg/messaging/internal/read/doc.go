// Package read reads topics without a subscription: readers, and the last message of a topic. It
// imports cluster and record, but not publish or consume.
package read
